"""The near term: the entries that come due next, in memory, shared by all views of a topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sortedcontainers import SortedList

from tracker import limits
from tracker.entries import DueEntry
from tracker.keys import FIRST_KEY


class NearTermWindow:
    """A key range [low, high) of the index. Everything stored in that range is in here, and nothing else."""

    def __init__(self, budget_bytes: int) -> None:
        """Start as an empty range; the budget counts payloads and the Python objects around them."""
        self.budget_bytes = budget_bytes
        self.low = FIRST_KEY
        self.high = FIRST_KEY
        self.bytes_held = 0
        self._keys: Any = SortedList()
        self._entries: dict[bytes, DueEntry] = {}

    def __len__(self) -> int:
        """Return how many entries are held."""
        return len(self._entries)

    @property
    def is_full(self) -> bool:
        """Whether reading ahead should stop; a part of the budget is left for arriving entries."""
        return self.bytes_held >= self.budget_bytes * limits.NEAR_TERM_FILL

    def covers(self, key: bytes) -> bool:
        """Tell whether a key or bound lies in the range."""
        return self.low <= key < self.high

    def get(self, key: bytes) -> DueEntry | None:
        """Return the entry of a key if it is in memory."""
        return self._entries.get(key)

    def first_from(self, key: bytes) -> bytes | None:
        """Return the first key in memory at or after one."""
        return next(self._keys.irange(key), None)

    def slice(self, start: bytes, end: bytes) -> Iterator[DueEntry]:
        """Iterate over the entries with start <= key < end, in order."""
        return map(self._entries.__getitem__, self._keys.irange(start, end, (True, False)))

    def insert(self, entries: list[DueEntry]) -> None:
        """Take in new entries whose keys the range covers; the far end is cut when they do not fit the budget."""
        self._hold(entries)
        if self.bytes_held > self.budget_bytes:
            self._cut_far_end()

    def extend(self, entries: Iterable[DueEntry], high: bytes) -> None:
        """Append what was read from the range's end on and move the end."""
        self._hold(list(entries))
        self.high = high

    def release_below(self, bound: bytes, limit: int) -> bool:
        """Let go of at most `limit` entries before a bound and move the range's start; True when some are left."""
        left: bool = self._keys.bisect_left(bound) > limit
        if left:
            bound = self._keys[limit]
        self.remove_range(FIRST_KEY, bound)
        self.low = max(self.low, min(bound, self.high))
        return left

    def remove_range(self, start: bytes, end: bytes) -> None:
        """Let go of dropped entries with start <= key < end; the range stays."""
        first, last = self._keys.bisect_left(start), self._keys.bisect_left(end)
        for key in self._keys[first:last]:
            self._forget(key)
        del self._keys[first:last]

    def restart_at(self, bound: bytes) -> None:
        """Become an empty range elsewhere."""
        self._keys.clear()
        self._entries.clear()
        self.bytes_held = 0
        self.low = self.high = bound

    def _hold(self, entries: list[DueEntry]) -> None:
        self._keys.update([entry.key for entry in entries])
        for entry in entries:
            self._entries[entry.key] = entry
            self.bytes_held += len(entry.raw) + limits.WINDOW_ENTRY_OVERHEAD

    def _cut_far_end(self) -> None:
        while self.bytes_held > self.budget_bytes:
            self.high = self._keys.pop()
            self._forget(self.high)

    def _forget(self, key: bytes) -> None:
        self.bytes_held -= len(self._entries.pop(key).raw) + limits.WINDOW_ENTRY_OVERHEAD
