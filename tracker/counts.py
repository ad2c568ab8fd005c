"""What comes due when, from the partition table: only time partitions that a bound cuts through are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tracker.keys import KEY, time_bound
from tracker.partition_page import PAGE_PARTITIONS
from tracker.partitions import PartitionTable
from tracker.reader import DiskReader
from tracker.view import SubscriptionView
from tracker.window import NearTermWindow

MIN_STEP_MS = 1_000


class Bucket(NamedTuple):
    """So many entries are due in [start_ms, start_ms + step)."""

    start_ms: int
    entries: int


class Counts:
    """Counts of one index, of all entries or of those a view has not acked."""

    def __init__(self, table: PartitionTable, window: NearTermWindow, disk: DiskReader) -> None:
        """Read a table, and where a bound cuts a partition, the window or the disk."""
        self._table = table
        self._window = window
        self._disk = disk

    def pending(self, view: SubscriptionView) -> int:
        """Return how many entries a view has not acked; too many while `view.counter.settled` is False."""
        return self._table.entries - view.counter.total

    def histogram(self, start_ms: int, step_ms: int, steps: int, view: SubscriptionView | None) -> Iterator[Bucket]:
        """Yield `steps` buckets from a start, one at a time: a caller with other work may pause in between.

        Raises ValueError for a step below a second. A bucket costs as much as the partitions its bounds cut hold;
        bounds at multiples of the partition width cut none.
        """
        if step_ms < MIN_STEP_MS:
            raise ValueError(f"a histogram needs a step of at least {MIN_STEP_MS} ms, not {step_ms}")
        for number in range(steps):
            start = start_ms + number * step_ms
            yield Bucket(start, self.between(start, start + step_ms, view))

    def between(self, start_ms: int, end_ms: int, view: SubscriptionView | None) -> int:
        """Return how many entries are due in [start_ms, end_ms)."""
        start_ms, width = max(start_ms, 0), self._table.width_ms
        first, end = -(-start_ms // width), end_ms // width
        if first > end:  # both bounds in one partition
            return self._read(start_ms, end_ms, view)
        count = self._whole(first, end, view)
        if start_ms < first * width:
            count += self._read(start_ms, first * width, view)
        if end * width < end_ms:
            count += self._read(end * width, end_ms, view)
        return count

    def _whole(self, first: int, end: int, view: SubscriptionView | None) -> int:
        """Count the partitions with first <= number < end."""
        count = 0
        for page in self._table.pages_between(first, end):
            base = page.number * PAGE_PARTITIONS
            low, high = max(first - base, 0), min(end - base, PAGE_PARTITIONS)
            count += page.total if high - low == PAGE_PARTITIONS else sum(page.counts[low:high])
            if view is not None:
                count -= view.counter.acked_between(page.number, low, high)
        return count

    def _read(self, start_ms: int, end_ms: int, view: SubscriptionView | None) -> int:
        """Count entries one by one, in a stretch within one partition."""
        if not self._table.entries_in(start_ms // self._table.width_ms):
            return 0
        start, end = time_bound(start_ms), time_bound(end_ms)
        in_memory = self._window.covers(start) and end <= self._window.high
        if view is None:
            return self._window.count(start, end) if in_memory else sum(1 for _ in self._disk.keys(start, end))
        keys = (due.key for due in self._window.slice(start, end)) if in_memory else self._disk.keys(start, end)
        contains = view.acks.contains
        return sum(1 for _, ledger, entry in map(KEY.unpack, keys) if not contains(ledger, entry))
