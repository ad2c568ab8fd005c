"""Consumers wait here until the broker lists them: what it does not list gets nothing.

The gateway has seen the broker's SUCCESS by then. This is the second lock: whatever may be wrong with the first, a
consumer without a place in the broker's own list has no say in what is delivered and acked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

import structlog

from bridge.broker.admin import AdminError
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.limits import DispatchLimits
from bridge.net.backoff import Backoff
from bridge.net.failures import Failures, Part
from bridge.protocol.pulsar_pb2 import CommandAck

log = structlog.get_logger(__name__)

Listed = Callable[[str, Collection[str]], Awaitable[set[str]]]


@dataclass(slots=True)
class Early:
    """What a consumer said before it was listed."""

    since_s: float
    permits: int = 0
    acks: list[CommandAck] = field(default_factory=list)


class Admission:
    """All consumers of a topic partition that wait are looked for at once, with one call under way at a time."""

    def __init__(
        self,
        listed: Listed,
        admit: Callable[[TrackedConsumer, Early], None],
        on_trouble: Callable[[str, str | None], None],
        failures: Failures,
        backoff: Callable[[], Backoff],
        limits: DispatchLimits,
    ) -> None:
        """`listed`: which of some marks the broker lists for a topic; `admit`: the consumer is one;
        `on_trouble`: why nobody can be let in to a topic, None when that is over."""
        self._listed = listed
        self._admit = admit
        self._on_trouble = on_trouble
        self._failures = failures
        self._new_backoff = backoff
        self._limits = limits
        self._waiting: dict[str, dict[TrackedConsumer, Early]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, consumer: TrackedConsumer) -> None:
        """Look whether the broker lists the consumer."""
        loop = asyncio.get_running_loop()
        self._waiting.setdefault(consumer.topic, {})[consumer] = Early(loop.time())
        if consumer.topic not in self._tasks:
            self._tasks[consumer.topic] = loop.create_task(self._look(consumer.topic))

    def early(self, consumer: TrackedConsumer) -> Early | None:
        """Where to note what the consumer says; None when it does not wait."""
        return self._waiting.get(consumer.topic, {}).get(consumer)

    def forget(self, consumer: TrackedConsumer) -> bool:
        """The consumer is gone; False when it did not wait."""
        return self._waiting.get(consumer.topic, {}).pop(consumer, None) is not None

    def anybody_for(self, topic: str, subscription: str) -> bool:
        """Whether a consumer of a subscription waits: to the broker it is one already."""
        return any(consumer.subscription == subscription for consumer in self._waiting.get(topic, ()))

    async def close(self) -> None:
        """Let nobody in any more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._waiting.clear()

    async def _look(self, topic: str) -> None:
        waiting = self._waiting[topic]
        backoff, failing = self._new_backoff(), False
        try:
            while waiting:
                asked = {consumer.mark: consumer for consumer in waiting}
                try:
                    found = await self._listed(topic, asked)
                except AdminError as error:
                    if not failing:
                        log.warning("cannot read the broker's list of consumers", topic=topic, reason=str(error))
                    failing = True
                    self._on_trouble(topic, str(error))
                    await asyncio.sleep(backoff.next_s())
                    continue
                if failing:
                    failing = False
                    self._on_trouble(topic, None)
                backoff.reset()
                self._sort(waiting, [consumer for mark, consumer in asked.items() if mark in found])
                if waiting:
                    await asyncio.sleep(self._limits.listed_pause_s)
        except Exception as error:
            self._failures.note(Part.admission, "cannot admit consumers", error, topic=topic)
            for consumer in list(waiting):
                consumer.close()
        finally:
            if failing:
                self._on_trouble(topic, None)
            del self._tasks[topic], self._waiting[topic]

    def _sort(self, waiting: dict[TrackedConsumer, Early], listed: list[TrackedConsumer]) -> None:
        for consumer in listed:
            early = waiting.pop(consumer, None)
            if early is None:  # it has left meanwhile
                continue
            try:
                self._admit(consumer, early)
            except Exception:
                consumer.close()
                raise
        now_s = asyncio.get_running_loop().time()
        lasts_s = self._limits.unlisted_lasts_s
        for consumer in [each for each, early in waiting.items() if now_s - early.since_s > lasts_s]:
            del waiting[consumer]
            _turn_away(consumer)


def turn_away_unlisted(attached: Collection[TrackedConsumer], marks: Collection[str]) -> set[str]:
    """Close consumers that were attached before the broker told the `marks` that it lists, and are not among them.

    It has closed them without the bridge noticing: nothing they ack counts any more. Returns their subscriptions.
    """
    unlisted = [consumer for consumer in attached if consumer.mark not in marks]
    for consumer in unlisted:
        _turn_away(consumer)
    return {consumer.subscription for consumer in unlisted}


def _turn_away(consumer: TrackedConsumer) -> None:
    log.warning(
        "consumer is turned away",
        reason="the broker does not list it",
        topic=consumer.topic,
        subscription=consumer.subscription,
        peer=consumer.peer,
    )
    consumer.close()
