"""Connections that begin with a TLS handshake.

The loop's own server says nothing of a handshake that fails, and cannot be given another certificate.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
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


class Turns:
    """How many handshakes are under way that may have something to do; who keeps others waiting does not count."""

    def __init__(self, limits: ConnectionLimits) -> None:
        """None is taken."""
        self._limits = limits
        self._taken: dict[object, asyncio.TimerHandle] = {}
        self._free = asyncio.Event()
        self._free.set()

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """One of them, for a moment at most."""
        turn = object()
        later = asyncio.get_running_loop().call_later(self._limits.handshake_turn_s, self._give_back, turn)
        self._taken[turn] = later
        if len(self._taken) >= self._limits.handshakes_at_once:
            self._free.clear()
        try:
            yield
        finally:
            later.cancel()
            self._give_back(turn)

    async def free(self) -> None:
        """Wait until there is one."""
        await asyncio.sleep(0)  # what was begun takes its turn first
        await self._free.wait()

    def _give_back(self, turn: object) -> None:
        self._taken.pop(turn, None)
        if len(self._taken) < self._limits.handshakes_at_once:
            self._free.set()


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
        self._turns = Turns(limits)
        self._acceptor = Acceptor(port.bound, self._begin, on_ended, log, limits)

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

    async def _begin(self, connection: socket.socket, peer: str) -> None:
        if self._has_room():
            self._handshakes.spawn(self._in_its_turn(connection, peer))
            await self._turns.free()
        else:
            connection.close()
            self._note_failed(peer, "room", "too many client connections")

    async def _in_its_turn(self, connection: socket.socket, peer: str) -> None:
        with self._turns.taken():
            await self._shake_hands(connection, peer)

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
