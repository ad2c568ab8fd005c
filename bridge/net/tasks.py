"""Tasks that belong together: none of them fails without a word, and none outlives the others' end."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Tasks:
    """Started by `spawn`, ended by `end`."""

    def __init__(self, on_failed: Callable[[Exception], None]) -> None:
        """`on_failed` is told of each error that a task ends by; being cancelled is none."""
        self.on_failed = on_failed
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order they came

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run work until it ends, or these tasks do."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_done)
        return task

    def guarded(self, callback: Callable[P, None]) -> Callable[P, None]:
        """A callback whose errors are told as those of tasks are: for timers, and for others to call."""

        def call(*args: P.args, **named: P.kwargs) -> None:
            try:
                callback(*args, **named)
            except Exception as error:
                self.on_failed(error)

        return call

    async def end(self) -> None:
        """Cancel what is under way, and wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.on_failed(error)


async def all_of(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What each of them returns. The first error is raised once all have ended: none goes on unseen."""
    tasks = [asyncio.get_running_loop().create_task(each) for each in works]
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


async def beside(work: Coroutine[Any, Any, T], aside: Coroutine[Any, Any, None]) -> T:
    """Run `aside` for as long as `work` takes; returns what that does. An error of either ends both, and is raised."""
    loop = asyncio.get_running_loop()
    tasks = (loop.create_task(work), loop.create_task(aside))
    main, other = tasks
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if other.done() and not main.done():
            other.result()
        return await main
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
