"""Delayed and immediate messages through the bridge, with the official client."""

import random
import statistics
from datetime import timedelta
from typing import Any

import pulsar as pulsar_client
import pytest
from pulsar.schema import JsonSchema, Record, String

from tests.bridge_process import BridgeProcess, now_ms
from tests.clients import (
    PATIENCE_MS,
    Clients,
    admin,
    assert_quiet,
    backlog,
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

MAX_LATE_MS = 2_000
TEN_YEARS_MS = 10 * 365 * 86_400_000


def test_delayed_messages_arrive_on_time_once_and_in_order_of_time(client: Any, topic: str) -> None:
    consumer = shared(client, topic)
    producer = client.create_producer(topic)
    start = now_ms() + 500
    due = {str(number): start + random.randrange(1_500) for number in range(300)}
    for text, deliver_at in due.items():
        publish_one(producer, text, deliver_at)
    producer.flush()
    received = drain(consumer, len(due))
    late = [each.at_ms - due[each.text] for each in received]
    assert min(late) >= 0
    assert statistics.median(late) < 50
    assert max(late) < MAX_LATE_MS
    assert sorted(texts(received), key=int) == list(due)
    assert [due[each.text] for each in received] == sorted(due.values())
    assert_quiet(consumer)


def publish_one(producer: Any, text: str, deliver_at: int) -> None:
    producer.send_async(text.encode(), lambda *_: None, deliver_at=deliver_at)


def test_deliver_after(client: Any, topic: str) -> None:
    consumer = shared(client, topic)
    before = now_ms()
    client.create_producer(topic).send(b"later", deliver_after=timedelta(milliseconds=700))
    received = receive(consumer)
    assert 700 <= received.at_ms - before < 700 + MAX_LATE_MS


def test_immediate_messages_do_not_wait_for_delayed_ones(client: Any, topic: str) -> None:
    consumer = shared(client, topic)
    producer = client.create_producer(topic)
    at = now_ms() + 1_500
    publish(producer, ["delayed"], deliver_at=at)
    publish(producer, (f"now {number}" for number in range(500)))
    immediate = drain(consumer, 500)
    assert texts(immediate) == [f"now {number}" for number in range(500)]
    assert immediate[-1].at_ms < at
    last = receive(consumer)
    assert last.text == "delayed"
    assert last.at_ms >= at


def test_mixed_immediate_and_delayed(client: Any, topic: str) -> None:
    consumer = shared(client, topic)
    producer = client.create_producer(topic)
    due: dict[str, int] = {}
    for number in range(600):
        deliver_at = now_ms() + random.randrange(800) if number % 3 else None
        due[str(number)] = deliver_at or 0
        producer.send_async(str(number).encode(), lambda *_: None, deliver_at=deliver_at)
    producer.flush()
    received = drain(consumer, 600)
    assert sorted(map(int, texts(received))) == list(range(600))
    assert all(each.at_ms >= due[each.text] for each in received)
    assert_quiet(consumer)


def test_every_subscription_gets_everything(client: Any, topic: str) -> None:
    consumers = [shared(client, topic, f"s{number}") for number in range(4)]
    producer = client.create_producer(topic)
    publish(producer, ("immediate" for _ in range(20)))
    publish(producer, ("delayed" for _ in range(50)), deliver_at=now_ms() + 400)
    for consumer in consumers:
        assert sorted(texts(drain(consumer, 70))) == ["delayed"] * 50 + ["immediate"] * 20
    assert_quiet(*consumers, quiet_ms=100)


def test_consumers_of_a_subscription_share_the_work(client: Any, topic: str) -> None:
    consumers = [shared(client, topic, receiver_queue_size=10) for _ in range(3)]
    producer = client.create_producer(topic)
    expected = [str(number) for number in range(300)]
    publish(producer, expected, deliver_at=now_ms() + 300)
    received: list[list[str]] = [[], [], []]
    while (found := sum(map(len, received))) < 300:
        for number, consumer in enumerate(consumers):
            received[number] += texts(drain_all(consumer, 100 if found else PATIENCE_MS, limit=5))
    assert min(map(len, received)) > 50
    assert sorted((text for part in received for text in part), key=int) == expected
    assert_quiet(*consumers, quiet_ms=100)


def test_batched_producer(client: Any, topic: str) -> None:
    consumer = shared(client, topic)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=50, batching_max_publish_delay_ms=50
    )
    publish(producer, (str(number) for number in range(500)))
    publish(producer, ["delayed"], deliver_at=now_ms() + 300)
    received = drain(consumer, 501)
    assert texts(received) == [*(str(number) for number in range(500)), "delayed"]
    assert received[0].message.message_id().batch_index() == 0
    assert received[1].message.message_id().batch_index() == 1
    assert_quiet(consumer)


