"""What was published, what came, what was acked, of one topic's subscription; and why something came again."""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.fault_run.history import KEPT_S, SETTLED_S, Happened, History, Move

NEVER = float("-inf")
SEEK_SLACK_MS = 2_000
"""Where exactly a seek to a time lands is the broker's affair, within so much."""
CLOCK_SLACK_S = 1.5
"""What was due by a clock that was ahead may come so long after it was set right: it waited in a queue."""

TAKEN_S = 0.3
"""A message is looked at so long after it came at most: consumers' queues are short."""

RETURNED = "acked and returned"
UNEXPLAINED = "unexplained"
FORGOTTEN = "acks beyond those a broker stores, and another owner since"


@dataclass(slots=True)
class Copy:
    """One stored copy of a message: a producer that gets no answer sends again. Seconds of the monotonic clock."""

    place: str
    received_at: float = NEVER
    received_by: str = ""
    acked_at: float = NEVER
    acked_by: str = ""
    nacked_at: float = NEVER


@dataclass(slots=True)
class Message:
    """`sent_ms`, `deliver_at_ms`: epoch; 0 where it is not delayed."""

    sent_ms: int
    deliver_at_ms: int
    stored: bool = False
    copies: list[Copy] = field(default_factory=list)

    @property
    def acked_at(self) -> float:
        return max((copy.acked_at for copy in self.copies), default=NEVER)


class Again(NamedTuple):
    """A copy came once more, `at`; what was known of it until then."""

    number: int
    sent_ms: int
    at: float
    by: str
    redelivery_count: int
    received_at: float
    received_by: str
    acked_at: float
    acked_by: str
    nacked_at: float

    @property
    def acked(self) -> bool:
        return self.acked_at >= self.received_at

    def told(self) -> str:
        acked = f"acked {self.at - self.acked_at:.2f} s before by {self.acked_by}" if self.acked else "not acked"
        before = self.at - self.received_at
        who = f"{self.by}, the {self.redelivery_count}. time again"
        return f"{self.number} at {self.at:.2f} by {who}, by {self.received_by} {before:.2f} s before, {acked}"


