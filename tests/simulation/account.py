"""What was owed, what came, and what should not have come: the promises, held against one subscription's messages."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator

from bridge.protocol.frames import entry_parts
from tests.simulation.key_account import KeyAccount, Stay
from tests.simulation.messages import SETTLED_S, Broken, Message, Place

STORED_S = 12.0
"""Brokers store cursors every ten seconds, or every second."""
NOTICED_S = 10.0
"""By then a bridge that nothing disturbs knows what became of the topic or its cursor: it asks every two seconds."""
MARKING_S = 5.0
"""So long a bridge tries to mark a cursor, before or after it lets the first consumer in."""


class Account:
    """Of one topic and subscription; times are true seconds."""

    def __init__(
        self,
        now_s: Callable[[], float],
        now_ms: Callable[[], int],
        is_stored: Callable[[Place], bool],
        consumers: Iterable[str] = ("consumer",),
    ) -> None:
        """`is_stored`: whether the broker has an entry still; `consumers`: of the subscription, none is there yet."""
        self.messages: dict[str, Message] = {}
        self.keys: KeyAccount | None = None
        """Where keys are shared."""
        self.now_ms = now_ms
        self.redelivered = 0
        self.on_received: Callable[[str], None] = lambda _: None
        """Told who sent a message."""
        self._by_place: dict[Place, Message] = {}
        self._now_s = now_s
        self._is_stored = is_stored
        self._moved: list[tuple[float, float, bool]] = []
        self._disturbed: list[list[float]] = []
        self._consumers = frozenset(consumers)
        self._away = set(consumers)
        self._first_came_at = 0.0
        self._away_since: float | None = 0.0
        self._here_since = math.inf
        self._names = 0
        self._owner_changed_at = 0.0
        self._lives = 0
        self._deleted_at = -math.inf

    # -- what happens

    def name(self) -> str:
        """Of a message."""
        self._names += 1
        return f"m{self._names}"

    def published(self, text: str, deliver_at_ms: int | None, key: str) -> None:
        """It may be stored."""
        self.messages[text] = Message(text, deliver_at_ms, key, life=self._lives)

    def stored(self, text: str, place: Place) -> None:
        """It is stored for certain."""
        message = self.messages[text]
        message.place, message.stored_at = place, self._now_s()
        self._by_place[place] = message

    def received(self, raw: bytes, place: Place, sent_ms: int, sender: str, stay: Stay) -> int:
        """A message came to a consumer, sent when the sender's clock said `sent_ms`; returns its number of messages."""
        metadata, payload = entry_parts(raw)
        message = self.messages.get(payload.decode().rstrip("."))
        if message is None:
            raise Broken(f"a message nobody published: {payload!r}")
        now = self._now_s()
        if message.deliver_at_ms is not None and sent_ms < message.deliver_at_ms:
            raise Broken(f"{message.text} came {message.deliver_at_ms - sent_ms} ms early from {sender}")
        self._check_gone(message, now)
        self._check_acked(message, now)
        self.on_received(sender)
        message.place = place
        self._by_place[place] = message
        self.redelivered += bool(message.received)
        message.received.append(now)
        if self.keys is not None:
            self.keys.received(message, stay, sender)
        return max(metadata.num_messages_in_batch, 1)

    def acked(self, place: Place) -> None:
        """The consumer sent an ack."""
        self._by_place[place].acked.append(self._now_s())
        self._given_up(place)

    def nacked(self, place: Place) -> None:
        """The consumer wants it again."""
        self._by_place[place].nacked.append(self._now_s())
        self._given_up(place)

    def _given_up(self, place: Place) -> None:
        if self.keys is not None:
            self.keys.given_up(self._by_place[place])

    def here(self, consumer: str, here: bool) -> None:
        """A consumer is subscribed, or not any more: one that is away may have had whatever is acked then."""
        if here and self._away == self._consumers:
            self._first_came_at = self._now_s()
        (self._away.discard if here else self._away.add)(consumer)
        here = not self._away
        if here and self._away_since is not None:
            self._disturbed.append([self._away_since, self._now_s()])
            self._away_since, self._here_since = None, self._now_s()
        elif not here and self._away_since is None:
            self._away_since, self._here_since = self._now_s(), math.inf

    @property
    def present_s(self) -> float:
        """How long all consumers have been there; below 0 while one is not."""
        return self._now_s() - self._here_since

    @contextlib.contextmanager
    def disturbance(self) -> Iterator[None]:
        """What happens inside is done to brokers or bridges, or between them."""
        span = [self._now_s(), math.inf]
        self._disturbed.append(span)
        try:
            yield
        finally:
            span[1] = self._now_s()

    @property
    def disturbed_until(self) -> float:
        """When the last of what was done to brokers and bridges was over; infinite while it is not."""
        return max((span[1] for span in self._disturbed), default=0.0)

    def forgotten(self, subscription: str, places: list[Place], marked: bool) -> None:
        """The broker lost acks; `marked`: its cursor bears a mark."""
        for place in places if subscription == "s" else ():
            if place in self._by_place:
                self._by_place[place].forgotten_at = self._now_s()
                self._by_place[place].marked = marked or not self._kept_from_marking()

    def _kept_from_marking(self) -> bool:
        """Whether something stood in the way when the first consumer came: only then a cursor can be given its mark."""
        came = self._first_came_at
        near = (began <= came + MARKING_S and ended >= came - MARKING_S for began, ended in self._disturbed)
        moved = (began <= came and ended >= came for began, ended, _ in self._moved)
        return any(near) or any(moved)

    def remembered(self, subscription: str, places: list[Place]) -> None:
        """The broker was killed before it stored that a seek takes these acks back: it will not deliver them."""
        for place in places if subscription == "s" else ():
            if place in self._by_place:
                self._by_place[place].remembered_at = self._now_s()

    def owner_changed(self) -> None:
        """Another bridge, or one that may not know what was acked here, is to dispatch from now on."""
        self._owner_changed_at = self._now_s()

    def moved(self, began: float, certain: bool) -> None:
        """The cursor was set to the beginning, or the subscription made anew: all is owed again."""
        self._moved.append((began, self._now_s(), certain))

    def deleted(self) -> None:
        """The topic was deleted, with all that was published so far."""
        self._lives += 1
        self._deleted_at = self._now_s()

    def expired(self, subscription: str, places: list[Place]) -> None:
        """The broker moved a cursor past entries that were not acked: they may be gone."""
        for place in places if subscription == "s" else ():
            if place in self._by_place:
                self._by_place[place].expired_at = self._now_s()

    # -- the promises

    def _check_gone(self, message: Message, now: float) -> None:
        """What was deleted or has expired comes no more, once nothing keeps bridges from knowing of it."""
        disturbed_at = now if self._away_since is not None else self.disturbed_until
        if message.life < self._lives and now > max(self._deleted_at, disturbed_at) + NOTICED_S:
            raise Broken(f"{message.text} of a topic that was deleted {now - self._deleted_at:.1f} s ago came")
        expired = message.expired_at
        if expired is None or message.forgotten_at >= expired or self._returned_since(expired):
            return
        if now > max(expired, disturbed_at) + NOTICED_S:
            raise Broken(f"{message.text}, expired {now - expired:.1f} s ago, came")

    def _returned_since(self, at: float) -> bool:
        return any(ended >= at - SETTLED_S for _, ended, _ in self._moved)

    def _check_acked(self, message: Message, now: float) -> None:
        settled = [at for at in message.acked if at < now - SETTLED_S and self._is_settled(at, now)]
        if settled and message.forgotten_at >= settled[-1]:
            # The broker lost the ack. Who noted it is not who dispatches now, or the mark of the cursor's new history
            # was lost with it: then nobody can tell forgotten acks from a cursor that was set anew.
            # Or it could not be marked.
            marked_lately = any(ended > message.forgotten_at - STORED_S for _, ended, _ in self._moved)
            if self._owner_changed_at >= settled[-1] or marked_lately or not message.marked:
                return
        if settled and not any(settled[-1] - SETTLED_S < at < now for at in message.nacked):
            raise Broken(f"{message.text}, acked {now - settled[-1]:.2f} s ago, came again")

    def _is_settled(self, acked_at: float, now: float) -> bool:
        if any(began <= now and ended >= acked_at - SETTLED_S for began, ended, _ in self._moved):
            return False
        if self._away_since is not None and self._away_since <= acked_at + SETTLED_S:
            return False
        near = (began <= acked_at + SETTLED_S and ended >= acked_at - SETTLED_S for began, ended in self._disturbed)
        return not any(near)

    def owed(self) -> list[Message]:
        """What is to come still: stored, and neither acked nor expired since the cursor was last set for certain."""
        began = max((move[0] for move in self._moved if move[2]), default=-SETTLED_S) - SETTLED_S
        return [
            each
            for each in self.messages.values()
            if each.place is not None
            and each.stored_at is not None
            and self._is_stored(each.place)
            and not (each.acked and each.acked[-1] >= began)
            and each.remembered_at < began
            and not (each.expired_at is not None and each.expired_at >= began)
        ]
