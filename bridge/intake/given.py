"""What of a topic partition the broker gives a reader, and what it passes over: markers, messages of aborted
transactions, whatever its filters hold back. Nobody is ever given those. Pure.
"""

from collections.abc import Mapping, Sequence

from bridge.protocol.entries import StoredEntry
from tracker import Position
from tracker.position_set import PositionSet


class Given:
    """Of one reader that goes on where another one ended. Remembers what was passed over, not what was given."""

    def __init__(self, start: Position, most: int) -> None:
        """Nothing is known of what lies at or below `start`; `most`: positions remembered, then it begins anew."""
        self.start = start
        self._last = start
        self._most = most
        self._passed_over = PositionSet()
        self._ends: dict[int, int] = {}  # the last entry given of ledgers that others have followed

    @property
    def upto(self) -> Position:
        """What was given last."""
        return self._last

    def note(self, entries: Sequence[StoredEntry]) -> None:
        """They were given, in this order; those that were given before may be among them."""
        last = self._last
        if entries[-1][:2] <= last:
            return
        span = entries[-1].entry - entries[0].entry + 1
        if entries[0][:2] > last and entries[0].ledger == entries[-1].ledger and span == len(entries):
            self._step(last, entries[0].ledger, entries[0].entry)
        else:
            for each in entries:
                if each[:2] > last:
                    self._step(last, each.ledger, each.entry)
                    last = Position(each.ledger, each.entry)
        self._last = Position(entries[-1].ledger, entries[-1].entry)

    def _step(self, last: Position, ledger: int, entry: int) -> None:
        if ledger != last.ledger:
            self._ends[last.ledger] = last.entry
            self._passed_over.add_range(ledger, 0, entry)
        elif entry > last.entry + 1:
            self._passed_over.add_range(ledger, last.entry + 1, entry)

    def marker(self, position: Position) -> None:
        """It was given, and is for no consumer."""
        self._passed_over.add(position)

    def forget_below(self, position: Position) -> None:
        """Whoever asks knows that all up to there is acked."""
        self.start = max(self.start, Position(position.ledger, -1))
        self._passed_over.forget_below(position.ledger)
        for ledger in [known for known in self._ends if known < position.ledger]:
            del self._ends[ledger]
        if len(self._passed_over) > self._most:
            self.start = self._last
            self._passed_over.clear()
            self._ends.clear()

    def withheld(self, ledger_sizes: Mapping[int, int]) -> PositionSet:
        """What was passed over, of a topic with ledgers of these sizes."""
        found = self._passed_over.copy()
        for ledger, last in self._ends.items():
            found.add_range(ledger, last + 1, ledger_sizes.get(ledger, 0))
        known = set(ledger_sizes)
        for ledger in known - self._ends.keys():
            if self.start.ledger < ledger < self._last.ledger:
                found.add_range(ledger, 0, ledger_sizes[ledger])
        return found.after(self.start)
