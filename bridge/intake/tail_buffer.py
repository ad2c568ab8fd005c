"""The immediate entries a harvester has just read, shared by the feeds at the tail: N subscriptions, one read."""

from collections import deque
from collections.abc import Sequence

from bridge.protocol.entries import StoredEntry
from tracker import Position


class TailBuffer:
    """Bounded; holds every immediate entry behind `floor`. Items are numbered by arrival, from `first` to `end`."""

    def __init__(self, start: Position, max_bytes: int, max_entries: int) -> None:
        """`start`: the position behind which the harvester reads."""
        self.floor = start
        self.first = 0
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._items: deque[StoredEntry] = deque()
        self._by_position: dict[tuple[int, int], StoredEntry] = {}
        self._bytes = 0

    @property
    def end(self) -> int:
        """The number of the next item to arrive."""
        return self.first + len(self._items)

    def push(self, entries: Sequence[StoredEntry]) -> None:
        """Append immediate entries, in position order; the oldest make room."""
        items, by_position = self._items, self._by_position
        for entry in entries:
            items.append(entry)
            by_position[entry[0], entry[1]] = entry
            self._bytes += len(entry.raw)
        while self._bytes > self._max_bytes or len(items) > self._max_entries:
            oldest = items.popleft()
            del by_position[oldest.ledger, oldest.entry]
            self._bytes -= len(oldest.raw)
            self.first += 1
            self.floor = Position(oldest.ledger, oldest.entry)

    def item(self, number: int) -> StoredEntry:
        """The item of a number in `first` … `end`-1; quick near both ends."""
        return self._items[number - self.first]

    def positions_from(self, number: int) -> list[tuple[int, int]]:
        """The positions of the items from a number in `first` … `end` on."""
        return list(self._by_position)[number - self.first :]

    def get(self, ledger: int, entry: int) -> StoredEntry | None:
        """The entry at a position, if it is still held."""
        return self._by_position.get((ledger, entry))

    def number_after(self, position: Position) -> int:
        """The number of the first item behind `position`, which must be at or behind `floor`."""
        for back, item in enumerate(reversed(self._items)):
            if (item.ledger, item.entry) <= position:
                return self.end - back
        return self.first
