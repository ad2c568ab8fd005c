"""The official blocking client in tests: connections that are closed at the end, and what was received when."""

import contextlib
import json
import urllib.request
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pulsar

from tests.bridge_process import Broker, now_ms
from tests.helpers import wait_until

QUIET_MS = 300
"""How long nothing may arrive when nothing should."""
PATIENCE_MS = 20_000


class Received(NamedTuple):
    """A message as a test looks at it; `at_ms`: when it came."""

    text: str
    at_ms: int
    redelivery_count: int
    message: Any


class Clients:
    """Makes clients of a broker or bridge; `close` closes them all."""

    def __init__(self) -> None:
        self._open: list[Any] = []

    def connect(self, url: str, **arguments: Any) -> Any:
        arguments.setdefault("logger", pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        client = pulsar.Client(url, **arguments)
        self._open.append(client)
        return client

    def close(self) -> None:
        for client in self._open:
            with contextlib.suppress(pulsar.PulsarException):
                client.close()
        self._open.clear()


def shared(client: Any, topic: str, subscription: str = "s", **arguments: Any) -> Any:
    """A Shared consumer from the start of the topic, which asks for little time to redeliver."""
    arguments.setdefault("initial_position", pulsar.InitialPosition.Earliest)
    arguments.setdefault("negative_ack_redelivery_delay_ms", 100)
    return client.subscribe(topic, subscription, consumer_type=pulsar.ConsumerType.Shared, **arguments)


def publish(producer: Any, texts: Iterable[str], deliver_at: int | None = None, **arguments: Any) -> list[Any]:
    """Send without waiting for each; returns the message ids once all are stored."""
    answers: list[tuple[Any, Any]] = []
    count = 0
    for text in texts:
        count += 1
        producer.send_async(text.encode(), lambda *answer: answers.append(answer), deliver_at=deliver_at, **arguments)
    producer.flush()
    wait_until(lambda: len(answers) == count, f"{count} messages stored", timeout=30)
    failed = [result for result, _ in answers if result != pulsar.Result.Ok]
    assert not failed, failed[:3]
    return [message_id for _, message_id in answers]


def receive(consumer: Any, timeout_ms: int = PATIENCE_MS, *, ack: bool = True) -> Received:
    """The next message."""
    message = consumer.receive(timeout_millis=timeout_ms)
    at_ms = now_ms()
    if ack:
        consumer.acknowledge(message)
    return Received(message.data().decode(errors="replace"), at_ms, message.redelivery_count(), message)


def drain(consumer: Any, count: int, timeout_ms: int = PATIENCE_MS, *, ack: bool = True) -> list[Received]:
    """The next `count` messages, each within the time-out."""
    return [receive(consumer, timeout_ms, ack=ack) for _ in range(count)]


def drain_all(consumer: Any, quiet_ms: int = QUIET_MS, *, ack: bool = True, limit: int = 1 << 30) -> list[Received]:
    """Whatever comes, until nothing comes for a while, or there are `limit`."""
    found: list[Received] = []
    with contextlib.suppress(pulsar.Timeout):
        while len(found) < limit:
            found.append(receive(consumer, quiet_ms, ack=ack))
    return found


def assert_quiet(*consumers: Any, quiet_ms: int = QUIET_MS) -> None:
    """Nothing more arrives."""
    for consumer in consumers:
        more = drain_all(consumer, quiet_ms)
        assert not more, [(each.text, each.redelivery_count) for each in more[:10]]


def texts(received: Sequence[Received]) -> list[str]:
    return [each.text for each in received]


def admin(broker: Broker, method: str, path: str, body: object = None) -> Any:
    """A call of the broker's own admin interface, `path` below /admin/v2/."""
    request = urllib.request.Request(f"{broker.web_url}/admin/v2/{path}", method=method)
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        content = answer.read()
    return json.loads(content) if content else None


def rest_path(topic: str) -> str:
    return topic.replace("://", "/")


def backlog(broker: Broker, topic: str, subscription: str = "s") -> int:
    """What the broker says is not acked."""
    stats = admin(broker, "GET", f"{rest_path(topic)}/stats?getPreciseBacklog=true")
    return int(stats["subscriptions"][subscription]["msgBacklog"])


def some_topic(prefix: str) -> str:
    return f"persistent://public/default/{prefix}-{uuid.uuid4().hex[:10]}"
