"""Connections that begin with a TLS handshake.

The loop's own server says nothing of a handshake that fails, and cannot be given another certificate.
"""

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from bridge.limits import ConnectionLimits
from bridge.net.acceptor import Acceptor
from bridge.net.certificates import ServerCertificate
from bridge.net.failures import Failures, Part
from bridge.net.limited_log import LimitedLog
from bridge.net.tasks import Tasks


class TlsPort(NamedTuple):
    """A bound socket, and what is shown there."""

    bound: socket.socket
    certificate: ServerCertificate
    watched: bool = True
    """Whether the listener looks after the certificate; another one may do that for both."""


class TlsListener:
    """`start`, then `stop`. A connection is handed on once its handshake is done."""

    def __init__(
        self,
        port: TlsPort,
        make: Callable[[], asyncio.BaseProtocol],
        has_room: Callable[[], bool],
        failures: Failures,
        log: LimitedLog,
        limits: ConnectionLimits,
    ) -> None:
        """`make`: the protocol of a connection; `has_room`: whether one more may begin, those under way counted."""
        self.certificate = port.certificate
        self.failed_handshakes = 0
        """Connections that were closed before they had begun: refused, given up, or too slow."""
        self._watched = port.watched
        self._make = make
        self._has_room = has_room
        self._limits = limits
        self._log = log
        self._handshakes = Tasks(lambda error: failures.note(Part.client, "a TLS handshake failed", error))
        on_ended = partial(failures.note, Part.elsewhere, "a part of the TLS port has ended")
        self._work = Tasks(on_ended)
        self._acceptor = Acceptor(port.bound, self._begin, on_ended, log, limits, limits.handshake_pause_s)

    @property
    def handshakes(self) -> int:
        """Those under way."""
        return len(self._handshakes)

    def start(self) -> None:
        """Listen, and look after the certificate."""
        self._acceptor.start()
        if self._watched:
            self._work.spawn(self.certificate.watch(self._limits.certificate_check_s))

    async def stop(self) -> None:
        """Take no more, and leave the handshakes under way."""
        await self._acceptor.stop()
        await self._work.end()
        await self._handshakes.end()

    def _begin(self, connection: socket.socket, peer: str) -> None:
        if self._has_room():
            self._handshakes.spawn(self._shake_hands(connection, peer))
        else:
            connection.close()
            self._note_failed(peer, "room", "too many client connections")

    async def _shake_hands(self, connection: socket.socket, peer: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make,
                connection,
                ssl=self.certificate.context,
                ssl_handshake_timeout=self._limits.handshake_timeout_s,
                ssl_shutdown_timeout=self._limits.close_timeout_s,
            )
        except OSError as error:  # those of TLS are such, too
            connection.close()
            self._note_failed(peer, getattr(error, "reason", None) or type(error).__name__, str(error))
        except BaseException:
            connection.close()
            raise

    def _note_failed(self, peer: str, kind: str, reason: str) -> None:
        self.failed_handshakes += 1
        self._log.warning("TLS handshake failed", peer, kind, reason=reason)
