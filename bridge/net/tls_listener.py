"""Connections that begin with a TLS handshake.

The loop's own server says nothing of a handshake that fails, and cannot be given another certificate. This one accepts
by itself, one connection after the other with a pause between: a crowd that comes at once leaves others their turn.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import NamedTuple

from bridge.limits import ConnectionLimits
from bridge.net.certificates import ServerCertificate
from bridge.net.failures import Failures, Part
from bridge.net.limited_log import LimitedLog
from bridge.net.tasks import Tasks

_BACKLOG = 1_024
"""Connections that the system holds until they are accepted: more than for other servers, for it takes longer."""


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
        self._listening = port.bound
        self._watched = port.watched
        self._make = make
        self._has_room = has_room
        self._limits = limits
        self._log = log
        self._handshakes = Tasks(lambda error: failures.note(Part.client, "a TLS handshake failed", error))
        self._work = Tasks(lambda error: failures.note(Part.elsewhere, "a part of the TLS port has ended", error))

    @property
    def handshakes(self) -> int:
        """Those under way."""
        return len(self._handshakes)

    def start(self) -> None:
        """Listen, and look after the certificate."""
        self._listening.listen(_BACKLOG)
        self._work.spawn(self._accept())
        if self._watched:
            self._work.spawn(self.certificate.watch(self._limits.certificate_check_s))

    async def stop(self) -> None:
        """Take no more, and leave the handshakes under way."""
        await self._work.end()
        self._listening.close()
        await self._handshakes.end()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._listening)
            except ConnectionAbortedError:  # it was gone before it was its turn
                continue
            except OSError as error:  # no file is left to open: others have to be closed first
                self._log.warning("cannot accept TLS connections", ":", "accept", reason=str(error))
                await asyncio.sleep(self._limits.accept_pause_s)
                continue
            peer = f"{address[0]}:{address[1]}"
            if self._has_room():
                self._handshakes.spawn(self._shake_hands(connection, peer))
            else:
                connection.close()
                self._note_failed(peer, "room", "too many client connections")
            await asyncio.sleep(self._limits.handshake_pause_s)

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