class Account:
    """Consumers' threads write, others read; `history` is of the whole run."""

    def __init__(self, topic: str, history: History) -> None:
        self.topic = topic
        self.messages: list[Message] = []
        self.received = 0
        self.again: list[Again] = []
        self.early: list[str] = []
        self.last_at: float | None = None
        self.silence = (0.0, 0.0)
        """The longest time in which nothing came, in s, and when it ended."""
        self.taken_over: list[Happened] = []
        """When a bridge became its owner, as the logs say in the end: bridges share topics, without a fault."""
        self.owners: list[tuple[float, str]] = []
        """Who became its owner, and when."""
        self.holes: list[Happened] = []
        """When its cursor had more holes than a broker stores."""
        self._history = history
        self._lock = threading.Lock()
        self._low = 0  # everything before was acked once

    # -- what happens

    def publish(self, sent_ms: int, deliver_at_ms: int) -> int:
        """The number of a message that is about to be sent."""
        self.messages.append(Message(sent_ms, deliver_at_ms))
        return len(self.messages) - 1

    def receive(self, number: int, place: str, at: float, at_ms: int, by: str, redelivery_count: int) -> Copy:
        """`by`: the consumer's name."""
        message = self.messages[number]
        if message.deliver_at_ms > at_ms + self._history.ahead_ms(at - CLOCK_SLACK_S, at):
            self.early.append(f"{number} {message.deliver_at_ms - at_ms} ms at {at:.2f} by {by}")
        with self._lock:
            self.received += 1
            if self.last_at is not None:
                self.silence = max(self.silence, (at - self.last_at, at))
            self.last_at = at
            copy = next((each for each in message.copies if each.place == place), None)
            if copy is None:
                copy = Copy(place)
                message.copies.append(copy)
            else:
                before = (copy.received_at, copy.received_by, copy.acked_at, copy.acked_by, copy.nacked_at)
                self.again.append(Again(number, message.sent_ms, at, by, redelivery_count, *before))
            copy.received_at, copy.received_by = at, by
        return copy

    def oldest_unacked_ms(self, now_ms: int) -> int:
        """When the oldest message that nobody has acked yet was sent; now where there is none."""
        while self._low < len(self.messages) and self.messages[self._low].acked_at > NEVER:
            self._low += 1
        return self.messages[self._low].sent_ms if self._low < len(self.messages) else now_ms

    # -- what was to be

    @property
    def stored(self) -> int:
        return sum(each.stored for each in self.messages)

    @property
    def copies(self) -> int:
        """More than were stored: copies whose first answer was lost."""
        return sum(len(each.copies) for each in self.messages)

    def owed(self) -> list[int]:
        """What is to come still: stored, and not acked, or sought since.

        A client sends acks late: those of just before a seek may be of after it.
        """
        moves = [move for move in self._moves() if move.certain]
        certain = [
            (move.began - SETTLED_S, move.from_ms + SEEK_SLACK_MS)
            for move in moves
            if not self._history.crashed(move.began, move.ended + KEPT_S)
        ]
        found = []
        for number, message in enumerate(self.messages):
            if message.stored:
                needed = max((since for since, from_ms in certain if message.sent_ms >= from_ms), default=NEVER)
                acked_at = message.acked_at
                if acked_at == NEVER or acked_at < needed:
                    found.append(number)
        return found

    def settled(self) -> int:
        """How many acks are known to be kept, whatever came after: what this account can accuse by."""
        return sum(
            self._is_settled(copy.received_at, copy.acked_at, copy.acked_by) for copy in self._copies() if copy.acked_by
        )

    def causes(self) -> tuple[Counter[str], list[Again]]:
        """Why what came again did, and what nothing explains, or should not have."""
        counted: Counter[str] = Counter()
        listed = []
        for each in self.again:
            cause = self._cause(each)
            counted[cause] += 1
            if cause in (RETURNED, UNEXPLAINED):
                listed.append(each)
        return counted, listed

    # -- why

    def _cause(self, again: Again) -> str:
        began = again.acked_at if again.acked else again.received_at
        if any(
            move.began <= again.at and move.ended >= began - SETTLED_S and again.sent_ms >= move.from_ms - SEEK_SLACK_MS
            for move in self._moves()
        ):
            return "seek"
        if again.nacked_at >= began - SETTLED_S:
            # Asked for, delivered again for another reason and acked, it comes once more: as without a bridge.
            return "negative ack"
        if not again.acked:
            happened = self._history.between(again.received_at - SETTLED_S, again.at)
            if happened is not None:
                return "in flight at a fault"
            if self._was_elsewhere(again.received_by, again.received_at - SETTLED_S, again.at):
                return "in flight when the topic was taken over"
            return UNEXPLAINED
        return self._cause_of_acked(again)

    def _cause_of_acked(self, again: Again) -> str:
        if again.at < again.acked_at + SETTLED_S:
            return "on its way when the ack was sent"
        if self._history.crashed(again.acked_at, again.acked_at + KEPT_S):
            return "ack not stored by the killed broker yet"
        if not self._is_settled(again.received_at, again.acked_at, again.acked_by):
            return "acked near a fault"
        if self._is_forgotten(again):
            return FORGOTTEN
        return RETURNED

    def _is_forgotten(self, again: Again) -> bool:
        """The broker had more acks than it stores, and who noted them is not who dispatched then: decisions 24, 35."""
        if not any(each.touches(again.acked_at, again.at) for each in self.holes):
            return False
        noted_by = [name for at, name in self.owners if at <= again.acked_at][-1:]
        return any(again.acked_at < at <= again.at and [name] != noted_by for at, name in self.owners)

    def _is_settled(self, received_at: float, acked_at: float, by: str) -> bool:
        began, ended = min(received_at, acked_at - SETTLED_S), acked_at + SETTLED_S
        if self._history.crashed(acked_at, acked_at + KEPT_S):
            return False
        # Who was connected when it came has acked it to whom it came from: what was before is no excuse.
        if self._was_elsewhere(by, received_at - TAKEN_S, ended):
            return False
        return self._history.between(began, ended) is None

    def _was_elsewhere(self, consumer: str, began: float, ended: float) -> bool:
        """Not connected, or sent from one bridge to another: that may be too quick for who looks now and then."""
        if self._history.was_away(consumer, began, ended):
            return True
        return any(each.touches(began, ended) for each in self.taken_over)

    def _moves(self) -> list[Move]:
        return [move for move in self._history.moves if move.topic == self.topic]

    def _copies(self) -> Iterator[Copy]:
        for message in self.messages:
            yield from message.copies
