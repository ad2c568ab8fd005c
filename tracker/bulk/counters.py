"""Counters of the time partitions of one group of a bulk load, in columns: a thousand are merged in a millisecond."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tracker.partitions.columns import pack_column, unpack_column
from tracker.partitions.page import FIELDS, PAGE_PARTITIONS
from tracker.position import Position


class BulkPartition(NamedTuple):
    """What a time partition gets; `size` is key and value bytes before compression. Ends with its extreme positions."""

    number: int
    entries: int
    size: int
    low_ledger: int
    low_entry: int
    high_ledger: int
    high_entry: int

    @property
    def lowest(self) -> Position:
        """The lowest position."""
        return Position(self.low_ledger, self.low_entry)

    @property
    def highest(self) -> Position:
        """The highest position."""
        return Position(self.high_ledger, self.high_entry)


class BulkCounters:
    """Counters by partition number, ascending. `columns`: numbers, then the fields of a `PartitionPage`."""

    def __init__(self, columns: list[array[Any]]) -> None:
        """Use `of` or `decode`."""
        self.columns = columns

    @classmethod
    def of(cls, partitions: Sequence[BulkPartition]) -> BulkCounters:
        """Turn partitions in ascending order, at least one, into columns."""
        return cls([array("q", column) for column in zip(*partitions, strict=True)])

    def encode(self) -> bytes:
        """Return the stored form: one column of 8-byte numbers after the other."""
        return b"".join(map(pack_column, self.columns))

    @classmethod
    def decode(cls, record: bytes) -> BulkCounters:
        """Read what `encode` returned; raises ValueError when it cannot be that."""
        if not record or len(record) % (8 * (1 + FIELDS)):
            raise ValueError(f"{len(record)} bytes cannot be counters of time partitions")
        width = len(record) // (1 + FIELDS)
        return cls([unpack_column("q", record[at : at + width]) for at in range(0, len(record), width)])

    def __len__(self) -> int:
        """How many partitions there are."""
        return len(self.columns[0])

    def parts(self, size: int) -> Iterator[tuple[BulkCounters, BulkCounters]]:
        """Yield (some, what comes after them) until nothing is left: whole pages with at least `size` partitions."""
        start = 0
        for _, _, end in self.pages():
            if end - start >= size or end == len(self):
                some, rest = (
                    [column[first:to] for column in self.columns] for first, to in ((start, end), (end, None))
                )
                yield BulkCounters(some), BulkCounters(rest)
                start = end

    def _between(self, first: int, end: int) -> BulkCounters:
        return BulkCounters([column[first:end] for column in self.columns])

    def rows(self, first: int = 0, end: int | None = None) -> Iterator[BulkPartition]:
        """Iterate over the partitions, or those in places first <= place < end."""
        return map(BulkPartition._make, zip(*(column[first:end] for column in self.columns), strict=True))

    def pages(self) -> Iterator[tuple[int, int, int]]:
        """Yield (page number, first place, end of places) for each page the partitions are on."""
        numbers, first = self.columns[0], 0
        while first < len(numbers):
            page_number = numbers[first] // PAGE_PARTITIONS
            end = bisect_left(numbers, (page_number + 1) * PAGE_PARTITIONS, first)
            yield page_number, first, end
            first = end
