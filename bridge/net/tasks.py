"""Tasks that belong together: none of them fails without a word, and none outlives the others' end."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Tasks:
    """Started by `spawn`, ended by `end`."""

    def __init__(self, on_failed: Callable[[Exception], None]) -> None:
        """`on_failed` is told of each error that a task ends by; being cancelled is none."""
        self._on_failed = on_failed
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

    async def end(self) -> None:
        """Cancel what is under way, and wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._on_failed(error)


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
