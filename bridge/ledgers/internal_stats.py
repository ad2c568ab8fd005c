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

    def covers(self, position: Position) -> bool:
        """Tell whether the ledgers below a position's are known to be closed, so that their sizes hold."""
        return position.ledger <= max(self.ledger_sizes, default=-1)

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
    # Without the field subscriptions would be taken for deleted.
    listed = body.get("cursors")
    if not isinstance(listed, Mapping):
        raise TypeError(f"cursors is no object: {str(listed)[:200]!r}")
    for name, cursor in listed.items():
        try:
            cursors[unquote_plus(name)] = _cursor_state(cursor)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            unreadable[unquote_plus(name)] = _reason(error)
    try:
        sizes = {int(ledger["ledgerId"]): int(ledger["entries"]) for ledger in body["ledgers"]}
        if sizes:
            newest = max(sizes)  # the open ledger is listed with 0 entries
            sizes[newest] = max(sizes[newest], int(body["currentLedgerEntries"]))
        return LedgerState(_position(body["lastConfirmedEntry"]), sizes, cursors, unreadable)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(_reason(error)) from error


def _cursor_state(cursor: Any) -> CursorState:
    ranges = cursor["individuallyDeletedMessages"] if isinstance(cursor, Mapping) else None
    if not isinstance(ranges, str):
        raise TypeError(f"not a cursor: {str(cursor)[:200]!r}")
    properties = {name: int(value) for name, value in (cursor.get("properties") or {}).items()}
    read = cursor.get("readPosition")
    read_position = None if read is None else _position(read)
    return CursorState(_position(cursor["markDeletePosition"]), ranges, properties, read_position)


def _position(text: Any) -> Position:
    """`3:5`, and `3:5 (ackSet is null)` as positions with batch or transaction state are printed."""
    words = str(text).split(maxsplit=1)
    position = Position.parse(words[0] if words else "")
    if not all(-1 <= each < 1 << 63 for each in position):
        raise ValueError(f"not a position: {text!r}")
    return position


def _reason(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
