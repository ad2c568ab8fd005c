"""What is remembered of entries beyond what dispatch needs, so that the books can be kept: who had one before, and how
one went that no consumer acked. Pure.

As bitmaps: up to two bytes an entry, and nothing of ledgers that the subscription has passed.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bridge.dispatch.dispatcher import Again, PositionKey
from tracker import AckSet, Position
from tracker.position_set import PositionSet


class GivenBefore:
    """Entries that this bridge has handed out, and knows nothing of any more: they go out as if for the first time."""

    def __init__(self) -> None:
        """None are."""
        self._notes: dict[Again, PositionSet] = {}
        self._before = AckSet()
        self._taken_back: AckSet | None = None
        self._never_given = PositionSet()

    def __bool__(self) -> bool:
        """Whether anything is noted."""
        return bool(self._notes) or self._taken_back is not None

    def begin(self, acks: AckSet) -> None:
        """What is acked by now, others had handed out."""
        self._before = acks.copy()

    def note_taken_back(self, acks: AckSet, gone: "GoneUnacked") -> None:
        """The cursor does not have these any more, or not all of them."""
        self._taken_back, self._never_given = acks.copy(), gone.cancelled | gone.passed

    def note(self, positions: Iterable[PositionKey], again: Again) -> None:
        """They may be delivered again, for this reason; one that was noted before keeps its first."""
        new = PositionSet(positions)
        for known in self._notes.values():
            new = new - known
        if new:
            self._notes[again] = self._notes.get(again, PositionSet()) | new

    def take(self, position: PositionKey) -> Again | None:
        """It goes out: why again, None if it was not given before."""
        for again, known in list(self._notes.items()):
            if known.discard(position):
                if not known:
                    del self._notes[again]
                return again
        was_acked = self._taken_back is not None and self._taken_back.contains(*position)
        if was_acked and not self._before.contains(*position) and position not in self._never_given:
            return Again.cursor_moved
        return None

    def advance(self, position: Position) -> None:
        """What lies in earlier ledgers is acked."""
        for again, known in list(self._notes.items()):
            known.forget_below(position.ledger)
            if not known:
                del self._notes[again]


class _Jump(NamedTuple):
    """A move of the mark-delete position over (after, upto]; `acked`: what was acked of it before, or waits to be."""

    after: Position
    upto: Position
    acked: AckSet
    waiting: PositionSet


class GoneUnacked:
    """Entries that the broker counts as acked though no consumer has: operators cancelled them, or its cursor was moved
    past them, as when messages expire, or somebody skips or clears a backlog.
    """

    def __init__(self, most: int) -> None:
        """None are. `most`: moves of the cursor remembered until they are settled; what older ones passed is acked."""
        self._most = most
        self.cancelled = PositionSet()
        self.passed = PositionSet()
        self._jumps: list[_Jump] = []

    def take_back(self, acks: AckSet) -> None:
        """The cursor was set anew, and has these acks."""
        self.cancelled, self.passed = self.cancelled.acked(acks), self.passed.acked(acks)
        self._jumps.clear()

    def note_jump(self, acks: AckSet, upto: Position, waiting: Iterable[PositionKey]) -> None:
        """The broker's mark-delete position is ahead of these acks; `waiting`: acked in transactions."""
        after = acks.mark_delete_position
        if not acks.covers_range(after, upto):
            waits = PositionSet(position for position in waiting if after < position <= upto)
            self._jumps.append(_Jump(after, upto, acks.copy(), waits))
            if len(self._jumps) > self._most:
                del self._jumps[0]

    def settle(self, ledger_sizes: Mapping[int, int], known_upto: Position, withheld: PositionSet) -> None:
        """Tell what was jumped over, of a topic with ledgers of these sizes; `withheld`: what nobody is ever given.

        What lies behind `known_upto` is told another time.
        """
        left = []
        for jump in self._jumps:
            if jump.upto > known_upto:
                left.append(jump)
                continue
            over = PositionSet.existing(ledger_sizes, jump.upto).after(jump.after)
            self.passed = self.passed | (over - over.acked(jump.acked) - jump.waiting - withheld)
        self._jumps = left
        first = min(ledger_sizes, default=0)
        self.cancelled.forget_below(first)
        self.passed.forget_below(first)
        self.passed = self.passed - self.cancelled
