"""What the broker's policies say about dispatch: of a topic, else of its namespace, else of the broker."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from bridge.broker.admin import AdminClient, AdminError

T = TypeVar("T")


class Rate(NamedTuple):
    """At most so many messages, and so many bytes, in a period; 0: as many as there are.

    `relative`: what is published in a second comes on top.
    """

    messages: int = 0
    bytes: int = 0
    period_s: int = 1
    relative: bool = False

    def beside(self, published: tuple[float, float]) -> "Rate":
        """A relative rate, where so many messages and bytes a second are published; others stay as they are."""
        if not self.relative:
            return self
        messages, size = published
        return Rate(
            self.messages + int(messages) if self.messages else 0,
            self.bytes + int(size) if self.bytes else 0,
            self.period_s,
        )


UNLIMITED = Rate()

ACK_RANGES_MAX: Final = 10_000
"""Pulsar's default for the setting below."""
_ACK_RANGES: Final = "managedLedgerMaxUnackedRangesToPersist"


class TopicPolicies(NamedTuple):
    """Of a topic partition. Unacked messages: 0 for no limit, None where nobody has said."""

    rate: Rate = UNLIMITED
    max_unacked_per_consumer: int | None = None
    max_unacked_per_subscription: int | None = None
    ack_ranges_max: int | None = None
    """With `dispatcherPauseOnAckStatePersistent`: nothing new goes out while a cursor has more ranges of acks, for the
    broker could not store all of them."""


class PolicyReader:
    """Asks for one policy after the other: what cannot be read stays as it was. Source of names and defaults: the
    resources `PersistentTopics` and `Namespaces` of the admin interface."""

    def __init__(self, admin: AdminClient, topic: str) -> None:
        """`topic`: the full name of a topic partition."""
        self._admin = admin
        self._topic = topic

    async def topic_policies(self, known: TopicPolicies) -> tuple[TopicPolicies, list[str]]:
        """Those in force; why some, if any, stay as they were known."""
        reasons: list[str] = []

        async def ask(before: T, name: str, namespace: str, read: Callable[[Any], T]) -> T:
            return await _or(before, self._admin.policy(self._topic, name, read, namespace), reasons)

        on_consumer, on_subscription = "maxUnackedMessagesOnConsumer", "maxUnackedMessagesOnSubscription"
        per_consumer, per_subscription = "maxUnackedMessagesPerConsumer", "maxUnackedMessagesPerSubscription"

        async def ask_rate() -> Rate:
            return await self._absolute(await ask(known.rate, "dispatchRate", "dispatchRate", rate_in), reasons)

        rate, consumer_max, subscription_max, ranges = await asyncio.gather(
            ask_rate(),
            ask(known.max_unacked_per_consumer, on_consumer, per_consumer, count_in),
            ask(known.max_unacked_per_subscription, on_subscription, per_subscription, count_in),
            self._ack_ranges_max(known.ack_ranges_max, reasons),
        )
        return TopicPolicies(rate, consumer_max, subscription_max, ranges), reasons

    async def subscription_rate(self, name: str, known: Rate) -> tuple[Rate, list[str]]:
        """The dispatch rate of a subscription, its own or that of all; why it stays as it was known, if it does."""
        reasons: list[str] = []
        read = self._admin.subscription_policy(self._topic, name, "dispatchRate", rate_in, "subscriptionDispatchRate")
        return await self._absolute(await _or(known, read, reasons), reasons), reasons

    async def _absolute(self, rate: Rate, reasons: list[str]) -> Rate:
        if not rate.relative:
            return rate
        return rate.beside(await _or((0.0, 0.0), self._admin.published(self._topic), reasons))

    async def _ack_ranges_max(self, known: int | None, reasons: list[str]) -> int | None:
        """A broker of 4.0.8 leaves the namespace out when it is asked for what applies to a topic.

        Its own settings it tells to super users only.
        """
        name, failed = "dispatcherPauseOnAckStatePersistent", list[str]()
        of_topic = await _or(False, self._admin.policy(self._topic, name, flag_in, name), failed)
        of_namespace = await _or(False, self._admin.namespace_policy(self._topic, name, flag_in), failed)
        reasons += failed
        if failed:
            return known
        if not (of_topic or of_namespace):
            return None
        return await _or(known or ACK_RANGES_MAX, self._admin.broker_setting(_ACK_RANGES, _number_in_text), [])


async def _or(known: T, asked: Awaitable[T], reasons: list[str]) -> T:
    """What was asked for, or what is known when there is no answer that can be read."""
    try:
        return await asked
    except AdminError as error:
        reasons.append(str(error))
        return known


def rate_in(body: Any) -> Rate:
    """A dispatch rate; no limit where none is set. Raises ValueError, TypeError or KeyError for anything else."""
    if body is None:
        return UNLIMITED
    if not isinstance(body, Mapping):
        raise TypeError(f"no rate: {str(body)[:50]!r}")
    messages, size = _whole(body["dispatchThrottlingRateInMsg"]), _whole(body["dispatchThrottlingRateInByte"])
    period_s = max(_whole(body.get("ratePeriodInSecond", 1)), 1)
    return Rate(max(messages, 0), max(size, 0), period_s, body.get("relativeToPublishRate") is True)


def count_in(body: Any) -> int | None:
    """A number of messages, 0 for no limit; None where nothing is set. Raises TypeError for anything else."""
    return None if body is None else max(_whole(body), 0)


def flag_in(body: Any) -> bool:
    """Whether something is on; off where nothing is set. Raises TypeError for anything else."""
    if body is not None and not isinstance(body, bool):
        raise TypeError(f"neither true nor false: {str(body)[:50]!r}")
    return body is True


def _number_in_text(body: Any) -> int:
    """Of a setting, as a broker tells it. Raises ValueError or TypeError where it is none above 0."""
    number = int(body)
    if number <= 0:
        raise ValueError(f"not above 0: {number}")
    return number


def _whole(body: Any) -> int:
    if not isinstance(body, int) or isinstance(body, bool):
        raise TypeError(f"no whole number: {str(body)[:50]!r}")
    return body
