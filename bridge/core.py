"""All that lies between clients and brokers: the bridge without its files, ports and pages."""

import asyncio
import socket
from collections.abc import Callable, Iterable
from typing import NamedTuple

import structlog

from bridge.broker.admin import AdminClient
from bridge.broker.candidates import Peers
from bridge.broker.pool import BrokerPool
from bridge.broker.readiness import Readiness
from bridge.clock import ClockSteps, RandBits, system_randbits, wall_clock_ms, wall_clock_ns
from bridge.config import Settings
from bridge.gateway.client_commands import Tracking
from bridge.gateway.listener import Gateway
from bridge.limits import Limits
from bridge.members.balance import Ask, Balance
from bridge.members.membership import Membership
from bridge.net.backoff import Backoff
from bridge.net.failures import Failures
from bridge.net.tls_listener import TlsPort
from bridge.net.trust import TrustedServers
from bridge.refill.snapshots.share import SnapshotShare
from bridge.refill.spark_job import SparkSettings
from bridge.topics.context import BridgeContext
from bridge.topics.topics import SyncLoop, Topics
from tracker import Store

_AT_ONCE_S = 0.05
log = structlog.get_logger(__name__)


class Machine(NamedTuple):
    """What a bridge reads of the machine it runs on."""

    now_ms: Callable[[], int] = wall_clock_ms
    now_ns: Callable[[], int] = wall_clock_ns
    randbits: RandBits = system_randbits


class Core:
    """`start`, then `stop`."""

    def __init__(
        self,
        settings: Settings,
        limits: Limits,
        store: Store,
        admin: AdminClient,
        pool: BrokerPool,
        urls: tuple[str, Callable[[], str]],
        machine: Machine,
        failures: Failures | None = None,
        tls_url: str | None = None,
        trusted: TrustedServers | None = None,
        ask: Ask | None = None,
    ) -> None:
        """`urls`: where clients are told to connect, and where others find REST, known once it listens.

        `tls_url`: where clients are told to connect that came by TLS; `trusted`: what brokers with it are checked by;
        `ask`: what another bridge owns, None to know nothing of the others but who stands for the same topics.
        """
        self.failures = Failures() if failures is None else failures
        self.readiness = Readiness(self.failures, limits.connections)
        self._pool = pool
        self._admin = admin
        backoff = Backoff(machine.randbits, limits.retry_backoff_s)
        self._snapshots = _snapshot_share(settings, machine)
        syncing = SyncLoop(store, self.failures, backoff, limits.topics)
        context = BridgeContext(
            pool,
            admin,
            store,
            *urls,
            settings.partition_width_ms,
            settings.near_term_bytes,
            syncing.mark_dirty,
            syncing.synced,
            _spark_settings(settings),
            self.failures,
            limits,
            machine.now_ms,
            machine.now_ns,
            machine.randbits,
            _peers(settings),
            tls_url,
            settings.standby_count,
            self._snapshots,
        )
        self.topics = Topics(context, syncing)
        self.gateway = Gateway(
            settings.broker_service_url,
            self.topics,
            self.failures,
            settings.max_client_connections,
            limits.connections,
            machine.randbits,
            trusted,
            Tracking(settings.delays_on_exclusive.split()),
        )
        self.balance: Balance | None = None
        """What this bridge knows of the others."""
        if settings.members_topic != "off" and ask is not None:
            self.balance = Balance(Membership(settings.members_topic, context), self.topics, ask, context)
        self.clock_steps = ClockSteps(limits.operators.clock_step_ms)
        self._now_ms = machine.now_ms
        self._clock_look_s = limits.operators.clock_look_s
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, plain: Iterable[socket.socket], tls: Iterable[TlsPort] = ()) -> None:
        """Serve clients on bound sockets, and on some for TLS; go on with every topic that the store knows."""
        await self.gateway.start(plain, tls)
        self.topics.resume()
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self.readiness.watch(self._pool, self._admin)))
        self._tasks.append(loop.create_task(self._watch_clock()))
        if self.balance is not None:
            self._tasks.append(loop.create_task(self.balance.run()))

    async def _watch_clock(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_s, now_ms = loop.time(), self._now_ms()
            if loop.time() - began_s < _AT_ONCE_S:  # else who knows which of them was read when
                step_ms = self.clock_steps.note(now_ms, began_s)
                if step_ms is not None:
                    log.warning("the clock of this machine was set, or stood still", by_ms=step_ms)
            await asyncio.sleep(self._clock_look_s)

    async def stop(self) -> None:
        """No new clients, no more dispatch, what was acked on disk, then every connection closed."""
        self.readiness.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.gateway.stop_listening()
        await self.topics.close()
        await self.gateway.close()
        if self._snapshots is not None:
            self._snapshots.close()


def _peers(settings: Settings) -> Peers:
    secret = settings.cluster_secret
    return Peers(None if secret is None else secret.get_secret_value(), settings.peer_urls.split())


def _snapshot_share(settings: Settings, machine: Machine) -> SnapshotShare | None:
    if settings.snapshot_dir is None:
        return None
    local = settings.data_dir / "snapshots"
    return SnapshotShare(settings.snapshot_dir, settings.snapshot_interval_ms, local, machine.randbits)


def _spark_settings(settings: Settings) -> SparkSettings:
    token, trusted = settings.broker_token, settings.broker_tls_trust_certs_file_path
    return SparkSettings(
        settings.rebuild_from_entries,
        settings.data_dir / "rebuilds",
        settings.spark_master,
        tuple(settings.spark_conf.split()),
        settings.broker_service_url,
        settings.broker_web_url,
        None if token is None else token.get_secret_value(),
        settings.spark_output or None,
        None if trusted is None else str(trusted),
        settings.broker_tls_hostname_verification,
        settings.read_from,
    )
