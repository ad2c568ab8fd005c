"""What every check has: a client, topics of its own, and ways to send and to receive."""

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pulsar

PATIENCE_MS = 30_000
QUIET_MS = 500
"""How long nothing may arrive when nothing should."""


class Failed(Exception):
    """A check did not find what it has to."""


class Received(NamedTuple):
    """A message, and when it came."""

    text: str
    at_ms: float
    redelivered: int
    message: Any


class Scene:
    """One check's view of the service: `type` is "Shared" or "Key_Shared", `topic` belongs to the check alone."""

    def __init__(self, client: Any, topic: str, type_: str) -> None:
        self.client, self.topic, self.type = client, topic, type_
        self._open: list[Any] = []

    @property
    def keyed(self) -> bool:
        return self.type == "Key_Shared"

    def subscribe(self, topic: Any = None, subscription: str = "s", **more: Any) -> Any:
        """A consumer from the start of the topic, which asks soon for what it refused."""
        more.setdefault("initial_position", pulsar.InitialPosition.Earliest)
        more.setdefault("negative_ack_redelivery_delay_ms", 100)
        kind = pulsar.ConsumerType.KeyShared if self.keyed else pulsar.ConsumerType.Shared
        consumer = self.client.subscribe(topic or self.topic, subscription, consumer_type=kind, **more)
        self._open.append(consumer)
        return consumer

    def producer(self, topic: str | None = None, **more: Any) -> Any:
        if more.get("batching_enabled") and self.keyed:
            more.setdefault("batching_type", pulsar.BatchingType.KeyBased)
        more.setdefault("block_if_queue_full", True)
        producer = self.client.create_producer(topic or self.topic, **more)
        self._open.append(producer)
        return producer

    def reader(self, start: Any, **more: Any) -> Any:
        reader = self.client.create_reader(self.topic, start, **more)
        self._open.append(reader)
        return reader

    def send(self, texts: Iterable[str], topic: str | None = None, **more: Any) -> None:
        """Each with its text as its key, all stored when this returns."""
        producer = self.producer(topic)
        for text in texts:
            producer.send(text.encode(), partition_key=text, **more)

    def close(self) -> None:
        for each in self._open:
            with contextlib.suppress(pulsar.PulsarException, ValueError):  # closed by the check
                each.close()


def numbered(word: str, count: int) -> list[str]:
    return [f"{word}-{number}" for number in range(count)]


def receive(consumer: Any, timeout_ms: int = PATIENCE_MS, *, ack: bool = True) -> Received:
    message = consumer.receive(timeout_millis=timeout_ms)
    at_ms = time.time() * 1000
    if ack:
        consumer.acknowledge(message)
    return Received(message.data().decode(errors="replace"), at_ms, message.redelivery_count(), message)


def drain(consumer: Any, count: int, *, ack: bool = True) -> list[Received]:
    found: list[Received] = []
    while len(found) < count:
        try:
            found.append(receive(consumer, ack=ack))
        except pulsar.Timeout:
            raise Failed(f"{len(found)} of {count} came: {sorted(each.text for each in found)}"[:500]) from None
    return found


def drain_all(consumer: Any, quiet_ms: int = QUIET_MS) -> list[Received]:
    """Whatever comes until nothing comes for a while."""
    found: list[Received] = []
    while True:
        try:
            found.append(receive(consumer, quiet_ms))
        except pulsar.Timeout:
            return found


def expect_quiet(*consumers: Any) -> None:
    for consumer in consumers:
        same(drain_all(consumer), [], "messages after the last")


def same(found: Any, wanted: Any, what: str) -> None:
    if found != wanted:
        raise Failed(f"{what}: {found!r}, not {wanted!r}"[:500])


def same_texts(received: Iterable[Received], wanted: Iterable[str], what: str = "received") -> None:
    """The same messages, each once, in any order."""
    same(sorted(each.text for each in received), sorted(wanted), what)


def counts(received: Iterable[Received]) -> str:
    """Redelivery counts of each message, in the order in which they came."""
    found: dict[str, list[int]] = {}
    for each in received:
        found.setdefault(each.text, []).append(each.redelivered)
    return " ".join(f"{text}:{'/'.join(map(str, found[text]))}" for text in sorted(found))


Check = Callable[[Scene], str | None]
"""Raises Failed, or returns what the same check has to see at the broker and through the bridge."""
