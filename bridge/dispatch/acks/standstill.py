"""Notices that a cursor stands before an entry that is acked here: the broker has lost that ack. Pure.

It drops acks without a word that come through a consumer which it has closed. Whoever sends them may learn of the
closing later, on another connection.
"""

from tracker import AckSet, Position


class Standstill:
    """Of one subscription's cursor; times are of a clock that is never set, in seconds."""

    def __init__(self, repair_after_s: float) -> None:
        """`repair_after_s`: how long a cursor stands before anything is done, for acks take a moment."""
        self._repair_after_s = repair_after_s
        self._position: Position | None = None
        self._patience_s = repair_after_s
        self._since_s = 0.0

    def note(self, mark_delete_position: Position, acks: AckSet, now_s: float) -> bool:
        """The broker says where its cursor is; whether it is to be given what it lacks of `acks`.

        If that does not help, it is said again after twice as long each time.
        """
        if mark_delete_position != self._position or not acks.is_acked_behind(mark_delete_position):
            self._position, self._since_s, self._patience_s = mark_delete_position, now_s, self._repair_after_s
            return False
        if now_s - self._since_s < self._patience_s:
            return False
        self._since_s, self._patience_s = now_s, 2 * self._patience_s
        return True