def test_batches_are_shared_among_consumers_with_small_queues(client: Any, topic: str) -> None:
    consumers = [shared(client, topic, receiver_queue_size=5) for _ in range(2)]
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=20, batching_max_publish_delay_ms=50
    )
    publish(producer, (str(number) for number in range(400)))
    found: list[str] = []
    while len(found) < 400:
        before = len(found)
        for consumer in consumers:
            found += texts(drain_all(consumer, 50))
        assert len(found) > before
    assert sorted(found, key=int) == [str(number) for number in range(400)]


def test_partitioned_topic(client: Any, pulsar: PulsarCluster, topic: str) -> None:
    admin(pulsar, "PUT", f"{rest_path(topic)}/partitions", 3)
    consumer = shared(client, topic)
    producer = client.create_producer(
        topic, message_routing_mode=pulsar_client.PartitionsRoutingMode.RoundRobinDistribution
    )
    at = now_ms() + 800
    for number in range(90):
        producer.send_async(str(number).encode(), lambda *_: None, deliver_at=at if number % 2 else None)
    producer.flush()
    received = drain(consumer, 90)
    assert sorted(map(int, texts(received))) == list(range(90))
    assert all(each.at_ms >= at for each in received if int(each.text) % 2)
    assert {each.message.topic_name() for each in received} == {f"{topic}-partition-{n}" for n in range(3)}
    assert_quiet(consumer)


@pytest.mark.parametrize("queue_size", [0, 1])
def test_small_receiver_queues(client: Any, topic: str, queue_size: int) -> None:
    consumer = shared(client, topic, receiver_queue_size=queue_size)
    producer = client.create_producer(topic)
    sent = [f"now {number}" for number in range(5)] + [f"later {number}" for number in range(5)]
    publish(producer, sent[:5])
    publish(producer, sent[5:], deliver_at=now_ms() + 300)
    found = []
    for _ in sent:
        message = consumer.receive()  # with a queue of 0 the client takes no time-out
        found.append(message.data().decode())
        consumer.acknowledge(message)
    assert sorted(found) == sorted(sent)


def test_due_already(client: Any, topic: str) -> None:
    consumer = shared(client, topic)
    producer = client.create_producer(topic)
    publish(producer, ["before"])
    publish(producer, ["due"], deliver_at=now_ms() - 60_000)
    publish(producer, ["long due"], deliver_at=1)
    publish(producer, ["after"])
    assert sorted(texts(drain(consumer, 4))) == ["after", "before", "due", "long due"]
    assert_quiet(consumer)


@pytest.mark.parametrize("deliver_at", [0, -1, -(2**62), -(2**63)])
async def test_due_before_the_epoch(bridge: BridgeProcess, topic: str, deliver_at: int) -> None:
    """No official client sends it, the protocol allows it."""
    client = await raw_client(bridge.service_url)
    await client.consume(topic)
    client.flow(10)
    await client.produce(topic)
    positions = [await client.publish(b"x", each) for each in (None, deliver_at, None)]
    assert sorted([(await client.message()).position for _ in range(3)]) == positions
    await client.close()


@pytest.mark.parametrize("ahead_ms", [TEN_YEARS_MS, 2**62], ids=["ten-years", "end-of-time"])
def test_far_future_stays_pending(
    client: Any, bridge: BridgeProcess, pulsar: PulsarCluster, topic: str, ahead_ms: int
) -> None:
    consumer = shared(client, topic)
    producer = client.create_producer(topic)
    publish(producer, ["far"], deliver_at=now_ms() + ahead_ms)
    publish(producer, ["soon"], deliver_at=now_ms() + 200)
    assert receive(consumer).text == "soon"
    assert_quiet(consumer)
    assert backlog(pulsar, topic) == 1
    assert bridge.topic(topic)["entries"] >= 1


def test_large_delayed_messages(client: Any, topic: str) -> None:
    consumer = shared(client, topic, receiver_queue_size=2)
    producer = client.create_producer(topic)
    payloads = [random.randbytes(4 * 1024 * 1024) for _ in range(3)]
    at = now_ms() + 1_000
    for payload in payloads:
        producer.send(payload, deliver_at=at)
    for payload in payloads:
        message = consumer.receive(timeout_millis=20_000)
        assert now_ms() >= at
        assert message.data() == payload
        consumer.acknowledge(message)


