"""Connections accepted one after the other, with pauses: a crowd that comes at once leaves others their turn.

The loops' own servers take all that wait in one go, and tell nobody when they cannot.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable

from bridge.limits import ConnectionLimits
from bridge.net.limited_log import LimitedLog
from bridge.net.tasks import Tasks

_BACKLOG = 1_024
"""Connections that the system holds until they are accepted: more than for other servers, for it takes longer."""


class Acceptor:
    """`start`, then `stop`."""

    def __init__(
        self,
        bound: socket.socket,
        begin: Callable[[socket.socket, str], Awaitable[None]],
        on_failed: Callable[[Exception], None],
        log: LimitedLog,
        limits: ConnectionLimits,
    ) -> None:
        """`begin` gets each connection and whose it is; the next one is accepted when it returns."""
        self._bound = bound
        self._begin = begin
        self._log = log
        self._limits = limits
        self._work = Tasks(on_failed)

    def start(self) -> None:
        """Listen."""
        self._bound.listen(_BACKLOG)
        self._work.spawn(self._accept())

    async def stop(self) -> None:
        """Take no more."""
        await self._work.end()
        self._bound.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._bound)
            except ConnectionAbortedError:  # it was gone before it was its turn
                continue
            except OSError as error:  # no file is left to open: others have to be closed first
                self._log.warning("cannot accept connections", ":", "accept", reason=str(error))
                await asyncio.sleep(self._limits.accept_again_s)
                continue
            await self._begin(connection, f"{address[0]}:{address[1]}")
            del connection  # until the next one comes it would keep all that hangs on it in memory
            await self._pause(loop)

    async def _pause(self, loop: asyncio.AbstractEventLoop) -> None:
        """What a connection costs comes later, and in one go where a broker answers many at once."""
        pause_s, began = self._limits.accept_pause_s, loop.time()
        await asyncio.sleep(pause_s)
        behind_s = loop.time() - began - pause_s
        if behind_s > pause_s:
            await asyncio.sleep(min(2 * behind_s, self._limits.accept_pause_max_s))


class PlainListener:
    """Connections that begin at once; `start`, then `stop`."""

    def __init__(
        self,
        bound: socket.socket,
        make: Callable[[], asyncio.BaseProtocol],
        on_failed: Callable[[Exception], None],
        log: LimitedLog,
        limits: ConnectionLimits,
    ) -> None:
        """`make`: the protocol of a connection."""
        self._make = make
        self._openings = Tasks(on_failed)
        self._acceptor = Acceptor(bound, self._begin, on_failed, log, limits)
        self.start = self._acceptor.start

    async def stop(self) -> None:
        """Take no more."""
        await self._acceptor.stop()
        await self._openings.end()

    async def _begin(self, connection: socket.socket, peer: str) -> None:
        self._openings.spawn(self._open(connection))

    async def _open(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._make, connection)
        except OSError:  # it is gone already
            connection.close()
        except BaseException:
            connection.close()
            raise
