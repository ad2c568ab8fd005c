"""A set of positions: a bitmap of entries for each ledger. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyroaring import BitMap

from tracker.position import Position
from tracker.views.ack_set import MAX_ENTRY, AckSet


class PositionSet:
    """Some bytes for each position at most, and far less where they are neighbours."""

    def __init__(self, positions: Iterable[tuple[int, int]] = ()) -> None:
        """Of some positions; what no entry can have is left out."""
        self._ledgers: dict[int, Any] = {}
        self.update(positions)

    @classmethod
    def existing(cls, ledger_sizes: Mapping[int, int], upto: tuple[int, int]) -> PositionSet:
        """The entries of a topic up to and including a position, which exists unless its ledger is gone."""
        found = cls()
        for ledger, size in ledger_sizes.items():
            if ledger <= upto[0]:
                found.add_range(ledger, 0, size if ledger < upto[0] else upto[1] + 1)
        return found

    def add(self, position: tuple[int, int]) -> None:
        """Add one."""
        self.add_range(position[0], position[1], position[1] + 1)

    def add_range(self, ledger: int, first: int, end: int) -> None:
        """Add the entries first … end-1 of a ledger."""
        first, end = max(first, 0), min(end, MAX_ENTRY + 1)
        if first < end and ledger >= 0:
            self._ledgers.setdefault(ledger, BitMap()).add_range(first, end)

    def update(self, positions: Iterable[tuple[int, int]]) -> None:
        """Add some."""
        by_ledger: defaultdict[int, list[int]] = defaultdict(list)
        for ledger, entry in positions:
            if 0 <= entry <= MAX_ENTRY and ledger >= 0:
                by_ledger[ledger].append(entry)
        for ledger, entries in by_ledger.items():
            self._ledgers.setdefault(ledger, BitMap()).update(entries)

    def discard(self, position: tuple[int, int]) -> bool:
        """Take one out; whether it was in."""
        if position not in self:
            return False
        ledger, entry = position
        self._ledgers[ledger].discard(entry)
        if not self._ledgers[ledger]:
            del self._ledgers[ledger]
        return True

    def forget_below(self, ledger: int) -> None:
        """Take out all that lies in earlier ledgers."""
        for each in [known for known in self._ledgers if known < ledger]:
            del self._ledgers[each]

    def clear(self) -> None:
        """Take all out."""
        self._ledgers.clear()

    @property
    def ledgers(self) -> list[int]:
        """Of which there are any, in order."""
        return sorted(self._ledgers)

    def within(self, ledgers: Iterable[int]) -> PositionSet:
        """Those of some ledgers; not to be changed."""
        return self._of({each: self._ledgers[each] for each in ledgers if each in self._ledgers})

    def copy(self) -> PositionSet:
        """An independent copy."""
        return self._of({ledger: BitMap(bitmap) for ledger, bitmap in self._ledgers.items()})

    def acked(self, acks: AckSet) -> PositionSet:
        """Those of them that are acked."""
        found = {}
        for ledger, bitmap in self._ledgers.items():
            through, single = acks.acked_in(ledger)
            found[ledger] = acked = BitMap(bitmap)
            acked.remove_range(through + 1, MAX_ENTRY + 1)
            if single:
                acked |= bitmap & single
        return self._of(found)

    def after(self, position: tuple[int, int]) -> PositionSet:
        """Those behind a position."""
        found = {}
        for ledger, bitmap in self._ledgers.items():
            if ledger >= position[0]:
                found[ledger] = rest = BitMap(bitmap)
                if ledger == position[0] and position[1] >= 0:
                    rest.remove_range(0, position[1] + 1)
        return self._of(found)

    def upto(self, position: tuple[int, int]) -> PositionSet:
        """Those up to and including a position."""
        return self - self.after(position)

    def __or__(self, other: PositionSet) -> PositionSet:
        """Those of both."""
        found = {ledger: BitMap(bitmap) for ledger, bitmap in self._ledgers.items()}
        for ledger, bitmap in other._ledgers.items():
            found[ledger] = found[ledger] | bitmap if ledger in found else BitMap(bitmap)
        return self._of(found)

    def __and__(self, other: PositionSet) -> PositionSet:
        """Those in both."""
        theirs = other._ledgers
        return self._of({each: bitmap & theirs[each] for each, bitmap in self._ledgers.items() if each in theirs})

    def __sub__(self, other: PositionSet) -> PositionSet:
        """Those that are not in the other."""
        theirs = other._ledgers
        return self._of(
            {
                each: bitmap - theirs[each] if each in theirs else BitMap(bitmap)
                for each, bitmap in self._ledgers.items()
            }
        )

    def __contains__(self, position: object) -> bool:
        """Tell whether a position is in it."""
        if not isinstance(position, tuple):
            return False
        ledger, entry = position
        return 0 <= entry <= MAX_ENTRY and entry in self._ledgers.get(ledger, ())

    def __iter__(self) -> Iterator[Position]:
        """In order."""
        for ledger in sorted(self._ledgers):
            for entry in self._ledgers[ledger]:
                yield Position(ledger, entry)

    def __len__(self) -> int:
        """How many."""
        return sum(len(bitmap) for bitmap in self._ledgers.values())

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._ledgers)

    def __eq__(self, other: object) -> bool:
        """Compare."""
        return isinstance(other, PositionSet) and self._ledgers == other._ledgers

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def _of(cls, ledgers: Mapping[int, Any]) -> PositionSet:
        found = cls()
        found._ledgers = {ledger: bitmap for ledger, bitmap in ledgers.items() if bitmap}
        return found
