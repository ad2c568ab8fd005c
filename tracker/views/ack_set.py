"""What a subscription has acknowledged: a mark-delete position and a bitmap of single entries per ledger above it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyroaring import BitMap

from tracker.position import EARLIEST, Position

AckedRange = tuple[Position, Position]
"""Lower bound exclusive, upper bound inclusive, as the broker prints its ranges."""

MAX_ENTRY = 2**32 - 1
"""The highest entry number a bitmap holds; ledgers roll over long before."""

_RANGE = re.compile(r"\(\s*(-?\d+):(-?\d+)\s*\.\.\s*(-?\d+):(-?\d+)\s*\]\s*(?:,\s*)?")
_NOTHING: frozenset[int] = frozenset()


def parse_ranges(text: str) -> list[AckedRange]:
    """Read `[(3:1..3:4],(3:5..3:6]]` as `internalStats` prints it; raises ValueError naming the text."""
    return list(iter_ranges(text))


def iter_ranges(text: str) -> Iterator[AckedRange]:
    """Read like `parse_ranges`, one range at a time: a cursor with many holes takes a while."""
    body = text.strip()
    if not (body.startswith("[") and body.endswith("]")):
        raise ValueError(f"not a list of acked ranges: {text[:200]!r}")
    position, end = 1, len(body) - 1
    while position < end:
        found = _RANGE.match(body, position, end)
        if found is None:
            raise ValueError(f"not a list of acked ranges: {text[:200]!r}, at {body[position : position + 40]!r}")
        lower_ledger, lower_entry, upper_ledger, upper_entry = map(int, found.groups())
        yield Position(lower_ledger, lower_entry), Position(upper_ledger, upper_entry)
        position = found.end()


class AckSet:
    """Acked entries of one subscription; remembers which ledgers changed since they were last persisted."""

    def __init__(self, mark_delete_position: Position = EARLIEST) -> None:
        """Start with everything at or below a position acked."""
        self.mark_delete_position = mark_delete_position
        self._ledgers: dict[int, Any] = {}
        self._dirty: set[int] = set()

    @classmethod
    def load(cls, mark_delete_position: Position, records: Iterable[tuple[int, bytes]]) -> AckSet:
        """Build from persisted (ledger, bitmap) records; those the mark-delete position overtook are forgotten."""
        acks = cls(mark_delete_position)
        for ledger, record in records:
            acks._ledgers[ledger] = BitMap.deserialize(record)
        acks._prune()
        return acks

    @classmethod
    def of(cls, mark_delete_position: Position, ranges: Iterable[AckedRange]) -> AckSet:
        """Build from what a broker says of a cursor."""
        acks = cls(mark_delete_position)
        acks.merge_ranges(ranges)
        return acks

    def __len__(self) -> int:
        """Return how many entries above the mark-delete position are acked one by one."""
        return sum(len(bitmap) for bitmap in self._ledgers.values())

    @property
    def holes(self) -> int:
        """How many stretches of acked entries lie above the mark-delete position: a broker persists those."""
        # A stretch begins where the entry before is not acked.
        return sum(len(bitmap) - bitmap.intersection_cardinality(bitmap.shift(1)) for bitmap in self._ledgers.values())

    def add(self, ledger: int, entry: int) -> bool:
        """Ack one entry; True when that is new. Numbers no entry can have are ignored."""
        mark_ledger, mark_entry = self.mark_delete_position
        if ledger < mark_ledger or (ledger == mark_ledger and entry <= mark_entry):
            return False
        if not 0 <= entry <= MAX_ENTRY or ledger < 0:
            return False
        bitmap = self._ledgers.get(ledger)
        if bitmap is None:
            bitmap = self._ledgers[ledger] = BitMap()
        elif entry in bitmap:
            return False
        bitmap.add(entry)
        self._dirty.add(ledger)
        return True

    @property
    def highest(self) -> Position:
        """The highest acked position."""
        ledger = max(self._ledgers, default=-1)
        return Position(ledger, self._ledgers[ledger].max()) if ledger >= 0 else self.mark_delete_position

    def contains(self, ledger: int, entry: int) -> bool:
        """Tell whether an entry is acked."""
        through, single = self.acked_in(ledger)
        return entry <= through or (entry <= MAX_ENTRY and entry in single)

    def is_acked_behind(self, position: Position) -> bool:
        """Tell whether the first entry behind a position is acked, as far as that can be told without knowing where
        its ledger ends: it may be that the first entries of the next ledger are, and others before them are not.
        """
        if self.mark_delete_position > position:
            return True
        ledger = min((each for each in self._ledgers if self._ledgers[each]), default=-1)
        lowest = self._ledgers[ledger].min() if ledger >= 0 else -1
        return (ledger, lowest) == (position.ledger, position.entry + 1) or (ledger > position.ledger and lowest == 0)

    def acked_in(self, ledger: int) -> tuple[int, Any]:
        """Return (n, set) of a ledger: its entries up to n are acked, and those in the set. For loops over entries."""
        mark_ledger, mark_entry = self.mark_delete_position
        if ledger < mark_ledger:
            return MAX_ENTRY, _NOTHING
        return mark_entry if ledger == mark_ledger else -1, self._ledgers.get(ledger, _NOTHING)

    def advance(self, mark_delete_position: Position) -> None:
        """Move the mark-delete position forward and forget the single acks it covers; never moves back."""
        if mark_delete_position > self.mark_delete_position:
            self.mark_delete_position = mark_delete_position
            self._prune()

    def reset(self, mark_delete_position: Position, ranges: Iterable[AckedRange]) -> None:
        """Replace everything, as a seek does; the position may go back."""
        self._dirty.update(self._ledgers)
        self._ledgers.clear()
        self.mark_delete_position = mark_delete_position
        self.merge_ranges(ranges)

    def merge_ranges(self, ranges: Iterable[AckedRange]) -> None:
        """Ack every entry of the ranges."""
        for lower, upper in ranges:
            # A range over two ledgers does not say where the lower ledger ends: only the upper ledger's part is known.
            first = lower.entry + 1 if lower.ledger == upper.ledger else 0
            if first <= upper.entry <= MAX_ENTRY:
                self._ledgers.setdefault(upper.ledger, BitMap()).add_range(max(first, 0), upper.entry + 1)
                self._dirty.add(upper.ledger)
        self._prune()

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Yield the (ledger, bitmap) records that `load` reads, in order."""
        for ledger in sorted(self._ledgers):
            if (record := self._record(ledger)) is not None:
                yield ledger, record

    def take_dirty(self) -> list[tuple[int, bytes | None]]:
        """Return (ledger, record) of each ledger changed since the last call; None where the record is to go."""
        records = [(ledger, self._record(ledger)) for ledger in sorted(self._dirty)]
        self._dirty.clear()
        return records

    def mark_dirty(self, ledgers: Iterable[int]) -> None:
        """Hand ledgers out again at the next `take_dirty`, after a write that failed."""
        self._dirty.update(ledgers)

    def ranges(self) -> Iterator[AckedRange]:
        """Yield the single acks as ranges, in order."""
        for ledger in sorted(self._ledgers):
            bitmap = self._ledgers[ledger]
            first = bitmap.min()
            while first is not None:
                # The first number missing after `first` ends the run.
                end = _first_absent(bitmap, first)
                yield Position(ledger, first - 1), Position(ledger, end - 1)
                first = bitmap.next_set_bit(end) if end <= bitmap.max() else None

    def copy(self) -> AckSet:
        """Return an independent copy, with nothing to persist."""
        copy = AckSet(self.mark_delete_position)
        copy._ledgers = self.single_acks(self.highest.ledger)
        return copy

    def single_acks(self, last_ledger: int) -> dict[int, Any]:
        """Return copies of the bitmaps of single acks, by ledger, up to and including a ledger."""
        return {ledger: BitMap(bitmap) for ledger, bitmap in self._ledgers.items() if ledger <= last_ledger}

    def single_acks_upto(self, upto: Position) -> int:
        """Return how many entries above the mark-delete position, up to and including a position, are acked."""
        return sum(
            len(bitmap) if ledger < upto.ledger else bitmap.rank(min(upto.entry, MAX_ENTRY)) if upto.entry >= 0 else 0
            for ledger, bitmap in self._ledgers.items()
            if ledger <= upto.ledger
        )

    def newly_acked(self, before: AckSet) -> Iterator[tuple[int, Any]]:
        """Yield (ledger, bitmap) of the single acks that an earlier state of the same cursor does not have."""
        for ledger, bitmap in self._ledgers.items():
            through, single = before.acked_in(ledger)
            new = bitmap - single if single else BitMap(bitmap)
            new.remove_range(0, through + 1)
            if new:
                yield ledger, new

    def covers_range(self, after: Position, upto: Position) -> bool:
        """Tell whether all of (after, upto] is acked singly, as far as that can be known: within one ledger."""
        bitmap = self._ledgers.get(upto.ledger)
        if after.ledger != upto.ledger or bitmap is None:
            return False
        return bool(bitmap.contains_range(after.entry + 1, upto.entry + 1))

    def update(self, other: AckSet) -> None:
        """Take over all that another state of the same cursor has acked."""
        for ledger, bitmap in other._ledgers.items():
            self._ledgers.setdefault(ledger, BitMap()).update(bitmap)
            self._dirty.add(ledger)
        self.advance(other.mark_delete_position)
        self._prune()

    def replace(self, other: AckSet) -> None:
        """Become a copy of another state of the same cursor, as a seek does; the position may go back."""
        self.reset(other.mark_delete_position, ())
        self.update(other)

    def missing_in(self, theirs: AckSet, ledger_sizes: Mapping[int, int]) -> Iterator[tuple[int, int]]:
        """Yield the (ledger, entry) acked here but not in another state of the same cursor, in order.

        Only entries that exist: `ledger_sizes` gives the number of entries of each ledger.
        """
        last = max(self.mark_delete_position.ledger, *self._ledgers, -1)
        for ledger in sorted(ledger_sizes):
            if theirs.mark_delete_position.ledger <= ledger <= last:
                size = ledger_sizes[ledger]
                yield from ((ledger, entry) for entry in self._within(ledger, size) - theirs._within(ledger, size))

    def _within(self, ledger: int, size: int) -> Any:
        """Return the acked ones of the entries 0 … size-1 as a bitmap."""
        through, single = self.acked_in(ledger)
        found = BitMap(single)
        found.add_range(0, min(through + 1, size))
        found.remove_range(size, MAX_ENTRY + 1)
        return found

    def check(self) -> None:
        """Raise AssertionError when a single ack lies at or below the mark-delete position or a bitmap is empty."""
        for ledger, bitmap in self._ledgers.items():
            assert len(bitmap) > 0, f"empty bitmap of ledger {ledger}"
            lowest = Position(ledger, bitmap.min())
            assert lowest > self.mark_delete_position, f"{lowest} kept below {self.mark_delete_position}"

    def _record(self, ledger: int) -> bytes | None:
        bitmap = self._ledgers.get(ledger)
        if bitmap is None:
            return None
        # Runs are small on disk and slow to add to, so only the copy that is written gets them.
        compact = BitMap(bitmap)
        compact.run_optimize()
        record: bytes = compact.serialize()
        return record

    def _prune(self) -> None:
        mark_ledger, mark_entry = self.mark_delete_position
        for ledger in [known for known in self._ledgers if known <= mark_ledger]:
            bitmap = self._ledgers[ledger]
            before = len(bitmap)
            if ledger == mark_ledger:
                bitmap.remove_range(0, mark_entry + 1)
            else:
                bitmap.clear()
            if len(bitmap) != before:
                self._dirty.add(ledger)
            if not bitmap:
                del self._ledgers[ledger]


class AckedIn(dict[int, tuple[int, Any]]):
    """`AckSet.acked_in` by ledger, looked up once for each: in due order ledgers change with every entry."""

    def __init__(self, acks: AckSet) -> None:
        """Of one state of a cursor: not to be kept while acks come."""
        self._acks = acks

    def __missing__(self, ledger: int) -> tuple[int, Any]:
        """Look a ledger up."""
        found = self[ledger] = self._acks.acked_in(ledger)
        return found


def _first_absent(bitmap: Any, start: int) -> int:
    """Return the first number above start that is not in the bitmap, by doubling and then halving steps."""
    step, low = 1, start
    while bitmap.contains_range(low, low + step + 1):
        low += step
        step *= 2
    while step:
        if bitmap.contains_range(low, low + step + 1):
            low += step
        else:
            step //= 2
    return low + 1
