"""An event loop in virtual time: when nothing is left to do now, it is later."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.hosts import process_of

if TYPE_CHECKING:
    from tests.simulation.network import Network


class Stuck(Exception):
    """Nothing will ever happen again, and the work is not done."""


class _Selector:
    """In the place of the operating system's: waiting takes no time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        if timeout is None:
            raise Stuck
        if timeout > 0:
            self._loop.skip()
        return []


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
        self._selector = _Selector(self)
        self.set_exception_handler(self._keep_failure)
        self.failures: list[dict[str, Any]] = []
        """What nobody expected: exceptions in callbacks and in tasks that nobody waits for."""

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def skip(self) -> None:
        """Go on to when the next callback is due."""
        self._now = max(self._now, self._scheduled[0].when())  # type: ignore[attr-defined]

    # A microsecond for each turn: time passes while a program works, and turns of one instant have an order.
    def _run_once(self) -> None:
        self._now += 1e-6
        super()._run_once()  # type: ignore[misc]

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As usual; a killed process is not called."""
        process = process_of(context)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(process.call, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As usual; a killed process is not called."""
        process = process_of(context)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, process.call, callback, *args, context=context)

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
        return self.network.listen(protocol_factory, sock)

    def _keep_failure(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(context)

    def _process_events(self, event_list: list[object]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Nobody calls from other threads."""
