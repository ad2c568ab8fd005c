"""What was sent to one consumer, or to all of a subscription: how much, how fast, and when last. Pure."""

from collections import deque
from typing import Final, NamedTuple

_SLOT_MS: Final = 10_000
_SLOTS: Final = 6


class Rates(NamedTuple):
    """Per second, of the last minute, as brokers tell them."""

    messages: float = 0.0
    bytes: float = 0.0
    again: float = 0.0


class Sent:
    """Counted since this bridge knows of whom it was sent to."""

    __slots__ = ("_slots", "bytes", "last_ms", "messages")

    def __init__(self) -> None:
        """Nothing yet."""
        self.messages = 0
        self.bytes = 0
        """Of the entries, metadata and payload, as brokers count them."""
        self.last_ms = 0
        """When, in epoch ms; 0 before the first."""
        self._slots: deque[list[int]] = deque(maxlen=_SLOTS + 1)  # each: number, messages, bytes, messages again

    def note(self, now_ms: int, messages: int, size: int, again: int) -> None:
        """Some messages went out together; `again`: those that had before."""
        self.messages += messages
        self.bytes += size
        self.last_ms = now_ms
        number = now_ms // _SLOT_MS
        if not self._slots or self._slots[-1][0] != number:
            self._slots.append([number, 0, 0, 0])
        slot = self._slots[-1]
        slot[1] += messages
        slot[2] += size
        slot[3] += again

    def rates(self, now_ms: int) -> Rates:
        """Over six slots of ten seconds that are whole."""
        current = now_ms // _SLOT_MS
        whole = [slot for slot in self._slots if current - _SLOTS <= slot[0] < current]
        seconds = _SLOTS * _SLOT_MS / 1000
        return Rates(*(sum(slot[column] for slot in whole) / seconds for column in (1, 2, 3)))
