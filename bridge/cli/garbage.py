"""Python's cyclic garbage collector, kept away from deliveries.

A full collection walks every container in memory: with some hundred thousand near-term entries that is a pause of
50-100 ms, at a moment of the interpreter's choosing. What the bridge holds per entry has no cycles and is freed by
reference counts alone; cycles come from ended sessions and tasks, so a full collection can wait for a quiet moment.
"""

import asyncio
import gc
from collections.abc import Callable

from bridge.limits import MemoryLimits

YOUNG_THRESHOLD = 10_000
MIDDLE_THRESHOLD = 50
NEVER = 1_000_000_000


def keep_away() -> None:
    """From now on collect young containers only."""
    gc.collect()
    gc.freeze()  # modules and classes live as long as the process
    gc.set_threshold(YOUNG_THRESHOLD, MIDDLE_THRESHOLD, NEVER)


async def collect_when_quiet(activity: Callable[[], int], limits: MemoryLimits) -> None:
    """Until cancelled. `activity` counts deliveries; a look without any since the last is quiet. Undone at the end."""
    before = gc.get_threshold()
    keep_away()
    loop = asyncio.get_running_loop()
    collected, seen = loop.time(), activity()
    try:
        while True:
            await asyncio.sleep(limits.collect_look_s)
            quiet, seen = activity() == seen, activity()
            since = loop.time() - collected
            if (quiet and since > limits.collect_quiet_s) or since > limits.collect_at_latest_s:
                gc.collect()
                collected = loop.time()
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
