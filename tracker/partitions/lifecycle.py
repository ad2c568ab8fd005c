"""The life of a time partition, as a table.

| state     | entered when                                    | its entries are                               |
| --------- | ----------------------------------------------- | --------------------------------------------- |
| on disk   | its first entry is stored, or memory was needed | on disk                                       |
| loading   | reading ahead has reached it, not passed it     | on disk, the first of them in memory too      |
| in memory | reading ahead has passed it                     | on disk and in memory; late ones go to both   |
| draining  | its time has come                               | handed out from memory, or streamed from disk |
| dropped   | its time has passed and no view needs it        | gone, and their disk space is given back      |

A state is read off the table, the near-term window and the clock, never stored, so it cannot disagree with them. A
partition larger than the memory budget stays `loading` until its time has come, and is streamed. The window gives up
what lies farthest ahead when nearer entries arrive: from `in memory` back to `loading` or `on disk`.
"""

from __future__ import annotations

from enum import Enum

from tracker.keys import key_time
from tracker.near.window import NearTermWindow
from tracker.partitions.page import PAGE_PARTITIONS, PartitionCounters
from tracker.partitions.table import PartitionTable


class PartitionState(Enum):
    """Where a time partition stands in its life."""

    ON_DISK = "on disk"
    LOADING = "loading"
    IN_MEMORY = "in memory"
    DRAINING = "draining"
    DROPPED = "dropped"


def state_of(known: PartitionCounters, window: NearTermWindow, now_ms: int) -> PartitionState:
    """Return the state of a partition that holds entries."""
    if key_time(known.first_key) <= now_ms:
        return PartitionState.DRAINING
    if window.low == window.high or window.high <= known.first_key or known.end_key <= window.low:
        return PartitionState.ON_DISK
    if window.low <= known.first_key and known.end_key <= window.high:
        return PartitionState.IN_MEMORY
    return PartitionState.LOADING


def partitions_in_memory(table: PartitionTable, window: NearTermWindow) -> int:
    """Return how many time partitions are in memory, at least in part."""
    if not len(window):
        return 0
    first, end = key_time(window.low) // table.width_ms, -(-key_time(window.high) // table.width_ms)
    found = 0
    for page in table.pages_between(first, end):
        start = page.number * PAGE_PARTITIONS
        low, high = max(first - start, 0), min(end - start, PAGE_PARTITIONS)
        found += len(page) if high - low == PAGE_PARTITIONS else high - low - page.counts[low:high].count(0)
    return found
