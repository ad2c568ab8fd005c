"""Limits that the broker's policies set to dispatch: the same holds on the broker itself and through the bridge."""

import time
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import pulsar as pulsar_client
import pytest

from bridge.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe
from tests.bridge_process import BridgeProcess, now_ms
from tests.broker.conftest import BridgeFactory
from tests.clients import (
    Clients,
    Received,
    admin,
    assert_quiet,
    drain,
    drain_all,
    publish,
    receive,
    rest_path,
    shared,
    texts,
)
from tests.cluster import PulsarCluster
from tests.helpers import wait_until
from tests.raw_client import raw_client

LOOK_S = 0.3
"""How often the bridge looks at the policies here."""
READ_BATCH = 100
"""The broker's `dispatcherMaxReadBatchSize`: so much goes out past a limit, by a read that was under way before."""


class Front(NamedTuple):
    """Where consumers connect to: the broker, or a bridge in front of it."""

    service_url: str
    bridge: BridgeProcess | None


@pytest.fixture(params=["broker", "bridge"])
def front(request: pytest.FixtureRequest, pulsar: PulsarCluster, private_bridge: BridgeFactory) -> Front:
    if request.param == "broker":
        return Front(pulsar.service_url, None)
    bridge = private_bridge(limits={"policies_look_s": LOOK_S, "maintenance_interval_s": 0.5})
    return Front(bridge.service_url, bridge)


@pytest.fixture
def consumers(front: Front, clients: Clients) -> Any:
    """A client of the one under test."""
    return clients.connect(front.service_url)


class Topic:
    """A topic in a namespace of its own, with a subscription that waits for consumers, and a producer."""

    def __init__(self, broker: PulsarCluster, client: Any, subscriptions: tuple[str, ...] = ("s",)) -> None:
        self.broker = broker
        self.namespace = f"public/limits-{uuid.uuid4().hex[:8]}"
        self.name = f"persistent://{self.namespace}/t"
        self.path = rest_path(self.name)
        self._client = client
        admin(broker, "PUT", f"namespaces/{self.namespace}", {})
        admin(broker, "PUT", self.path)
        for subscription in subscriptions:
            admin(broker, "PUT", f"{self.path}/subscription/{subscription}")

    def of_namespace(self, name: str, value: object = None) -> None:
        admin(self.broker, "POST", f"namespaces/{self.namespace}/{name}", value)

    def of_topic(self, name: str, value: object) -> None:
        """What is set to a topic goes through a topic of the broker's own: it holds a moment later."""
        admin(self.broker, "POST", f"{self.path}/{name}", value)
        read = name + "?applied=true"
        wait_until(lambda: admin(self.broker, "GET", f"{self.path}/{read}") == value, "the policy holds")

    def drop(self, name: str) -> None:
        """What the topic has of its own; what the namespace has holds again."""
        admin(self.broker, "DELETE", f"{self.path}/{name}")

    def producer(self, **arguments: Any) -> Any:
        return self._client.create_producer(self.name, **arguments)


@pytest.fixture
def topic(pulsar: PulsarCluster, direct: Any) -> Topic:
    return Topic(pulsar, direct)


def numbers(count: int, start: int = 0) -> list[str]:
    return [str(number) for number in range(start, start + count)]


def rate(messages: int = -1, size: int = -1, period_s: int = 1) -> dict[str, Any]:
    return {
        "dispatchThrottlingRateInMsg": messages,
        "dispatchThrottlingRateInByte": size,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": period_s,
    }


def assert_rate(received: list[Received], allowed: int, period_s: float = 1.0, saved: int | None = None) -> None:
    """No more than what was saved, by default in one period, and what came in since, at any time; and about as much."""
    at = [each.at_ms / 1000 for each in received]
    slack_s = 0.3
    for first in range(0, len(at), 5):
        for last in range(first, len(at), 5):
            most = (saved or allowed) + (at[last] - at[first] + slack_s) / period_s * allowed
            assert last - first + 1 <= most, (first, last, at[last] - at[first])
    least_s = (len(at) / allowed - 1) * period_s
    assert at[-1] - at[0] < least_s + 2 * period_s + 1.5, "as fast as it is let"


# -- dispatch rates


