"""The bridge as a whole: starts its parts in order, stops them in stages."""

import asyncio
import contextlib
import socket
from typing import NamedTuple

import structlog
from aiohttp import web

from bridge.broker.admin import AdminClient
from bridge.broker.clocks import ClockComparison
from bridge.broker.pool import BrokerPool
from bridge.clock import ClockSteps, wall_clock_ms
from bridge.config import ANY_ADDRESS, LOOPBACK, Settings
from bridge.core import Core, Machine
from bridge.gateway.listener import Gateway
from bridge.limits import Limits
from bridge.members.balance import Balance
from bridge.members.directory import Directory
from bridge.net.certificates import CertificateError, ServerCertificate
from bridge.net.failures import Failures
from bridge.net.limited_log import LimitedLog
from bridge.net.listening import StartError, bound
from bridge.net.tls_listener import TlsListener, TlsPort
from bridge.operate.action_log import ActionLog
from bridge.protocol.service_url import TLS_SCHEME, ServiceUrls
from bridge.topics.topics import Topics
from bridge.web.pages.routes import load_pages
from bridge.web.server import build_web_app
from tracker import Store

log = structlog.get_logger(__name__)


class Neighbourhood(NamedTuple):
    """What a bridge shares with others of its host: where all of them accept clients; the ports of the others' REST."""

    plain: socket.socket | None = None
    tls: socket.socket | None = None
    web_ports: tuple[int, ...] = ()


