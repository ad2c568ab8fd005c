"""Small helpers for tests."""

# ruff: noqa: ASYNC109 - the condition is polled once more at the deadline, so no scope may cut it short

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

import psutil

T = TypeVar("T")


def examples(usual: int, fast: int) -> int:
    """How many examples of a model are tried: fewer in `make fast`."""
    return fast if os.environ.get("DELAY_BRIDGE_FAST") == "1" else usual


class NotInTimeError(AssertionError):
    """A condition waited for did not hold in time; the message says which and what was seen last."""


def wait_until(
    predicate: Callable[[], T], what: str | None = None, *, timeout: float = 10.0, interval: float = 0.02
) -> T:
    """Calls `predicate` every `interval` seconds until it gives something true, and returns that.

    Raises NotInTimeError after `timeout` seconds, with `what` (by default the predicate's name and place).
    """
    deadline = time.monotonic() + timeout
    while not (result := predicate()):
        if time.monotonic() >= deadline:
            raise NotInTimeError(_missed(predicate, what, timeout, result))
        time.sleep(interval)
    return result


@overload
async def wait_until_async(
    predicate: Callable[[], Awaitable[T]], what: str | None = None, *, timeout: float = 10.0, interval: float = 0.02
) -> T: ...


@overload
async def wait_until_async(
    predicate: Callable[[], T], what: str | None = None, *, timeout: float = 10.0, interval: float = 0.02
) -> T: ...


async def wait_until_async(
    predicate: Callable[[], Any],
    what: str | None = None,
    *,
    timeout: float = 10.0,
    interval: float = 0.02,
) -> Any:
    """`wait_until` for asynchronous tests; `predicate` may be a plain or a coroutine function."""
    deadline = time.monotonic() + timeout
    while True:
        outcome = predicate()
        result = await outcome if isinstance(outcome, Awaitable) else outcome
        if result:
            return result
        if time.monotonic() >= deadline:
            raise NotInTimeError(_missed(predicate, what, timeout, result))
        await asyncio.sleep(interval)


def _missed(predicate: Callable[..., object], what: str | None, timeout: float, last: object) -> str:
    if what is None:
        code = getattr(predicate, "__code__", None)
        place = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
        what = getattr(predicate, "__qualname__", repr(predicate)) + place
    return f"not within {timeout:g} s: {what}; last seen: {last!r}"


def children_with(pid: int, word: str) -> list[psutil.Process]:
    """Child processes with a word in their command lines; one that has just ended is none."""
    found = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if word in " ".join(child.cmdline()):
                found.append(child)
    return found
