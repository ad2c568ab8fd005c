"""The balance of a subscription's books: each entry of the topic is in one place, and only in one. Pure.

Worked out some ledgers at a time, by bitmaps: a topic of a hundred million entries takes a while.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

from tracker import AckSet, Position
from tracker.position_set import PositionSet


@dataclass(frozen=True, slots=True)
class Places:
    """How many entries there are, and where they are: each place counts what is in none before it."""

    published: int = 0
    acked: int = 0
    cancelled: int = 0
    expired: int = 0
    in_flight: int = 0
    to_redeliver: int = 0
    ready: int = 0
    in_transactions: int = 0
    pending: int = 0
    unread: int = 0
    withheld: int = 0
    to_fill: int = 0

    def plus(self, other: "Places") -> "Places":
        """Both together."""
        return Places(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @property
    def difference(self) -> int:
        """What is published and in no place; below 0 where more is in places than was published."""
        places: list[int] = [getattr(self, each.name) for each in fields(self)[1:]]
        return self.published - sum(places)


class Taken(NamedTuple):
    """What was taken from index and feed."""

    in_flight: PositionSet
    to_redeliver: PositionSet
    ready: PositionSet
    in_transactions: PositionSet

    @property
    def all(self) -> PositionSet:
        """In whichever hands."""
        return self.in_flight | self.to_redeliver | self.ready | self.in_transactions


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How a topic and a subscription stood at one moment, up to a position. `to_come`: immediate entries that wait in
    memory; `read_behind`: the position behind which the others have to be read, None where there are no others.
    """

    ledger_sizes: dict[int, int]
    upto: Position
    acks: AckSet
    taken: Taken
    to_come: PositionSet
    read_behind: Position | None
    withheld: PositionSet
    cancelled: PositionSet
    expired: PositionSet
    handed_out: PositionSet
    """By the index."""

    def part(self, ledgers: Sequence[int]) -> "Snapshot":
        """The same of some ledgers alone."""
        few = {each: self.ledger_sizes[each] for each in ledgers if each in self.ledger_sizes}
        return replace(
            self,
            ledger_sizes=few,
            taken=Taken(*(each.within(ledgers) for each in self.taken)),
            to_come=self.to_come.within(ledgers),
            withheld=self.withheld.within(ledgers),
            cancelled=self.cancelled.within(ledgers),
            expired=self.expired.within(ledgers),
            handed_out=self.handed_out.within(ledgers),
        )

    @property
    def existing(self) -> PositionSet:
        """What the topic keeps, up to the position."""
        return PositionSet.existing(self.ledger_sizes, self.upto)


@dataclass(frozen=True, slots=True)
class Index:
    """What an index says of delayed entries. `stored`: all that it has; `noted`: of which there is a note by position,
    needed behind `Snapshot.read_behind`; `gaps`: (lowest, highest) positions between which it is being filled.
    """

    stored: PositionSet
    noted: PositionSet
    gaps: tuple[tuple[Position, Position], ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """Of some ledgers; `missing`: in no place, `twice`: in more than one."""

    places: Places = field(default_factory=Places)
    missing: PositionSet = field(default_factory=PositionSet)
    twice: PositionSet = field(default_factory=PositionSet)

    def plus(self, other: "Found") -> "Found":
        """Both together."""
        return Found(self.places.plus(other.places), self.missing | other.missing, self.twice | other.twice)


def by_counters(part: Snapshot, noted: PositionSet) -> Found:
    """Where the entries of some ledgers are, those aside that wait in the index: their number is known, for all ledgers
    together, and which ones are missing is not. `noted`: as of `Index`.
    """
    places, rest, twice = _outside(part)
    places = replace(places, unread=places.unread + len(_to_read(part, rest - noted)))
    return Found(places, PositionSet(), twice)


def one_by_one(part: Snapshot, index: Index) -> Found:
    """Where each entry of some ledgers is."""
    places, rest, twice = _outside(part)
    waiting = (part.existing & index.stored) - part.existing.acked(part.acks) - part.handed_out
    twice = twice | (waiting & (part.taken.all | part.to_come))
    pending = rest & waiting
    rest = rest - pending
    unread = _to_read(part, rest - index.noted)
    rest = rest - unread
    gap = PositionSet()
    for lowest, highest in index.gaps:
        gap = gap | rest.after((lowest.ledger, lowest.entry - 1)).upto(highest)
    places = replace(places, pending=len(pending), unread=places.unread + len(unread), to_fill=len(gap))
    return Found(places, rest - gap, twice)


def _outside(part: Snapshot) -> tuple[Places, PositionSet, PositionSet]:
    """What is not in the index any more, or never is; returns what is left, and what is in several places."""
    existing = part.existing
    acked = existing.acked(part.acks)
    cancelled = acked & part.cancelled
    expired = (acked & part.expired) - cancelled
    rest, twice = existing - acked, PositionSet()
    counts = []
    for place in (*part.taken, part.to_come):
        here = place & existing
        twice = twice | (here - rest - acked)
        counts.append(len(here & rest))
        rest = rest - here
    in_flight, to_redeliver, ready, in_transactions, to_come = counts
    withheld = rest & part.withheld
    places = Places(
        published=len(existing),
        acked=len(acked) - len(cancelled) - len(expired),
        cancelled=len(cancelled),
        expired=len(expired),
        in_flight=in_flight,
        to_redeliver=to_redeliver,
        ready=ready,
        in_transactions=in_transactions,
        unread=to_come,
        withheld=len(withheld),
    )
    return places, rest - withheld, twice


def _to_read(part: Snapshot, rest: PositionSet) -> PositionSet:
    return PositionSet() if part.read_behind is None else rest.after(part.read_behind)


def gaps_below(floor: Position | None, mark_delete_position: Position) -> Iterable[tuple[Position, Position]]:
    """What a subscription lacks that the index does not reach back far enough for."""
    if floor is not None and mark_delete_position < floor:
        yield mark_delete_position, floor
