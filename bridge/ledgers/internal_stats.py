"""What the broker's `internalStats` says of a topic partition: its ledgers, and its subscriptions' cursors.

Brokers of different versions, plug-ins and moments say it differently. Whatever cannot be read is said so, naming the
field: a cursor that cannot be read does not keep the others from being read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

from tracker import Position


@dataclass(frozen=True)
class CursorState:
    """A durable subscription's cursor; `individually_deleted` lists ranges, see `tracker.iter_ranges`.

    `properties` are those of the ack that last moved the mark-delete position; `read_position` is None where the broker
    does not say it.
    """

    mark_delete_position: Position
    individually_deleted: str
    properties: dict[str, int]
    read_position: Position | None = None


@dataclass(frozen=True)
class LedgerState:
    """A topic partition; `unreadable` says by subscription what is wrong with what the broker says of its cursor."""

    last_confirmed_entry: Position
    ledger_sizes: dict[int, int] = field(default_factory=dict)
    cursors: dict[str, CursorState] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def subscriptions(self) -> set[str]:
        """The names of all durable subscriptions."""
        return {*self.cursors, *self.unreadable}

    def entries_between(self, after: Position, upto: Position) -> int:
        """Return how many entries of the topic lie in (after, upto]."""
        entries = 0
        for ledger, size in self.ledger_sizes.items():
            if after.ledger <= ledger <= upto.ledger:
                first = after.entry + 1 if ledger == after.ledger else 0
                end = upto.entry + 1 if ledger == upto.ledger else size
                entries += max(end - first, 0)
        return entries


def parse_internal_stats(body: Any) -> LedgerState:
    """Read the answer of `internalStats`; raises ValueError or TypeError naming what is missing or odd."""
    if not isinstance(body, Mapping):
        raise TypeError(f"not an object: {str(body)[:200]!r}")
    cursors: dict[str, CursorState] = {}
    unreadable: dict[str, str] = {}
    for name, cursor in _mapping(body, "cursors").items():
        try:
            cursors[unquote_plus(name)] = _cursor_state(cursor)
        except (KeyError, TypeError, ValueError) as error:
            unreadable[unquote_plus(name)] = _reason(error)
    try:
        sizes = {int(ledger["ledgerId"]): int(ledger["entries"]) for ledger in body.get("ledgers") or []}
        if sizes:
            newest = max(sizes)  # the open ledger is listed with 0 entries
            sizes[newest] = max(sizes[newest], int(body.get("currentLedgerEntries") or 0))
        return LedgerState(_position(body["lastConfirmedEntry"]), sizes, cursors, unreadable)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(_reason(error)) from error


def _mapping(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = body.get(name) or {}
    if not isinstance(found, Mapping):
        raise TypeError(f"{name} is not an object: {str(found)[:200]!r}")
    return found


def _cursor_state(cursor: Any) -> CursorState:
    ranges = cursor.get("individuallyDeletedMessages") or "[]" if isinstance(cursor, Mapping) else None
    if not isinstance(ranges, str):
        raise TypeError(f"not a cursor: {str(cursor)[:200]!r}")
    properties = {name: int(value) for name, value in _mapping(cursor, "properties").items()}
    read = cursor.get("readPosition")
    read_position = None if read is None else _position(read)
    return CursorState(_position(cursor["markDeletePosition"]), ranges, properties, read_position)


def _position(text: Any) -> Position:
    """`3:5`, and `3:5 (ackSet is null)` as positions with batch or transaction state are printed."""
    words = str(text).split(maxsplit=1)
    return Position.parse(words[0] if words else "")


def _reason(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
