"""The counters of 32 neighbouring time partitions: 50 bytes a partition."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from tracker.keys import time_bound
from tracker.partitions.columns import pack_column, unpack_column
from tracker.position import Position

PAGE_PARTITIONS = 32
"""Partitions of one page, less than three hours at 5 minutes: a page with a single entry takes 2 KB all the same."""

_HEADER = struct.Struct(">Q")
FIELDS = 6
"""Numbers kept of a partition."""

_COLUMN_BYTES = 8 * PAGE_PARTITIONS
_PAGE_BYTES = 8 + FIELDS * _COLUMN_BYTES


class PartitionCounters(NamedTuple):
    """Counters of one time partition; `size` is key and value bytes before compression."""

    number: int
    entries: int
    size: int
    lowest: Position
    highest: Position
    first_key: bytes
    end_key: bytes


class PartitionPage:
    """Counters by slot, the partition number modulo PAGE_PARTITIONS.

    `values` begins with the entries of all partitions; from `1 + 6 * slot` on come one partition's entries and bytes,
    ledger and entry of the lowest position, ledger and entry of the highest. They lie side by side because counting
    entries with random due times waits for memory: one line of it instead of six. Positions mean something where the
    count is not 0. `as_of` is the last write that the page's stored form includes, `lowest` the lowest position of all
    and `used` the number of partitions with entries, if they were looked for since that may have changed.
    """

    __slots__ = ("as_of", "lowest", "number", "used", "values")

    def __init__(self, number: int) -> None:
        """Start empty; `number` is the partition number divided by PAGE_PARTITIONS."""
        self.number = number
        self.as_of = 0
        self.values = array("q", bytes(_PAGE_BYTES))
        self.lowest: Position | None = None
        self.used: int | None = None

    def __len__(self) -> int:
        """Return how many partitions hold entries."""
        if self.used is None:
            self.used = PAGE_PARTITIONS - self.counts.count(0)
        return self.used

    def copy(self) -> PartitionPage:
        """Return a page of its own with the same counters."""
        page = PartitionPage(self.number)
        page.as_of, page.values, page.lowest = self.as_of, self.values[:], self.lowest
        return page

    @property
    def total(self) -> int:
        """The entries of all partitions."""
        return self.values[0]

    @property
    def size(self) -> int:
        """Key and value bytes of all partitions."""
        return sum(self.values[2::FIELDS])

    @property
    def counts(self) -> array[int]:
        """The entries by slot."""
        return self.values[1::FIELDS]

    @property
    def sizes(self) -> array[int]:
        """The bytes by slot."""
        return self.values[2::FIELDS]

    def entries_in(self, slot: int) -> int:
        """Return how many entries one partition holds."""
        return self.values[1 + FIELDS * slot]

    def slots(self, first: int = 0) -> list[int]:
        """Return the slots from one on that hold entries, in order."""
        return [slot for slot, count in enumerate(self.counts) if count and slot >= first]

    def put(self, known: PartitionCounters) -> None:
        """Set the counters of one partition."""
        slot = known.number % PAGE_PARTITIONS
        self._set(slot, (known.entries, known.size, *known.lowest, *known.highest))

    def merge(self, numbers: Sequence[int], columns: Sequence[array[int]]) -> None:
        """Add counters, in columns, to those of some partitions, given in ascending order."""
        first, count = numbers[0] % PAGE_PARTITIONS, len(numbers)
        if not self.total and numbers[-1] - numbers[0] == count - 1:
            start, end = 1 + FIELDS * first, 1 + FIELDS * (first + count)
            for field, column in enumerate(columns):
                self.values[start + field : end : FIELDS] = column
            self.values[0] = sum(columns[0])
            self.lowest = self.used = None
            return
        for number, *counters in zip(numbers, *columns, strict=True):
            self._merge(number % PAGE_PARTITIONS, counters)

    def _merge(self, slot: int, counters: list[int]) -> None:
        at = 1 + FIELDS * slot
        if self.values[at]:
            entries, size, *positions = self.values[at : at + FIELDS]
            lowest, highest = min(counters[2:4], positions[:2]), max(counters[4:], positions[2:])
            counters = [entries + counters[0], size + counters[1], *lowest, *highest]
        self._set(slot, counters)

    def clear(self, slot: int) -> None:
        """Forget a partition."""
        self._set(slot, (0,) * FIELDS)

    def _set(self, slot: int, counters: Sequence[int]) -> None:
        values, at = self.values, 1 + FIELDS * slot
        self.lowest = self.used = None
        values[0] += counters[0] - values[at]
        values[at : at + FIELDS] = array("q", counters)

    def counters(self, slot: int, width_ms: int) -> PartitionCounters:
        """Return one partition."""
        number, at = self.number * PAGE_PARTITIONS + slot, 1 + FIELDS * slot
        entries, size, low_ledger, low_entry, high_ledger, high_entry = self.values[at : at + FIELDS]
        return PartitionCounters(
            number,
            entries,
            size,
            Position(low_ledger, low_entry),
            Position(high_ledger, high_entry),
            time_bound(number * width_ms),
            time_bound((number + 1) * width_ms),
        )

    def lowest_position(self) -> Position | None:
        """Return the lowest position of all."""
        if self.lowest is None and self.total:
            starts = [1 + FIELDS * slot for slot in self.slots()]
            self.lowest = Position(*min((self.values[at + 2], self.values[at + 3]) for at in starts))
        return self.lowest

    def encode(self, as_of: int) -> bytes:
        """Return the stored form, current up to a write: column by column, which compresses best."""
        columns = [self.values[1 + field :: FIELDS] for field in range(FIELDS)]
        return _HEADER.pack(as_of) + b"".join(map(pack_column, columns))

    @classmethod
    def decode(cls, number: int, record: bytes) -> PartitionPage:
        """Read the stored form."""
        page = cls(number)
        (page.as_of,) = _HEADER.unpack_from(record)
        for field in range(FIELDS):
            start = _HEADER.size + field * _COLUMN_BYTES
            page.values[1 + field :: FIELDS] = unpack_column("q", record[start : start + _COLUMN_BYTES])
        page.values[0] = sum(page.counts)
        return page
