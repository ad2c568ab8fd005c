"""Where clients connect."""

import asyncio
import socket
from collections.abc import Iterable
from functools import partial

import structlog

from bridge.clock import RandBits, system_randbits
from bridge.gateway.client_commands import Tracking
from bridge.gateway.consumers import TrackedTopics
from bridge.gateway.session import ClientSession
from bridge.limits import ConnectionLimits
from bridge.net.acceptor import PlainListener
from bridge.net.failures import Failures, Part
from bridge.net.limited_log import LimitedLog
from bridge.net.tls_listener import TlsListener, TlsPort
from bridge.net.trust import TrustedServers

log = structlog.get_logger(__name__)


class Gateway:
    """Listens, and keeps the sessions."""

    def __init__(
        self,
        service_url: str,
        topics: TrackedTopics,
        failures: Failures,
        max_connections: int,
        limits: ConnectionLimits,
        randbits: RandBits = system_randbits,
        trusted: TrustedServers | None = None,
        tracking: Tracking | None = None,
    ) -> None:
        """`service_url`: the broker that sessions connect to first; `trusted`: what those with TLS are checked by.

        `tracking`: which subscriptions are dispatched here.
        """
        self.tracking = Tracking() if tracking is None else tracking
        self.trusted = TrustedServers() if trusted is None else trusted
        self.service_url = service_url
        self.topics = topics
        self.limits = limits
        self.log = LimitedLog(limits)
        self._failures = failures
        self.randbits = randbits
        self._max_connections = max_connections
        self._sessions: dict[ClientSession, None] = {}  # in the order they came
        self._plain: list[PlainListener] = []
        self.tls: list[TlsListener] = []
        """The ports for clients that come by TLS."""
        self._empty = asyncio.Event()

    @property
    def connections(self) -> int:
        """Client connections now."""
        return len(self._sessions)

    @property
    def broker_connections(self) -> int:
        """Connections to brokers on behalf of clients."""
        return sum(session.broker_connections for session in self._sessions)

    async def start(self, plain: Iterable[socket.socket], tls: Iterable[TlsPort] = ()) -> None:
        """Listen on bound sockets, and on some for TLS."""
        on_ended = partial(self._failures.note, Part.elsewhere, "a part of the port for clients has ended")
        for bound in plain:
            self._plain.append(PlainListener(bound, lambda: ClientSession(self), on_ended, self.log, self.limits))
        for port in tls:
            make = partial(ClientSession, self, by_tls=True)
            self.tls.append(TlsListener(port, make, self._has_room, self._failures, self.log, self.limits))
        for each in self._plain:
            each.start()
        for secured in self.tls:
            secured.start()

    @property
    def failed_handshakes(self) -> int:
        """Connections to the ports with TLS that were closed before they had begun."""
        return sum(each.failed_handshakes for each in self.tls)

    def _has_room(self) -> bool:
        handshakes = sum(each.handshakes for each in self.tls)
        return len(self._sessions) + handshakes < self._max_connections

    async def stop_listening(self) -> None:
        """Take no new clients."""
        for each in self._plain:
            await each.stop()
        for secured in self.tls:
            await secured.stop()

    async def close(self) -> None:
        """End every session."""
        await self.stop_listening()
        for session in list(self._sessions):
            session.end("the bridge is stopping")
        self._empty.clear()
        if self._sessions:
            await self._empty.wait()  # each session is cut after `close_timeout_s` at the latest
        self.log.close()

    # -- SessionHost

    def opened(self, session: ClientSession) -> bool:
        """Count a session in."""
        self._sessions[session] = None
        return len(self._sessions) <= self._max_connections

    def failed(self, peer: str, error: Exception) -> None:
        """Tell and count an error that ends a session: a client may cause as many as it likes."""
        self._failures.counts[Part.client] += 1
        self.log.critical("client session failed", peer, error)

    def closed(self, session: ClientSession) -> None:
        """Count a session out."""
        self._sessions.pop(session, None)
        if not self._sessions:
            self._empty.set()