@pytest.mark.parametrize("compression", ["LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_compression(client: Any, topic: str, compression: str) -> None:
    consumer = shared(client, topic)
    producer = client.create_producer(
        topic, compression_type=getattr(pulsar_client.CompressionType, compression), batching_enabled=True
    )
    text = "compressible " * 1_000
    publish(producer, [text] * 3)
    publish(producer, [text], deliver_at=now_ms() + 200)
    assert texts(drain(consumer, 4)) == [text] * 4


class Order(Record):  # type: ignore[misc]
    item = String()


def test_schema(client: Any, topic: str) -> None:
    consumer = shared(client, topic, schema=JsonSchema(Order))
    producer = client.create_producer(topic, schema=JsonSchema(Order))
    producer.send(Order(item="now"))
    producer.send(Order(item="later"), deliver_after=timedelta(milliseconds=200))
    found = []
    for _ in range(2):
        message = consumer.receive(timeout_millis=10_000)
        found.append(message.value().item)
        consumer.acknowledge(message)
    assert sorted(found) == ["later", "now"]


def test_properties_keys_and_times_pass_unchanged(client: Any, topic: str) -> None:
    consumer = shared(client, topic)
    client.create_producer(topic, producer_name=f"p-{topic[-8:]}").send(
        b"x",
        properties={"a": "1", "b": "zwei"},
        partition_key="key",
        ordering_key="order",
        event_timestamp=42,
        sequence_id=7,
        deliver_after=timedelta(milliseconds=200),
    )
    message = receive(consumer).message
    assert message.properties() == {"a": "1", "b": "zwei"}
    assert message.partition_key() == "key"
    assert message.ordering_key() == "order"
    assert message.event_timestamp() == 42
    assert message.producer_name() == f"p-{topic[-8:]}"
    assert message.topic_name() == topic


@pytest.mark.parametrize("consumers", [1, 2])
def test_chunked_messages(client: Any, topic: str, consumers: int) -> None:
    """The chunks of a message go to one consumer, or nobody can put it together."""
    receivers = [shared(client, topic) for _ in range(consumers)]
    producer = client.create_producer(topic, chunking_enabled=True)
    payload = random.randbytes(12 * 1024 * 1024)
    sent = [payload[number:] for number in range(4)]
    for each in sent:
        producer.send(each)
    found: list[bytes] = []

    def all_there() -> bool:
        for receiver in receivers:
            try:
                message = receiver.receive(timeout_millis=200)
            except pulsar_client.Timeout:
                continue
            found.append(message.data())
            receiver.acknowledge(message)
        return len(found) == len(sent)

    wait_until(all_there, "all chunked messages", timeout=8)
    assert sorted(map(len, found)) == sorted(map(len, sent))
    assert set(found) == set(sent)


# -- what passes through


def test_exclusive_subscription_gets_delayed_messages_at_once(client: Any, topic: str) -> None:
    """As from the broker, which delays for Shared and Key_Shared only."""
    consumer = client.subscribe(topic, "s", initial_position=pulsar_client.InitialPosition.Earliest)
    producer = client.create_producer(topic)
    publish(producer, ["delayed"], deliver_at=now_ms() + 60_000)
    publish(producer, ["now"])
    assert texts(drain(consumer, 2)) == ["delayed", "now"]


def test_failover_subscription(client: Any, topic: str) -> None:
    first = client.subscribe(topic, "s", consumer_type=pulsar_client.ConsumerType.Failover, consumer_name="a")
    second = client.subscribe(topic, "s", consumer_type=pulsar_client.ConsumerType.Failover, consumer_name="b")
    publish(client.create_producer(topic), (str(number) for number in range(20)))
    found = [drain_all(first, 1_500), drain_all(second, 300)]
    assert sorted(map(len, found)) == [0, 20]


def test_reader(client: Any, topic: str) -> None:
    publish(client.create_producer(topic), (str(number) for number in range(10)))
    reader = client.create_reader(topic, pulsar_client.MessageId.earliest)
    assert [reader.read_next(timeout_millis=10_000).data() for _ in range(10)] == [
        str(number).encode() for number in range(10)
    ]
    assert not reader.has_message_available()


def test_non_persistent_topic(client: Any, topic: str) -> None:
    topic = topic.replace("persistent://", "non-persistent://")
    consumer = shared(client, topic)
    publish(client.create_producer(topic), ["a", "b"])
    assert texts(drain(consumer, 2)) == ["a", "b"]


def test_messages_that_went_past_the_bridge(client: Any, direct: Any, topic: str) -> None:
    """Producers need not use the bridge."""
    consumer = shared(client, topic)
    producer = direct.create_producer(topic)
    at = now_ms() + 500
    publish(producer, ["delayed"], deliver_at=at)
    publish(producer, ["now"])
    received = drain(consumer, 2)
    assert texts(received) == ["now", "delayed"]
    assert received[1].at_ms >= at


def test_client_url_is_never_the_brokers(clients: Clients, bridge: BridgeProcess, topic: str) -> None:
    """Lookups answer with the bridge: a delayed message goes to a client that knows nothing of the broker."""
    for _ in range(3):
        client = clients.connect(bridge.service_url)
        assert client.get_topic_partitions(topic) == [topic]
        shared(client, topic).close()
        client.close()


# -- one message at a time


def test_one_message_on_a_silent_topic_a_hundred_times(client: Any, topic: str) -> None:
    """No quiet stall: nothing else wakes the bridge up."""
    consumer = shared(client, topic)
    producer = client.create_producer(topic)
    late: list[int] = []
    for number in range(100):
        at = now_ms() + random.randrange(100, 300)
        producer.send(str(number).encode(), deliver_at=at)
        received = receive(consumer, 5_000)
        assert received.text == str(number)
        late.append(received.at_ms - at)
    assert min(late) >= 0
    assert max(late) < MAX_LATE_MS
    assert statistics.median(late) < 50
