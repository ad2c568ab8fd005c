"""Machines of a simulated world: each has a clock, a disk, and programs that may be killed at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tests.simulation.disk import Disk

T = TypeVar("T")

EPOCH_MS = 1_800_000_000_000
"""When a simulated world begins."""
_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Process:
    """Everything that one program on a machine does; once killed, none of its callbacks is called any more."""

    def __init__(self, host: Host) -> None:
        """It lives."""
        self.host = host
        host.processes.append(self)
        self.alive = True
        self.connections: dict[Any, None] = {}
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """Those that are not done: who waits for what nobody else knows of would be collected as garbage."""
        self.context = contextvars.copy_context()
        self.context.run(_process.set, self)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in this process."""
        return asyncio.get_running_loop().create_task(work, context=self.context)

    def bury(self) -> None:
        """Have its coroutines let go of what they hold, when the world has ended: nobody is to see it."""
        self.alive = False
        for task in list(self.tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine: Any = task.get_coro()
            with contextlib.suppress(BaseException):
                coroutine.close()

    def kill(self) -> None:
        """At once: nothing is finished, nobody is told; the machine closes its connections."""
        self.alive = False
        for connection in list(self.connections):
            connection.killed()


class Host:
    """A machine."""

    def __init__(self, name: str, now_s: Callable[[], float], chance: random.Random) -> None:
        """`now_s`: true time since the world began, in seconds."""
        self.name = name
        self.disk = Disk()
        self.chance = chance
        self.offset_ns = 0
        """How far its clock is ahead of true time."""
        self.drift = 0.0
        """Seconds gained a second."""
        self.processes: list[Process] = []
        self.calls_s = (0.0001, 0.003)
        """How long what runs in a thread takes: at least, at most."""
        self._now_s = now_s

    def drift_by(self, drift: float) -> None:
        """Gain so many seconds a second from now on."""
        self.offset_ns += round(self._now_s() * (self.drift - drift) * 1e9)
        self.drift = drift

    def now_ns(self) -> int:
        """Its wall clock."""
        return EPOCH_MS * 1_000_000 + round(self._now_s() * (1 + self.drift) * 1e9) + self.offset_ns

    def now_ms(self) -> int:
        """Its wall clock, in ms."""
        return self.now_ns() // 1_000_000


def process_of(context: contextvars.Context | None) -> Process | None:
    """Whose callback it is that is to be called in a context, the current one for None."""
    return _process.get() if context is None else context.get(_process)
