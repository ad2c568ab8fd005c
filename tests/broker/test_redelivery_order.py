"""What is delivered again comes in the order of positions, wherever it has to be read from: as from the broker itself.

Some of it the bridge does not keep and reads again: here what was stored before it heard of the topic.
"""

from typing import Any

import pulsar as pulsar_client
import pytest

from tests.bridge_process import BridgeProcess
from tests.clients import Clients, admin, assert_quiet, drain, publish, rest_path, shared, texts
from tests.cluster import PulsarCluster
from tests.raw_client import raw_client

BEFORE = 60
"""Messages stored before the bridge hears of the topic."""
SINCE = 60
ALL = [str(number) for number in range(BEFORE + SINCE)]


@pytest.fixture(params=["bridge", "broker"])
def any_client(request: pytest.FixtureRequest) -> Any:
    """A client of the bridge, and one of the broker as the reference."""
    return request.getfixturevalue("client" if request.param == "bridge" else "direct")


def store_before(direct: Any, topic: str) -> Any:
    """A subscription with messages the bridge will not keep; returns a producer for more."""
    shared(direct, topic).close()
    producer = direct.create_producer(topic)
    publish(producer, ALL[:BEFORE])
    return producer


def receive_all(consumer: Any, producer: Any) -> list[Any]:
    """Everything once, in order: what was stored before, and as much again while the consumer is there."""
    received = drain(consumer, BEFORE, ack=False)
    publish(producer, ALL[BEFORE:])
    received += drain(consumer, SINCE, ack=False)
    assert texts(received) == ALL
    return received


def test_negative_acks_of_all(any_client: Any, direct: Any, topic: str) -> None:
    producer = store_before(direct, topic)
    consumer = shared(any_client, topic)
    for each in receive_all(consumer, producer):
        consumer.negative_acknowledge(each.message)
    for turn in (1, 2):
        again = drain(consumer, len(ALL), ack=turn == 2)
        assert texts(again) == ALL
        assert {each.redelivery_count for each in again} == {turn}
        if turn == 1:
            consumer.redeliver_unacknowledged_messages()
    assert_quiet(consumer)


def test_the_next_consumer_gets_what_is_left_in_order(
    any_client: Any, direct: Any, pulsar: PulsarCluster, topic: str
) -> None:
    """Every third one is acked; the small queue leaves some undelivered, ledgers end in between."""
    producer = store_before(direct, topic)
    consumer = shared(any_client, topic, receiver_queue_size=BEFORE // 2)
    received = drain(consumer, BEFORE, ack=False)
    publish(producer, ALL[BEFORE:])
    for each in received[::3]:
        consumer.acknowledge(each.message)
    left = [text for number, text in enumerate(ALL) if number % 3 or number >= BEFORE]
    consumer.close()
    consumer = shared(any_client, topic)
    assert texts(drain(consumer, len(left))) == left
    assert_quiet(consumer)


def test_many_ledgers(bridge: BridgeProcess, clients: Clients, direct: Any, pulsar: PulsarCluster, topic: str) -> None:
    """Each is read by a reader of its own."""
    shared(direct, topic).close()
    producer = direct.create_producer(topic)
    for start in range(0, BEFORE, 6):
        publish(producer, ALL[start : start + 6])
        admin(pulsar, "PUT", f"{rest_path(topic)}/unload")
    consumer = shared(clients.connect(bridge.service_url), topic)
    for each in receive_all(consumer, producer):
        consumer.negative_acknowledge(each.message)
    assert texts(drain(consumer, len(ALL))) == ALL


def test_dead_letters_in_order(any_client: Any, direct: Any, topic: str) -> None:
    producer = store_before(direct, topic)
    dead = shared(direct, topic + "-dead", "d")
    policy = pulsar_client.ConsumerDeadLetterPolicy(2, topic + "-dead", "d")
    consumer = shared(any_client, topic, dead_letter_policy=policy)
    received = receive_all(consumer, producer)
    for turn in range(3):
        if turn:
            received = drain(consumer, len(ALL), ack=False)
        assert texts(received) == ALL
        for each in received:
            consumer.negative_acknowledge(each.message)
    assert texts(drain(dead, len(ALL))) == ALL
    assert_quiet(consumer)


@pytest.mark.parametrize("through", ["bridge", "broker"])
async def test_what_was_ready_waits_for_what_is_given_back(
    through: str, bridge: BridgeProcess, pulsar: PulsarCluster, topic: str
) -> None:
    """Permits for three messages let a batch of five out; the two behind it were as good as sent."""
    client = await raw_client(bridge.service_url if through == "bridge" else pulsar.service_url)
    await client.consume(topic)
    await client.produce(topic)
    positions = [await client.publish(b"x", sequence_id=number, messages=5) for number in range(6)]
    client.flow(3)
    assert (await client.message()).position == positions[0]
    client.redeliver(positions[0])
    client.flow(20)
    received = [await client.message() for _ in range(4)]
    assert [each.position for each in received] == positions[:4]
    assert [each.redelivery_count for each in received] == [1, 0, 0, 0]
