"""Which entries there are to read, cut into ranges: pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bridge.ledgers.bookies.layout import Layout, layouts_in
from bridge.ledgers.internal_stats import CursorState, parse_internal_stats
from spark_jobs.errors import LedgerReadError
from tracker import AckSet, Position, iter_ranges


class LedgerRange(NamedTuple):
    """Entries first..last of one ledger, both included."""

    ledger: int
    first: int
    last: int

    @property
    def entries(self) -> int:
        """How many entries the range has at most; a compacted or trimmed ledger may have fewer."""
        return self.last - self.first + 1


@dataclass(frozen=True)
class TopicState:
    """What `internalStats` says of a topic partition: its ledgers' entries, oldest first, and its cursors.

    `layouts`: of each ledger where its entries lie, or why that is not known.
    """

    last_confirmed: Position
    ledgers: tuple[tuple[int, int], ...]
    cursors: dict[str, AckSet] = field(default_factory=dict)
    read_positions: dict[str, Position] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)

    @classmethod
    def of(cls, body: dict[str, Any], web_url: str) -> TopicState:
        """Read the answer of the broker at `web_url`. Raises LedgerReadError when it lacks what is needed.

        A cursor that cannot be read is left out.
        """
        try:
            told = parse_internal_stats(body)
            cursors = {name: _acks_of(cursor) for name, cursor in told.cursors.items()}
            layouts = layouts_in(body, web_url)
        except (TypeError, ValueError) as error:
            raise LedgerReadError(f"internalStats without what is needed: {error}") from error
        read = {name: each.read_position for name, each in told.cursors.items() if each.read_position is not None}
        return cls(told.last_confirmed_entry, tuple(sorted(told.ledger_sizes.items())), cursors, read, layouts)


def _acks_of(cursor: CursorState) -> AckSet:
    acks = AckSet(cursor.mark_delete_position)
    acks.merge_ranges(iter_ranges(cursor.individually_deleted))
    return acks


def ranges_of(state: TopicState, after: Position, upto: Position, split_entries: int) -> list[LedgerRange]:
    """Cut the entries in (after, upto] into ranges of at most `split_entries`, oldest first.

    Cuts lie at multiples of `split_entries` in a ledger, wherever reading starts: who resumes finds the same ranges.
    """
    if split_entries < 1:
        raise LedgerReadError(f"a range needs at least one entry, not {split_entries}")
    upto = min(upto, state.last_confirmed)
    ranges: list[LedgerRange] = []
    for ledger, entries in state.ledgers:
        last = entries - 1
        if ledger == upto.ledger:
            last = min(last, upto.entry)
        first = after.entry + 1 if ledger == after.ledger else 0
        if ledger < after.ledger or ledger > upto.ledger:
            continue
        ranges += _cut(ledger, max(first, 0), last, split_entries)
    return ranges


def grouped(ranges: Iterable[LedgerRange], size: int) -> list[list[LedgerRange]]:
    """Put neighbours together, at most `size` of them and as evenly as can be: what one task reads side by side."""
    every = list(ranges)
    size = -(-len(every) // -(-len(every) // size)) if every else size
    return [every[start : start + size] for start in range(0, len(every), size)]


def fair_share(ranges: int, most: int, processors: int) -> int:
    """Return how many ranges a task gets, `most` at most, such that all processors are through at the same time."""
    rounds = -(-ranges // (most * processors))
    return max(-(-ranges // (max(rounds, 1) * processors)), 1)


def _cut(ledger: int, first: int, last: int, split_entries: int) -> list[LedgerRange]:
    cuts = []
    while first <= last:
        end = min(last, (first // split_entries + 1) * split_entries - 1)
        cuts.append(LedgerRange(ledger, first, end))
        first = end + 1
    return cuts
