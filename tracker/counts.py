"""What comes due when, from the partition table: only time partitions that a bound cuts through are read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from tracker.keys import KEY, key_time, time_bound
from tracker.near.window import NearTermWindow
from tracker.partitions.page import PAGE_PARTITIONS
from tracker.partitions.reader import DiskReader
from tracker.partitions.table import PartitionTable
from tracker.views.view import SubscriptionView

MIN_STEP_MS = 1_000


class Bucket(NamedTuple):
    """So many entries are due in [start_ms, start_ms + step)."""

    start_ms: int
    entries: int


class Bar(NamedTuple):
    """The time partitions of a stretch of due time together; `pending` is None without a view.

    Partitions that the near-term window reaches count as memory, the others as disk.
    """

    start_ms: int
    entries: int
    bytes: int
    memory_entries: int
    memory_bytes: int
    pending: int | None


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
        sums = _PageSums(self._table, view)
        for number in range(steps):
            start = start_ms + number * step_ms
            yield Bucket(start, self._between(start, start + step_ms, view, sums))

    def between(self, start_ms: int, end_ms: int, view: SubscriptionView | None) -> int:
        """Return how many entries are due in [start_ms, end_ms)."""
        return self._between(start_ms, end_ms, view, _PageSums(self._table, view))

    def about(self, start_ms: int, ends_ms: Sequence[int], view: SubscriptionView | None) -> list[int]:
        """Return about how many entries are due from a time on before each of some ends, ascending; reads none.

        Of a time partition that a bound cuts, a share is counted: exact where the near-term window reaches, else as if
        its entries were spread evenly.
        """
        width = self._table.width_ms
        first = start_ms // width
        begin = self._share(first, start_ms, (first + 1) * width, view)
        found, whole, reached = [], 0, first + 1
        for end in ends_ms:
            last = (end - 1) // width
            if last == first:
                found.append(self._share(first, start_ms, end, view))
                continue
            if last > reached:
                whole, reached = whole + self._whole(reached, last, view), last
            found.append(begin + whole + self._share(last, last * width, end, view))
        return found

    def bars(self, first: int, per_bar: int, count: int, view: SubscriptionView | None) -> Iterator[Bar]:
        """Yield `count` bars of `per_bar` time partitions from the partition number `first` on, one at a time.

        With whole pages to a bar (`first` and `per_bar` multiples of PAGE_PARTITIONS) a hundred thousand partitions
        take a few milliseconds.
        """
        for start in range(first, first + count * per_bar, per_bar):
            yield self._bar(start, start + per_bar, view)

    def _bar(self, first: int, end: int, view: SubscriptionView | None) -> Bar:
        entries = size = memory_entries = memory_bytes = pending = 0
        for page in self._table.pages_between(first, end):
            start = page.number * PAGE_PARTITIONS
            low, high = max(first - start, 0), min(end - start, PAGE_PARTITIONS)
            counts, sizes = page.counts[low:high], page.sizes[low:high]
            entries, size = entries + sum(counts), size + sum(sizes)
            if view is not None:
                pending += sum(counts) - view.counter.acked_between(page.number, low, high)
            near_low, near_high = self._near(start + low, start + high)
            memory_entries += sum(page.counts[near_low - start : near_high - start])
            memory_bytes += sum(page.sizes[near_low - start : near_high - start])
        start_ms = first * self._table.width_ms
        return Bar(start_ms, entries, size, memory_entries, memory_bytes, None if view is None else pending)

    def _near(self, first: int, end: int) -> tuple[int, int]:
        """Return those of the partitions first <= number < end that the window reaches, as such a range."""
        width, window = self._table.width_ms, self._window
        if window.low == window.high:
            return first, first
        low, high = key_time(window.low) // width, -(-key_time(window.high) // width)
        return min(max(first, low), end), min(max(first, high), end)

    def _whole(self, first: int, end: int, view: SubscriptionView | None) -> int:
        """Count the entries of the partitions first <= number < end, page by page."""
        found = 0
        for page in self._table.pages_between(first, end):
            start = page.number * PAGE_PARTITIONS
            low, high = max(first - start, 0), min(end - start, PAGE_PARTITIONS)
            if high - low == PAGE_PARTITIONS:
                found += page.total - (0 if view is None else view.counter.acked_on_page(page.number))
            else:
                acked = 0 if view is None else view.counter.acked_between(page.number, low, high)
                found += sum(page.counts[low:high]) - acked
        return found

    def _share(self, number: int, start_ms: int, end_ms: int, view: SubscriptionView | None) -> int:
        known = self._table.entries_in(number) - (0 if view is None else view.counter.acked_in(number))
        if not known:
            return 0
        start, end = time_bound(start_ms), time_bound(end_ms)
        if self._window.covers(start) and end <= self._window.high:
            return min(self._window.count(start, end), known)
        return round(known * (end_ms - start_ms) / self._table.width_ms)

    def _between(self, start_ms: int, end_ms: int, view: SubscriptionView | None, sums: _PageSums) -> int:
        start_ms, width = max(start_ms, 0), self._table.width_ms
        first, end = -(-start_ms // width), end_ms // width
        if first > end:  # both bounds in one partition
            return self._read(start_ms, end_ms, view)
        count = sums.between(first, end)
        if start_ms < first * width:
            count += self._read(start_ms, first * width, view)
        if end * width < end_ms:
            count += self._read(end * width, end_ms, view)
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


class _PageSums:
    """Running sums over the pages of a table, as they are now."""

    def __init__(self, table: PartitionTable, view: SubscriptionView | None) -> None:
        self._table = table
        self._counter = None if view is None else view.counter
        self._numbers = [page.number for page in table.pages()]
        totals = [page.total for page in table.pages()]
        if self._counter is not None:
            acked = self._counter.acked_on_page
            totals = [total - acked(number) for number, total in zip(self._numbers, totals, strict=True)]
        self._sums = [0, *accumulate(totals)]

    def between(self, first: int, end: int) -> int:
        """Count the partitions with first <= number < end: whole pages, and parts of one at either end."""
        first_page, end_page = -(-first // PAGE_PARTITIONS), end // PAGE_PARTITIONS
        if first_page > end_page:  # within one page
            return self._part(end_page, first, end)
        numbers = self._numbers
        whole = self._sums[bisect_left(numbers, end_page)] - self._sums[bisect_left(numbers, first_page)]
        start, rest = first_page * PAGE_PARTITIONS, end_page * PAGE_PARTITIONS
        return whole + self._part(first_page - 1, first, start) + self._part(end_page, rest, end)

    def _part(self, page_number: int, first: int, end: int) -> int:
        page = self._table.page(page_number)
        if first == end or page is None:
            return 0
        low, high = first - page_number * PAGE_PARTITIONS, end - page_number * PAGE_PARTITIONS
        count: int = sum(page.counts[low:high])
        return count if self._counter is None else count - self._counter.acked_between(page_number, low, high)
