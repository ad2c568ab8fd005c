"""The counters of 32 neighbouring time partitions, in columns: 50 bytes a partition."""

from __future__ import annotations

import struct
from array import array
from typing import Any, NamedTuple

from tracker.columns import pack_column, unpack_column
from tracker.keys import time_bound
from tracker.position import Position

PAGE_PARTITIONS = 32
"""Partitions of one page, less than three hours at 5 minutes: a page with a single entry takes 2 KB all the same."""

_HEADER = struct.Struct(">Q")
_COLUMN_BYTES = 8 * PAGE_PARTITIONS


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

    `counts` and `sizes` are of entries and bytes, `total` is the sum of `counts`; lowest and highest positions mean
    something where the count is not 0.
    `as_of` is the last write that the page's stored form includes.
    """

    __slots__ = (
        "_lowest",
        "as_of",
        "counts",
        "high_entries",
        "high_ledgers",
        "low_entries",
        "low_ledgers",
        "number",
        "sizes",
        "total",
    )

    def __init__(self, number: int) -> None:
        """Start empty; `number` is the partition number divided by PAGE_PARTITIONS."""
        self.number = number
        self.as_of = 0
        self.total = 0
        self.touch()
        self._set_columns([array("q", bytes(_COLUMN_BYTES)) for _ in range(6)])

    def _set_columns(self, columns: list[array[Any]]) -> None:
        self.counts, self.sizes, self.low_ledgers, self.low_entries, self.high_ledgers, self.high_entries = columns

    def _columns(self) -> list[array[Any]]:
        return [self.counts, self.sizes, self.low_ledgers, self.low_entries, self.high_ledgers, self.high_entries]

    def touch(self) -> None:
        """Forget what was derived from the columns: they are about to change."""
        self._lowest: Position | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no partition holds entries."""
        return not self.total

    def slots(self, first: int = 0) -> list[int]:
        """Return the slots from one on that hold entries, in order."""
        return [slot for slot in range(first, PAGE_PARTITIONS) if self.counts[slot]]

    def put(self, known: PartitionCounters) -> None:
        """Set the counters of one partition."""
        slot = known.number % PAGE_PARTITIONS
        self.total += known.entries - self.counts[slot]
        values = (known.entries, known.size, *known.lowest, *known.highest)
        for column, value in zip(self._columns(), values, strict=True):
            column[slot] = value

    def clear(self, slot: int) -> None:
        """Forget a partition."""
        self.total -= self.counts[slot]
        for column in self._columns():
            column[slot] = 0

    def counters(self, slot: int, width_ms: int) -> PartitionCounters:
        """Return one partition."""
        number = self.number * PAGE_PARTITIONS + slot
        return PartitionCounters(
            number,
            self.counts[slot],
            self.sizes[slot],
            Position(self.low_ledgers[slot], self.low_entries[slot]),
            Position(self.high_ledgers[slot], self.high_entries[slot]),
            time_bound(number * width_ms),
            time_bound((number + 1) * width_ms),
        )

    def lowest(self) -> Position | None:
        """Return the lowest position of all."""
        if self._lowest is None and not self.is_empty:
            self._lowest = Position(*min((self.low_ledgers[slot], self.low_entries[slot]) for slot in self.slots()))
        return self._lowest

    def encode(self, as_of: int) -> bytes:
        """Return the stored form, current up to a write."""
        return _HEADER.pack(as_of) + b"".join(map(pack_column, self._columns()))

    @classmethod
    def decode(cls, number: int, record: bytes) -> PartitionPage:
        """Read the stored form."""
        page = cls(number)
        (page.as_of,) = _HEADER.unpack_from(record)
        starts = range(_HEADER.size, len(record), _COLUMN_BYTES)
        page._set_columns([unpack_column("q", record[start : start + _COLUMN_BYTES]) for start in starts])
        page.total = sum(page.counts)
        return page
