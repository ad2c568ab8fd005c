"""Garbage collection waits for a quiet moment."""

import asyncio
import contextlib
import gc

from bridge.cli import garbage
from bridge.limits import MemoryLimits
from tests.helpers import wait_until_async


async def test_full_collections_wait_for_quiet() -> None:
    """None while something is delivered, one soon after; everything is as before in the end."""
    before = gc.get_threshold()
    full = 0
    delivered = 0
    busy = True

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal full
        full += phase == "stop" and info["generation"] == 2

    def activity() -> int:
        nonlocal delivered
        delivered += busy
        return delivered

    gc.callbacks.append(note)
    task = asyncio.create_task(
        garbage.collect_when_quiet(activity, MemoryLimits(collect_look_s=0.01, collect_quiet_s=0.0))
    )
    try:
        await wait_until_async(lambda: delivered > 20, "twenty busy looks")
        assert gc.get_threshold()[2] == garbage.NEVER
        assert full == 1  # the one at its start
        busy = False
        await wait_until_async(lambda: full > 1, "a collection")
    finally:
        gc.callbacks.remove(note)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert gc.get_threshold() == before
