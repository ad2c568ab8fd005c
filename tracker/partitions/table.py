"""The time partitions of a topic and their counters."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from sortedcontainers import SortedDict

from tracker.keys import key_time
from tracker.partitions.page import FIELDS, PAGE_PARTITIONS, PartitionCounters, PartitionPage
from tracker.partitions.positions import PlacedEntry
from tracker.position import Position

ANY_PARTITION = 2**62
"""As the highest number of a dropped partition: any may have been."""

_NEVER = 2**64


class PartitionTable:
    """All time partitions of a topic, by number (due time divided by the width), with running totals.

    `dirty` holds the pages that changed since they were stored last, `dropped_number` is the highest number of a
    partition that was ever dropped. `loading`: positions may be noted of entries that a bulk load is yet to bring.
    """

    def __init__(self, width_ms: int) -> None:
        """Start empty."""
        self.width_ms = width_ms
        self.entries = 0
        self.size = 0
        self.dirty: set[int] = set()
        self.dropped_number = -1
        self.loading = False
        self._pages: Any = SortedDict()

    def __len__(self) -> int:
        """Return how many partitions hold entries."""
        return sum(map(len, self._pages.values()))

    def __iter__(self) -> Iterator[PartitionCounters]:
        """Iterate in time order."""
        return self.from_number(0)

    # --- reading

    def pages(self) -> Iterator[PartitionPage]:
        """Iterate over the pages in time order."""
        return iter(self._pages.values())

    def page(self, number: int) -> PartitionPage | None:
        """Return the page of this number; it may be empty."""
        page: PartitionPage | None = self._pages.get(number)
        return page

    def pages_between(self, first: int, end: int) -> Iterator[PartitionPage]:
        """Iterate over the pages that hold partitions with first <= number < end."""
        if first < end:
            for number in self._pages.irange(first // PAGE_PARTITIONS, (end - 1) // PAGE_PARTITIONS):
                yield self._pages[number]

    def from_number(self, number: int) -> Iterator[PartitionCounters]:
        """Iterate over the partitions with this number or a higher one."""
        first_page, first_slot = divmod(number, PAGE_PARTITIONS)
        for page_number in self._pages.irange(first_page):
            page = self._pages[page_number]
            for slot in page.slots(first_slot if page_number == first_page else 0):
                yield page.counters(slot, self.width_ms)

    def get(self, number: int) -> PartitionCounters | None:
        """Return one partition, None when it holds nothing."""
        page = self._pages.get(number // PAGE_PARTITIONS)
        slot = number % PAGE_PARTITIONS
        return None if page is None or not page.entries_in(slot) else page.counters(slot, self.width_ms)

    def entries_in(self, number: int) -> int:
        """Return how many entries a partition holds."""
        page = self._pages.get(number // PAGE_PARTITIONS)
        return 0 if page is None else page.entries_in(number % PAGE_PARTITIONS)

    def between(self, start: bytes, end: bytes) -> Iterator[PartitionCounters]:
        """Iterate over the partitions that overlap a key range."""
        for partition in self.from_number(key_time(start) // self.width_ms):
            if partition.first_key >= end:
                return
            if partition.end_key > start:
                yield partition

    def span(self) -> tuple[int, int] | None:
        """Return the numbers of the first and the last partition with entries; None without any."""
        first = next((page for page in self._pages.values() if page.total), None)
        if first is None:
            return None
        last = next(page for page in reversed(self._pages.values()) if page.total)
        return (
            first.number * PAGE_PARTITIONS + first.slots()[0],
            last.number * PAGE_PARTITIONS + last.slots()[-1],
        )

    def lowest_position(self) -> Position | None:
        """Return the lowest position stored, None when nothing is; costs a pass over the pages that changed."""
        return min(
            (lowest for page in self._pages.values() if (lowest := page.lowest_position()) is not None), default=None
        )

    # --- changing

    def load(self, page: PartitionPage) -> None:
        """Put a stored page back."""
        self._pages[page.number] = page
        self.entries += page.total
        self.size += page.size

    def add(self, placed: Sequence[PlacedEntry], write: int = _NEVER) -> None:
        """Count entries in; those of a write `write` only where the stored page does not include it."""
        pages, width, touched = self._pages, self.width_ms, []
        entries = sizes = 0
        page_of = pages.get
        # With random due times this loop is a third of what adding costs: no calls in it, and no more of memory touched
        # than needed.
        for ledger, entry, deliver_at, size in placed:
            number = deliver_at // width
            page_number = number // PAGE_PARTITIONS
            page = page_of(page_number)
            if page is None:
                page = pages[page_number] = PartitionPage(page_number)
            if page.as_of >= write:
                continue
            values, at = page.values, 1 + FIELDS * (number % PAGE_PARTITIONS)
            if not values[at]:
                page.lowest = page.used = None
                values[at + 2] = values[at + 4] = ledger
                values[at + 3] = values[at + 5] = entry
            elif (highest := values[at + 4]) < ledger or (highest == ledger and values[at + 5] < entry):
                values[at + 4] = ledger
                values[at + 5] = entry
            elif (ledger, entry) < (values[at + 2], values[at + 3]):
                page.lowest = None
                values[at + 2] = ledger
                values[at + 3] = entry
            values[0] += 1
            values[at] += 1
            values[at + 1] += size
            touched.append(page_number)
            entries += 1
            sizes += size
        self.dirty.update(touched)
        self.entries += entries
        self.size += sizes

    def remove(self, known: PartitionCounters) -> None:
        """Forget a dropped partition."""
        page = self._page_of(known.number // PAGE_PARTITIONS)
        page.clear(known.number % PAGE_PARTITIONS)
        self.entries -= known.entries
        self.size -= known.size

    def put(self, known: PartitionCounters) -> None:
        """Put a partition into an empty place."""
        self._page_of(known.number // PAGE_PARTITIONS).put(known)
        self.entries += known.entries
        self.size += known.size

    def merge(self, page_number: int, columns: Sequence[array[int]]) -> None:
        """Add counters to those of partitions on one page: columns of numbers and of the page's fields."""
        self._page_of(page_number).merge(columns[0], columns[1:])
        self.entries += sum(columns[1])
        self.size += sum(columns[2])

    def copy_of(self, page_numbers: list[int]) -> list[PartitionPage]:
        """Return pages to `put_back` should they turn out not to be stored."""
        return [self._page_of(number).copy() for number in page_numbers]

    def put_back(self, pages: list[PartitionPage]) -> None:
        """Replace pages by what they were."""
        for page in pages:
            changed = self._page_of(page.number)
            self.entries += page.total - changed.total
            self.size += page.size - changed.size
            self._pages[page.number] = page

    def clear(self) -> None:
        """Forget everything."""
        self._pages.clear()
        self.dirty.clear()
        self.entries = self.size = 0

    def empty_pages(self, stored_by: int) -> list[int]:
        """Return the numbers of the empty pages that were stored by a write or before."""
        return [
            page.number
            for page in self._pages.values()
            if page.as_of <= stored_by and page.number not in self.dirty and not page.total
        ]

    def forget(self, page_numbers: list[int]) -> None:
        """Forget empty pages whose records are deleted."""
        for number in page_numbers:
            del self._pages[number]

    def _page_of(self, number: int) -> PartitionPage:
        """Return a page that is about to change."""
        page: PartitionPage | None = self._pages.get(number)
        if page is None:
            page = self._pages[number] = PartitionPage(number)
        self.dirty.add(number)
        return page