class Bridge:
    """`start`, then `stop`. Ports given as 0 are known after `start`."""

    def __init__(self, settings: Settings, limits: Limits, neighbourhood: Neighbourhood | None = None) -> None:
        """Open nothing yet."""
        self._neighbourhood = neighbourhood or Neighbourhood()
        self.settings = settings
        self.limits = limits
        self.port = settings.port
        self.tls_port = settings.tls_port
        self.web_port = settings.web_port
        self.web_tls_port = settings.web_tls_port
        self.trusted = settings.trusted_servers()
        self._stopping = False
        self.started_ms = wall_clock_ms()
        self.actions = ActionLog(settings.data_dir, limits.operators)
        self.failures = Failures()
        self._core: Core | None = None
        self._store: Store | None = None
        self._pool: BrokerPool | None = None
        self._admin: AdminClient | None = None
        self._directory: Directory | None = None
        self._runner: web.AppRunner | None = None
        self.certificate: ServerCertificate | None = None
        self._web_tls: TlsListener | None = None
        self._web_log = LimitedLog(limits.connections)

    @property
    def not_ready(self) -> str | None:
        """Why clients are not served; None while they are."""
        if self._stopping:
            return "stopping"
        return "starting" if self._core is None else self._core.readiness.reason

    @property
    def topics(self) -> Topics | None:
        """All topic partitions; None while it starts."""
        return None if self._core is None else self._core.topics

    @property
    def gateway(self) -> Gateway | None:
        """The side that clients see; None while it starts."""
        return None if self._core is None else self._core.gateway

    @property
    def balance(self) -> Balance | None:
        """What this bridge knows of the others; None while it starts, and where it is to know nothing."""
        return None if self._core is None else self._core.balance

    @property
    def exposed(self) -> str | None:
        """Why other users of this machine may look into the data directory; None when they cannot."""
        return None if self._store is None else self._store.exposed

    def delivered(self) -> int:
        """Messages dispatched so far."""
        topics = [] if self.topics is None else self.topics.all()
        return sum(each.stats.delivered for topic in topics for each in topic.subscriptions.values())

    @property
    def clock_offset_s(self) -> float | None:
        """How far at least the broker's clock is ahead of this machine's; None while it is not known."""
        return None if self._admin is None else self._admin.clocks.offset_s

    @property
    def clock_steps(self) -> ClockSteps | None:
        """Whether and how this machine's clock was set; None while the bridge starts."""
        return None if self._core is None else self._core.clock_steps

    @property
    def admin_failures(self) -> int:
        """Calls of the broker's admin interface without an answer that can be read."""
        return 0 if self._admin is None else self._admin.failures

    @property
    def broker_connections(self) -> int:
        """The bridge's own connections to brokers, and those it holds for clients."""
        own = 0 if self._pool is None else self._pool.connections
        return own + (0 if self.gateway is None else self.gateway.broker_connections)

    @property
    def failed_handshakes(self) -> int:
        """Connections to the ports with TLS that were closed before they had begun."""
        of_clients = 0 if self.gateway is None else self.gateway.failed_handshakes
        return of_clients + (0 if self._web_tls is None else self._web_tls.failed_handshakes)

    @property
    def neighbours(self) -> dict[str, str]:
        """Where the REST of the other workers is that this bridge answers for: as others know it, and for itself."""
        settings = self.settings
        near = "127.0.0.1" if settings.web_host in ANY_ADDRESS else settings.web_host
        near = f"[{near}]" if ":" in near else near
        return {f"http://{self._web_host}:{port}": f"http://{near}:{port}" for port in self._neighbourhood.web_ports}

    @property
    def advertised_urls(self) -> ServiceUrls:
        """Where clients are told to connect."""
        settings = self.settings
        plain = None if settings.tls_only else f"pulsar://{settings.advertised_address}:{self.port}"
        tls = f"{TLS_SCHEME}//{settings.advertised_address}:{self.tls_port}" if self.tls_port else None
        return ServiceUrls(plain, tls)

    @property
    def advertised_url(self) -> str:
        """Where clients are told to connect, and what other bridges know this one by."""
        return self.advertised_urls.name

    @property
    def advertised_web_url(self) -> str:
        """Where other bridges send requests that are for this one."""
        return self.settings.advertised_web_url or f"http://{self._web_host}:{self.web_port}"

    @property
    def web_urls(self) -> tuple[str | None, str | None]:
        """Where callers reach the web server without TLS, and with it."""
        url = self.advertised_web_url
        tls = f"https://{self._web_host}:{self.web_tls_port}" if self.web_tls_port else None
        return (None, url) if url.startswith("https:") else (url, tls)

    @property
    def _web_host(self) -> str:
        settings = self.settings
        host = settings.web_host if settings.web_host in LOOPBACK else settings.advertised_address
        return f"[{host}]" if ":" in host else host

    async def start(self) -> None:
        """Start everything. Raises StartError, or tracker.StoreError for the data directory.

        A broker that is down does not fail the start: readiness says so, and it is tried until it answers.
        """
        settings = self.settings
        asyncio.get_running_loop().set_exception_handler(self.failures.on_loop_error)
        token = settings.broker_token.get_secret_value() if settings.broker_token else None
        store = self._store = await asyncio.to_thread(Store.open, settings.data_dir, self.limits.store)
        if store.exposed is not None:
            log.warning("the data directory is not private", reason=store.exposed)
        try:
            await self._read_certificates()
            connections = self.limits.connections
            most_ms = settings.max_clock_offset_ms
            clocks = ClockComparison(None if most_ms is None else most_ms / 1000)
            admin = self._admin = AdminClient(settings.broker_web_url, connections, token, self.trusted, clocks)
            pool = self._pool = BrokerPool(settings.broker_service_url, connections, token, trusted=self.trusted)
            await self._serve(store, admin, pool)
        except BaseException:
            await self.stop()
            raise
        told = {"service_url": self.advertised_urls.plain, "service_url_tls": self.advertised_urls.tls}
        log.info("bridge is up", web_port=self.web_port, **{name: url for name, url in told.items() if url is not None})

    async def _serve(self, store: Store, admin: AdminClient, pool: BrokerPool) -> None:
        certificate = self.certificate
        with contextlib.ExitStack() as held:
            # Ports are part of the advertised URLs, which the topics need: listen first, serve when they are there.
            shared = self._neighbourhood
            plain = [] if shared.plain is None else [held.enter_context(shared.plain)]
            tls = []
            if not self.settings.tls_only:
                plain.append(held.enter_context(bound(self.settings.host, self.settings.port)))
                self.port = plain[-1].getsockname()[1]
            if certificate is not None and self.tls_port:
                tls.append(TlsPort(held.enter_context(bound(self.settings.host, self.tls_port)), certificate))
                if shared.tls is not None:
                    tls.append(TlsPort(held.enter_context(shared.tls), certificate, watched=False))
            own = self.advertised_urls
            urls = own.name, lambda: self.advertised_web_url
            given = self.settings, self.limits, store, admin, pool
            self._directory = Directory(self.settings, self.trusted, self.limits.members)
            self._core = Core(*given, urls, Machine(), self.failures, own.tls, self.trusted, self._directory.ask)
            # Topics tell others where REST is: its port has to be known before the first of them is opened.
            await self._start_web()
            held.pop_all()
        await self._core.start(plain, tls)

    async def _read_certificates(self) -> None:
        settings = self.settings
        files = settings.tls_files
        try:
            if files is not None:
                self.certificate = await asyncio.to_thread(ServerCertificate, files, settings.advertised_address)
            if settings.broker_tls_trust_certs_file_path is not None:
                await asyncio.to_thread(lambda: self.trusted.context)
        except CertificateError as error:  # they were good when the settings were read
            raise StartError(str(error)) from error

    async def look_at_certificates(self) -> None:
        """Use what has changed of certificates, the bridge's own and trusted ones, for new connections."""
        if self.certificate is not None:
            await asyncio.to_thread(self.certificate.look)
        await asyncio.to_thread(self.trusted.look)

    async def drained(self) -> int:
        """Have others take over what this bridge owns; returns how many topic partitions nobody took in time."""
        members, loop = self.limits.members, asyncio.get_running_loop()
        ends, left = loop.time() + members.drain_s, 0
        while self.topics is not None:
            left = sum(load > 0 for load in (await self.topics.owned()).values())
            if self.balance is None or not left or loop.time() > ends:
                break
            self.balance.drain(True)
            await asyncio.sleep(members.drain_look_s)
        return left

    async def stop(self) -> None:
        """No new clients, no more dispatch, what was acked on disk, then everything closed."""
        self._stopping = True
        if self._core is not None:
            await self._core.stop()
        if self._directory is not None:
            await self._directory.close()
        if self._pool is not None:
            await self._pool.close()
        if self._admin is not None:
            await self._admin.close()
        if self._web_tls is not None:
            await self._web_tls.stop()
            self._web_log.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._store is not None:
            await asyncio.to_thread(self._store.close)
        asyncio.get_running_loop().set_exception_handler(None)
        log.info("bridge is down")

    async def _start_web(self) -> None:
        await asyncio.to_thread(load_pages)
        self._runner = web.AppRunner(build_web_app(self), access_log=None)
        await self._runner.setup()
        listening = bound(self.settings.web_host, self.settings.web_port)
        self.web_port = listening.getsockname()[1]
        await web.SockSite(self._runner, listening).start()
        if self.certificate is not None and self.web_tls_port:
            self._start_web_tls(self._runner.server, self.certificate)

    def _start_web_tls(self, server: web.Server | None, certificate: ServerCertificate) -> None:
        assert server is not None
        settings, limits = self.settings, self.limits.connections
        listening = bound(settings.web_host, settings.web_tls_port)
        # Two listeners show one certificate: one of them looks after it.
        port = TlsPort(listening, certificate, watched=not settings.tls_port)
        self._web_tls = TlsListener(port, server, self._web_has_room, self.failures, self._web_log, limits)
        self._web_tls.start()

    def _web_has_room(self) -> bool:
        assert self._web_tls is not None
        server = None if self._runner is None else self._runner.server
        open_now = 0 if server is None else len(server.connections)
        return open_now + self._web_tls.handshakes < self.settings.max_client_connections