@pytest.mark.parametrize("level", ["namespace", "topic", "subscription"])
def test_a_subscription_gets_no_more_than_its_rate(topic: Topic, consumers: Any, level: str) -> None:
    if level == "namespace":
        topic.of_namespace("subscriptionDispatchRate", rate(40))
    elif level == "topic":
        topic.of_topic("subscriptionDispatchRate", rate(40))
    else:
        topic.of_topic("s/dispatchRate", rate(40))
    publish(topic.producer(), numbers(140))
    received = drain(shared(consumers, topic.name), 140)
    assert texts(received) == numbers(140), "none is lost, none overtakes another"
    assert_rate(received, 40)


def test_delayed_messages_count_as_others(topic: Topic, consumers: Any) -> None:
    topic.of_topic("s/dispatchRate", rate(40))
    consumer, producer = shared(consumers, topic.name), topic.producer()
    publish(producer, ["now"])
    receive(consumer)
    publish(producer, numbers(120), deliver_at=now_ms() + 1_500)
    received = drain(consumer, 120)
    assert sorted(map(int, texts(received))) == list(range(120))
    assert_rate(received, 40)


def test_a_rate_in_bytes(topic: Topic, consumers: Any) -> None:
    topic.of_topic("s/dispatchRate", rate(size=40 * 1_024))
    publish(topic.producer(), [f"{number:01000}" for number in range(140)])
    received = drain(shared(consumers, topic.name), 140)
    assert [int(each.text) for each in received] == list(range(140))
    assert_rate(received, 41)


def test_a_rate_of_a_longer_period(topic: Topic, consumers: Any) -> None:
    topic.of_topic("s/dispatchRate", rate(60, period_s=2))
    publish(topic.producer(), numbers(150))
    received = drain(shared(consumers, topic.name), 150)
    assert texts(received) == numbers(150)
    assert_rate(received, 60, 2.0)


def test_all_subscriptions_share_the_rate_of_their_topic(pulsar: PulsarCluster, direct: Any, consumers: Any) -> None:
    topic = Topic(pulsar, direct, ("a", "b"))
    both = [shared(consumers, topic.name, name) for name in ("a", "b")]
    producer = topic.producer()
    publish(producer, ["first"])
    for consumer in both:
        receive(consumer)
    topic.of_topic("dispatchRate", rate(40))
    time.sleep(3 * LOOK_S)
    publish(producer, numbers(200))
    got = _drain_side_by_side(both, 200)
    for each in got:
        assert texts(each) == numbers(200), "none is lost, none overtakes another"
    assert_rate(sorted((one for each in got for one in each), key=lambda one: one.at_ms), 40, saved=40 + 2 * READ_BATCH)


def test_one_subscription_has_the_rate_of_its_topic_to_itself(topic: Topic, consumers: Any) -> None:
    """What the bridge has read at the end of the topic is read once, for harvest and consumers."""
    consumer, producer = shared(consumers, topic.name), topic.producer()
    publish(producer, ["first"])
    receive(consumer)
    topic.of_topic("dispatchRate", rate(40))
    time.sleep(3 * LOOK_S)
    publish(producer, numbers(200))
    received = drain(consumer, 200)
    assert texts(received) == numbers(200)
    assert_rate(received, 40, saved=40 + READ_BATCH)


def test_a_rate_that_changes(topic: Topic, consumers: Any) -> None:
    topic.of_topic("s/dispatchRate", rate(5))
    publish(topic.producer(), numbers(400))
    consumer = shared(consumers, topic.name)
    assert texts(drain(consumer, 10)) == numbers(10)
    topic.drop("s/dispatchRate")
    started = time.monotonic()
    assert texts(drain(consumer, 390)) == numbers(390, 10)
    assert time.monotonic() - started < 5, "not 78"


def _drain_side_by_side(consumers: list[Any], count: int) -> list[list[Received]]:
    got: list[list[Received]] = [[] for _ in consumers]
    patience = time.monotonic() + 30
    while any(len(each) < count for each in got):
        assert time.monotonic() < patience, [len(each) for each in got]
        for consumer, found in zip(consumers, got, strict=True):
            found += drain_all(consumer, 5, limit=20)
    return got


# -- unacked messages


