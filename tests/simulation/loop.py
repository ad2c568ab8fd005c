"""An event loop in virtual time: when nothing is left to do now, it is later."""

from __future__ import annotations

import asyncio
import collections
import contextvars
import heapq
import itertools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.hosts import process_of

if TYPE_CHECKING:
    from tests.simulation.network import Network


class Stuck(Exception):
    """Nothing will ever happen again, and the work is not done."""


class _Handle(asyncio.TimerHandle):
    """A callback, now or at a time; a killed process is not called."""

    __slots__ = ("_process",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: VirtualLoop,
        context: contextvars.Context | None,
    ) -> None:
        # In full: there are 100 of them a simulated second, and what the base class does besides is for debugging.
        self._process = process_of(context)
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._source_traceback = None
        self._repr = None
        self._when = when
        self._scheduled = False

    def _run(self) -> None:
        if self._process is not None and not self._process.alive:
            return
        try:
            self._context.run(self._callback, *self._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._loop.call_exception_handler(
                {"message": f"Exception in callback {self._callback!r}", "exception": error, "handle": self}
            )


class VirtualLoop(asyncio.BaseEventLoop):
    """Of each simulated world one; sockets are the network's, threads are events.

    Same callbacks, same order, same times for the same `chance`, on any machine.
    """

    def __init__(self, chance: random.Random) -> None:
        """It is 0 s."""
        super().__init__()
        self.network: Network
        self._chance = chance
        self._now = 0.0
        self._timers: list[tuple[float, int, _Handle]] = []
        self._count = itertools.count()
        self.set_exception_handler(self._keep_failure)
        self.failures: list[dict[str, Any]] = []
        """What nobody expected: exceptions in callbacks and in tasks that nobody waits for."""

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    # In the place of asyncio's own: nothing is waited for, and no system call made.
    def _run_once(self) -> None:
        # A microsecond for each turn: time passes while a program works, and turns of one instant have an order.
        self._now += 1e-6
        ready: collections.deque[_Handle] = self._ready  # type: ignore[attr-defined]
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                raise Stuck
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As usual; a killed process is not called."""
        handle = _Handle(self._now, callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As usual; a killed process is not called."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As usual; a killed process is not called."""
        handle = _Handle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._count), handle))
        return handle

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call it a little later, as a thread would."""
        process = process_of(None)
        least, most = (0.0001, 0.001) if process is None else process.host.calls_s
        done: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except Exception as error:
                if not done.cancelled():
                    done.set_exception(error)
            else:
                if not done.cancelled():
                    done.set_result(result)

        self.call_later(self._chance.uniform(least, most), run)
        return done

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """As usual; its process knows it."""
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        process = process_of(options.get("context"))
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(process.tasks.pop)
        return task

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: object
    ) -> tuple[asyncio.Transport, Any]:
        """Connect to a simulated host."""
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], *, sock: Any, **_: object
    ) -> Any:
        """Listen at the simulated address that `sock` is bound to."""
        return self.network.listen(lambda end: end.open(protocol_factory()), sock)

    async def sock_accept(self, sock: Any) -> Any:
        """Wait for a connection at a socket of the simulated network."""
        return await sock.accept()

    async def connect_accepted_socket(
        self, protocol_factory: Callable[[], Any], sock: Any, **_: object
    ) -> tuple[asyncio.Transport, Any]:
        """Begin to use it."""
        sock.end.open(protocol_factory())
        if sock.end.lost:  # before anybody was there to be told
            sock.end.schedule(sock.end.protocol.connection_lost, ConnectionResetError("connection reset by peer"))
        return sock.end, sock.end.protocol

    def _keep_failure(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(context)
        self.stop()  # so that the history ends where it happened

    def _write_to_self(self) -> None:
        """Nobody calls from other threads."""
