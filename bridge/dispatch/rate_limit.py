"""Dispatch rates: how much of what could go out goes out now, and when more may. Pure: the time is an argument.

A bucket for messages and one for bytes, each full at first, filled at the rate, and holding what one period brings.
What goes out may take one below zero, by the batch or entry that was larger than what was left: later ones pay for it
(source: `DispatchRateLimiter`, `AsyncTokenBucket`).
"""

from collections.abc import Iterable
from typing import Final, Protocol

from bridge.broker.policies import UNLIMITED, Rate

WAIT_S: Final = 0.01
"""What was used up is looked at again no sooner: some go out together then, at high rates."""


_ONE: Final = 1 - 1e-9
"""A message, but for what is lost in rounding."""


class Sized(Protocol):
    """An entry that is ready to go out."""

    @property
    def message_count(self) -> int:
        """Messages in it."""

    @property
    def raw(self) -> bytes:
        """What is sent of it."""


class _Bucket:
    def __init__(self, amount: int, period_s: int, tokens: float, now_s: float) -> None:
        self.capacity = amount
        self.tokens = tokens
        self._per_s = amount / period_s
        self._at_s = now_s

    def fill(self, now_s: float) -> float:
        """What is there now. A clock that goes back gives nothing twice."""
        if now_s > self._at_s:
            self.tokens = min(self.tokens + (now_s - self._at_s) * self._per_s, float(self.capacity))
            self._at_s = now_s
        return self.tokens

    def wait_s(self) -> float:
        """How long until something may go out, as of the last `fill`."""
        return 0.0 if self.tokens >= _ONE else max((1 - self.tokens) / self._per_s, WAIT_S)


class RateLimiter:
    """One dispatch rate, of a topic or a subscription."""

    def __init__(self) -> None:
        """Nothing is limited."""
        self.rate = UNLIMITED
        self._messages: _Bucket | None = None
        self._bytes: _Bucket | None = None

    @property
    def limits(self) -> bool:
        """Whether there is any limit."""
        return self._messages is not None or self._bytes is not None

    def set_rate(self, rate: Rate, now_s: float) -> None:
        """From now on; what was left of the former rate is kept as far as the new one allows, what was owed is not."""
        if rate == self.rate:
            return
        self._messages = _changed(self._messages, rate.messages, rate.period_s, now_s)
        self._bytes = _changed(self._bytes, rate.bytes, rate.period_s, now_s)
        self.rate = rate

    def wait_s(self, now_s: float) -> float:
        """How long until something may go out; 0 when it may now."""
        wait_s = 0.0
        for bucket in (self._messages, self._bytes):
            if bucket is not None:
                bucket.fill(now_s)
                wait_s = max(wait_s, bucket.wait_s())
        return wait_s

    def room(self) -> tuple[float, float]:
        """Messages, and bytes, that may go out, as of the last `wait_s`."""
        unlimited = float("inf")
        messages = unlimited if self._messages is None else self._messages.tokens
        return messages, unlimited if self._bytes is None else self._bytes.tokens

    def spend(self, messages: int, size: int) -> None:
        """So much went out."""
        if self._messages is not None:
            self._messages.tokens -= messages
        if self._bytes is not None:
            self._bytes.tokens -= size


def _changed(before: _Bucket | None, amount: int, period_s: int, now_s: float) -> _Bucket | None:
    if amount <= 0:
        return None
    tokens = float(amount) if before is None else max(min(before.fill(now_s), amount), 0.0)
    return _Bucket(amount, period_s, tokens, now_s)


class Throttle:
    """What the rates of a subscription and of its topic together allow it."""

    def __init__(self, topic: RateLimiter) -> None:
        """`topic`: shared by all subscriptions of a topic."""
        self.subscription = RateLimiter()
        self._topic = topic
        self._entry_messages, self._entry_bytes = 1.0, 1.0  # what is in an entry, as seen lately

    @property
    def limits(self) -> bool:
        """Whether there is any limit."""
        return self.subscription.limits or self._topic.limits

    def wait_s(self, now_s: float) -> float:
        """How long until something may go out; 0 when it may now."""
        return max(self.subscription.wait_s(now_s), self._topic.wait_s(now_s)) if self.limits else 0.0

    def entries(self, most: int) -> int:
        """How many entries it is worth while to take, at least one, as of the last `wait_s`."""
        if not self.limits:
            return most
        messages, size = self._room()
        return max(int(min(most, messages / self._entry_messages, size / self._entry_bytes)), 1)

    def fitting(self, offers: Iterable[Sized]) -> int:
        """How many of these may go out, in their order; the last one may be larger than what is left."""
        messages, size = self._room()
        count = 0
        for offer in offers:
            if messages < _ONE or size < _ONE:
                break
            messages, size, count = messages - offer.message_count, size - len(offer.raw), count + 1
        return count

    def spend(self, sent: Iterable[Sized]) -> None:
        """These went out."""
        messages = size = 0
        for offer in sent:
            messages, size = messages + offer.message_count, size + len(offer.raw)
            self._entry_messages += (max(offer.message_count, 1) - self._entry_messages) / 4
            self._entry_bytes += (max(len(offer.raw), 1) - self._entry_bytes) / 4
        for limiter in (self._topic, self.subscription):
            limiter.spend(messages, size)

    def _room(self) -> tuple[float, float]:
        topic, own = self._topic.room(), self.subscription.room()
        return min(topic[0], own[0]), min(topic[1], own[1])
