"""Acks that come while nobody knows how their subscription's cursor stands: kept until it is read, then judged.

A broker drops acks on its way to a consumer that it is closing, without a word. Whether that was for a seek (what was
acked is to come again) or for an unload (it is not) shows only when the cursor is read.
"""

from collections import defaultdict
from collections.abc import Container
from typing import Generic, TypeVar

from bridge.dispatch.dispatcher import PositionKey
from bridge.ledgers.cursor_history import UNKNOWN

C = TypeVar("C")


class AckNotes(Generic[C]):
    """Of one subscription; `C` identifies a consumer. What is too much is forgotten: it is delivered again."""

    def __init__(self, most: int) -> None:
        """`most`: acks of this subscription that are kept."""
        self._most = most
        self._early: defaultdict[C, set[PositionKey]] = defaultdict(set)
        self._late: defaultdict[int, set[PositionKey]] = defaultdict(set)
        self._count = 0

    def note_early(self, consumer: C, position: PositionKey) -> None:
        """Of a consumer that the broker knows: it has the ack, unless it closes the consumer first."""
        self._note(self._early[consumer], position)

    def note_late(self, history: int, position: PositionKey) -> None:
        """Of a consumer that the broker closed; `history`: that of the cursor when it was served."""
        if history != UNKNOWN:
            self._note(self._late[history], position)

    def left(self, consumer: C, history: int) -> None:
        """The consumer is gone before its subscription's cursor was read; `history` as for `note_late`."""
        for position in self._early.pop(consumer, ()):
            self._count -= 1
            self.note_late(history, position)

    def judge(self, history: int, attached: Container[C]) -> set[PositionKey]:
        """Those that hold now that the cursor is known to be of a history; all are forgotten."""
        held = set(self._late.get(history, ())) if history != UNKNOWN else set()
        for consumer, positions in self._early.items():
            if consumer in attached:
                held |= positions
        self._early.clear()
        self._late.clear()
        self._count = 0
        return held

    def _note(self, positions: set[PositionKey], position: PositionKey) -> None:
        if self._count < self._most:
            self._count += 1
            positions.add(position)
