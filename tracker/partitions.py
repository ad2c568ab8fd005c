"""The time partitions of a topic and their counters, in memory as on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sortedcontainers import SortedDict

from tracker.keys import key_time, time_bound
from tracker.position import Position
from tracker.records import encode_counters


@dataclass(slots=True)
class PartitionCounters:
    """Counters of one time partition; `size` is key and value bytes before compression."""

    number: int
    entries: int
    size: int
    lowest: Position
    highest: Position
    first_key: bytes
    end_key: bytes

    def record(self) -> bytes:
        """Return the stored form."""
        return encode_counters(self.entries, self.size, self.lowest, self.highest)


class Tally:
    """What one slice of entries adds to each partition, kept apart until the slice is written."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.added: dict[int, tuple[int, int, tuple[int, int], tuple[int, int]]] = {}

    def count(self, number: int, size: int, position: tuple[int, int]) -> None:
        """Count one entry."""
        known = self.added.get(number)
        if known is None:
            self.added[number] = (1, size, position, position)
            return
        entries, total, lowest, highest = known
        if position > highest:
            highest = position
        elif position < lowest:
            lowest = position
        self.added[number] = (entries + 1, total + size, lowest, highest)


class PartitionTable:
    """All time partitions of a topic, by number (due time divided by the width), with running totals."""

    def __init__(self, width_ms: int) -> None:
        """Start empty."""
        self.width_ms = width_ms
        self.entries = 0
        self.size = 0
        self._by_number: Any = SortedDict()

    def __len__(self) -> int:
        """Return how many partitions hold entries."""
        return len(self._by_number)

    def __iter__(self) -> Iterator[PartitionCounters]:
        """Iterate in time order."""
        return iter(self._by_number.values())

    def from_number(self, number: int) -> Iterator[PartitionCounters]:
        """Iterate over the partitions with this number or a higher one."""
        return (self._by_number[known] for known in self._by_number.irange(number))

    def between(self, start: bytes, end: bytes) -> Iterator[PartitionCounters]:
        """Iterate over the partitions that overlap a key range."""
        for partition in self.from_number(key_time(start) // self.width_ms):
            if partition.first_key >= end:
                return
            if partition.end_key > start:
                yield partition

    def load(self, number: int, entries: int, size: int, lowest: Position, highest: Position) -> None:
        """Put a persisted partition back."""
        self._by_number[number] = self._new(number, entries, size, lowest, highest)
        self.entries += entries
        self.size += size

    def merged(self, tally: Tally) -> list[PartitionCounters]:
        """Return the partitions of a tally as they will be, without changing the table."""
        result = []
        for number, (entries, size, lowest, highest) in tally.added.items():
            known = self._by_number.get(number)
            if known is not None:
                entries += known.entries
                size += known.size
                lowest, highest = min(lowest, known.lowest), max(highest, known.highest)
            result.append(self._new(number, entries, size, Position(*lowest), Position(*highest)))
        return result

    def replace(self, partitions: list[PartitionCounters]) -> None:
        """Take over what `merged` returned, once it is written."""
        for partition in partitions:
            known = self._by_number.get(partition.number)
            self.entries += partition.entries - (known.entries if known else 0)
            self.size += partition.size - (known.size if known else 0)
            self._by_number[partition.number] = partition

    def remove(self, number: int) -> None:
        """Forget a dropped partition."""
        partition = self._by_number.pop(number)
        self.entries -= partition.entries
        self.size -= partition.size

    def _new(self, number: int, entries: int, size: int, lowest: Position, highest: Position) -> PartitionCounters:
        first_key = time_bound(number * self.width_ms)
        end_key = time_bound((number + 1) * self.width_ms)
        return PartitionCounters(number, entries, size, lowest, highest, first_key, end_key)