def test_a_consumer_gets_no_more_until_half_of_its_limit_is_acked(topic: Topic, consumers: Any) -> None:
    topic.of_namespace("maxUnackedMessagesPerConsumer", 10)
    publish(topic.producer(), numbers(100))
    first = shared(consumers, topic.name, consumer_name="first")
    held = drain(first, 10, ack=False)
    assert texts(held) == numbers(10)
    _ack(first, held[:4])
    assert_quiet(first)
    second = shared(consumers, topic.name, consumer_name="second")
    assert len(drain_all(second, ack=False)) == 10, "a limit of each consumer"
    _ack(first, held[4:5])
    assert len(drain_all(first, ack=False)) == 5


def test_a_batch_counts_as_its_messages(topic: Topic, consumers: Any) -> None:
    topic.of_topic("maxUnackedMessagesOnConsumer", 10)
    producer = topic.producer(batching_enabled=True, batching_max_messages=4, batching_max_publish_delay_ms=1_000)
    publish(producer, numbers(40))
    consumer = shared(consumers, topic.name)
    assert texts(drain_all(consumer, ack=False)) == numbers(12), "the last one goes out as a whole"


def test_a_topic_without_a_limit_in_a_namespace_with_one(topic: Topic, consumers: Any) -> None:
    topic.of_namespace("maxUnackedMessagesPerConsumer", 10)
    topic.of_namespace("maxUnackedMessagesPerSubscription", 10)
    topic.of_topic("maxUnackedMessagesOnConsumer", 0)
    topic.of_topic("maxUnackedMessagesOnSubscription", 0)
    publish(topic.producer(), numbers(300))
    assert texts(drain_all(shared(consumers, topic.name), ack=False)) == numbers(300)


def test_a_limit_of_unacked_messages_that_changes(topic: Topic, consumers: Any) -> None:
    topic.of_topic("maxUnackedMessagesOnConsumer", 10)
    publish(topic.producer(), numbers(100))
    consumer = shared(consumers, topic.name)
    held = drain_all(consumer, ack=False)
    assert len(held) == 10
    topic.of_topic("maxUnackedMessagesOnConsumer", 30)
    time.sleep(3 * LOOK_S)
    _ack(consumer, held[:1])  # the broker looks at the limit with the next ack, the bridge did before
    held = [*held[1:], *drain_all(consumer, ack=False)]
    assert 29 <= len(held) <= 30
    topic.of_topic("maxUnackedMessagesOnConsumer", 20)
    time.sleep(3 * LOOK_S)
    _ack(consumer, held[:-11])
    assert_quiet(consumer)
    _ack(consumer, held[-11:-10])
    assert len(drain_all(consumer, ack=False)) == 10


def test_a_subscription_gets_nothing_new_until_half_of_its_limit_is_acked(topic: Topic, consumers: Any) -> None:
    """What is due, and what is delivered again, goes out all the same."""
    topic.of_namespace("maxUnackedMessagesPerSubscription", 10)
    producer = topic.producer()
    publish(producer, ["delayed"], deliver_at=now_ms() + 4_000)
    publish(producer, numbers(300))
    first = shared(consumers, topic.name, consumer_name="first")
    held = drain_all(first, ack=False)
    assert 10 <= len(held) <= 10 + READ_BATCH
    second = shared(consumers, topic.name, consumer_name="second")
    assert_quiet(second)
    first.negative_acknowledge(held[-1].message)
    again = _from_either([first, second])
    assert (again.text, again.redelivery_count) == (held[-1].text, 1)
    delayed = _from_either([first, second])
    assert delayed.text == "delayed"
    _ack(first, [again, delayed, *held[:-6]])
    assert_quiet(first, second)
    _ack(first, held[-6:-4])
    assert len(drain_all(first, ack=False)) + len(drain_all(second, ack=False)) >= 6


