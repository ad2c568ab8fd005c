"""Finding entries that are not delivered yet, a page at a time and off the hot path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tracker.entries import DueEntry
from tracker.keys import MAX_TIMESTAMP_MS, encode_key, successor, time_bound
from tracker.partitions.positions import PositionIndex
from tracker.partitions.reader import DiskReader
from tracker.position import Position
from tracker.views.view import SubscriptionView


class Standing(Enum):
    """How an entry stands with a subscription."""

    PENDING = "pending"
    DISPATCHED = "already-dispatched"
    ACKED = "already-acked"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Query:
    """What to look for: due in [due_from_ms, due_to_ms), at a position, and whatever `matches` says of an entry."""

    due_from_ms: int = 0
    due_to_ms: int = MAX_TIMESTAMP_MS + 1
    position: Position | None = None
    matches: Callable[[DueEntry], bool] | None = None


class Found(NamedTuple):
    """One entry and how it stands with the subscription that was asked for."""

    entry: DueEntry
    standing: Standing


class SearchPage(NamedTuple):
    """What was found, and where to go on; None when all was looked at."""

    found: list[Found]
    cursor: bytes | None


class Search:
    """Searches one index. Raises StoreError where the disk cannot be read."""

    def __init__(self, positions: PositionIndex, disk: DiskReader) -> None:
        """Search what is on disk: all there is."""
        self._positions = positions
        self._disk = disk

    def locate(self, position: Position) -> DueEntry | None:
        """Return the stored entry at a position."""
        deliver_at = self._positions.find(*position)
        return None if deliver_at is None else self._disk.get(encode_key(deliver_at, *position))

    def standing(self, view: SubscriptionView, position: Position) -> Standing:
        """Return how the entry at a position stands with a view; one never stored is acked or unknown."""
        if view.acks.contains(*position):
            return Standing.ACKED
        if tuple(position) in view.outstanding:
            return Standing.DISPATCHED
        return Standing.UNKNOWN if self.locate(position) is None else Standing.PENDING

    def page(
        self, view: SubscriptionView, query: Query, cursor: bytes | None, limit: int, scan_limit: int
    ) -> SearchPage:
        """Return at most `limit` unacked entries in due order, after looking at no more than `scan_limit`.

        Pass the cursor of the last page to go on. A page may be empty although more follow.
        """
        if query.position is not None:
            return SearchPage(list(self._at(view, query, query.position)), None)
        found: list[Found] = []
        start = max(time_bound(query.due_from_ms), cursor or b"")
        for scanned, entry in enumerate(self._disk.scan(start, time_bound(query.due_to_ms)), 1):
            found += self._examine(view, query, entry)
            if scanned >= scan_limit or len(found) >= limit:
                return SearchPage(found, successor(entry.key))
        return SearchPage(found, None)

    def _at(self, view: SubscriptionView, query: Query, position: Position) -> Iterator[Found]:
        entry = self.locate(position)
        if entry is not None and query.due_from_ms <= entry.deliver_at_ms < query.due_to_ms:
            yield from self._examine(view, query, entry)

    def _examine(self, view: SubscriptionView, query: Query, entry: DueEntry) -> Iterator[Found]:
        position = (entry.ledger, entry.entry)
        if view.acks.contains(*position) or (query.matches is not None and not query.matches(entry)):
            return
        yield Found(entry, Standing.DISPATCHED if position in view.outstanding else Standing.PENDING)