def test_nothing_new_goes_out_while_the_broker_could_not_store_all_acks(topic: Topic, consumers: Any) -> None:
    """By default it stores 10,000 ranges of them."""
    topic.of_namespace("dispatcherPauseOnAckStatePersistent")
    sent = 23_000
    publish(topic.producer(max_pending_messages=sent), numbers(sent))
    consumer = shared(consumers, topic.name, receiver_queue_size=100)
    got, kept = 0, []
    while got < sent and (found := drain_all(consumer, 4_000, ack=False, limit=2)):
        _ack(consumer, found[1:])
        kept.append(found[0])
        got += len(found)
    assert 20_000 < got < sent, "and what was on its way"
    _ack(consumer, kept[: len(kept) // 5])
    found = drain_all(consumer, 2_000, ack=False)
    assert {int(each.text) for each in found} >= set(range(got, sent)), "there is room for a while"


def _ack(consumer: Any, received: list[Received]) -> None:
    for each in received:
        consumer.acknowledge(each.message)


def _from_either(consumers: list[Any]) -> Received:
    def found() -> Received | None:
        return next((one for each in consumers for one in drain_all(each, 50, ack=False, limit=1)), None)

    received = wait_until(found, "a message", timeout=20)
    assert received is not None
    return received


# -- turns and counts


def test_turns_count_entries(topic: Topic, front: Front, clients: Clients) -> None:
    """Twenty to one consumer before the next one's turn, batches or not."""
    producer = topic.producer(batching_enabled=True, batching_max_messages=5, batching_max_publish_delay_ms=1_000)
    publish(producer, numbers(600))
    got: dict[int, int] = {}

    def note(which: int) -> Callable[[Any, Any], None]:
        return lambda _, message: got.__setitem__(int(message.data()), which)

    topic.of_topic("s/dispatchRate", rate(1))  # nobody gets all before the others are there
    for which in range(3):
        shared(clients.connect(front.service_url), topic.name, message_listener=note(which))
    topic.drop("s/dispatchRate")
    wait_until(lambda: len(got) == 600, "all", timeout=20)
    turns = [1]
    for number in range(10, 600, 5):  # what came before the rate was dropped aside
        if got[number] == got[number - 5]:
            turns[-1] += 1
        else:
            turns.append(1)
    assert max(turns) == 20, turns
    assert turns.count(20) >= 4, turns


def test_counts_of_redeliveries_last_while_a_consumer_is_there(topic: Topic, consumers: Any) -> None:
    publish(topic.producer(), ["x"])
    consumer = shared(consumers, topic.name)
    for count in range(3):
        received = receive(consumer, ack=False)
        assert received.redelivery_count == count
        consumer.negative_acknowledge(received.message)
    assert receive(consumer, ack=False).redelivery_count == 3
    other = shared(consumers, topic.name)
    consumer.close()
    assert receive(other, ack=False).redelivery_count == 3, "nobody asked for it"
    other.close()
    assert receive(shared(consumers, topic.name)).redelivery_count == 0, "everybody was gone"


# -- what the broker refuses, and what it is told


def test_the_broker_refuses_one_consumer_too_many(topic: Topic, consumers: Any) -> None:
    topic.of_namespace("maxConsumersPerSubscription", 2)
    first, _ = shared(consumers, topic.name), shared(consumers, topic.name)
    with pytest.raises(pulsar_client.ConsumerBusy):
        shared(consumers, topic.name)
    first.close()
    shared(consumers, topic.name)


def test_the_broker_refuses_a_type_that_is_not_enabled(topic: Topic, consumers: Any) -> None:
    topic.of_namespace("subscriptionTypesEnabled", ["Exclusive", "Failover"])
    with pytest.raises(pulsar_client.NotAllowedError):
        shared(consumers, topic.name)


async def test_properties_of_a_subscription(pulsar: PulsarCluster, front: Front) -> None:
    """Of one that a consumer makes: they are kept with it from its first moment on."""
    name = f"persistent://public/default/properties-{uuid.uuid4().hex[:8]}"
    raw = await raw_client(front.service_url)
    await raw.lookup(name)
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    request_id, subscribe = raw.next_request_id(), command.subscribe
    subscribe.topic, subscribe.subscription, subscribe.subType = name, "s", CommandSubscribe.Shared
    subscribe.consumer_id, subscribe.request_id = 1, request_id
    subscribe.subscription_properties.add(key="kind", value="billing")
    assert (await raw.request(command, request_id)).type == BaseCommand.SUCCESS
    found = admin(pulsar, "GET", f"{rest_path(name)}/subscription/s/properties")
    assert found == {"kind": "billing"}
    await raw.close()
