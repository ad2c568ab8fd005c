"""Batches of which single messages are acked, and what producers and consumers may claim of batches."""

from typing import Any

import pulsar as pulsar_client
import pytest

from tests.bridge_process import BridgeProcess, now_ms
from tests.broker.conftest import BridgeFactory
from tests.clients import Clients, admin, assert_quiet, backlog, drain, publish, rest_path, shared, texts
from tests.cluster import PulsarCluster
from tests.helpers import wait_until, wait_until_async
from tests.raw_client import raw_client

SIZE = 10
ALL = [str(number) for number in range(SIZE)]
HOUR_MS = 3_600_000


def publish_batch(client: Any, topic: str) -> None:
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=SIZE, batching_max_publish_delay_ms=1_000
    )
    publish(producer, ALL)


def in_flight(bridge: BridgeProcess, topic: str) -> int:
    return int(bridge.stats(topic)["subscriptions"]["s"]["inFlight"])


@pytest.mark.parametrize("pinned", [False, True], ids=["alone", "behind-a-delayed-message"])
def test_half_acked_half_nacked_and_acked(
    bridge: BridgeProcess, pulsar: PulsarCluster, client: Any, topic: str, pinned: bool
) -> None:
    """The client is told which messages are acked, gets the others, and never acks the whole: the bridge does.

    Without that the entry is acked at neither side. A delayed message before it keeps the cursor from telling.
    """
    # Enough time to ask for the batch once: a client that is slow to say which messages asks for it twice.
    consumer = shared(client, topic, batch_index_ack_enabled=True, negative_ack_redelivery_delay_ms=1_000)
    if pinned:
        publish(client.create_producer(topic), ["later"], deliver_at=now_ms() + HOUR_MS)
    publish_batch(client, topic)
    received = drain(consumer, SIZE, ack=False)
    for each in received[::2]:
        consumer.acknowledge(each.message)
    for each in received[1::2]:
        consumer.negative_acknowledge(each.message)
    again = drain(consumer, SIZE // 2, ack=False)
    assert texts(again) == ALL[1::2]
    for each in again:
        consumer.acknowledge(each.message)
    wait_until(lambda: backlog(pulsar, topic) == (1 if pinned else 0), "acked at the broker")
    wait_until(lambda: in_flight(bridge, topic) == 0, "nothing in flight", timeout=1)
    assert_quiet(consumer)


def test_the_next_consumer_gets_the_rest_of_a_batch(
    bridge: BridgeProcess, pulsar: PulsarCluster, clients: Clients, topic: str
) -> None:
    """Acks that come after the messages were given back count too."""
    first = clients.connect(bridge.service_url)
    consumer = shared(first, topic, batch_index_ack_enabled=True)
    publish_batch(first, topic)
    received = drain(consumer, SIZE, ack=False)
    for each in received[:3]:
        consumer.acknowledge(each.message)
    first.close()
    second = shared(clients.connect(bridge.service_url), topic, batch_index_ack_enabled=True)
    assert texts(drain(second, SIZE - 3)) == ALL[3:]
    wait_until(lambda: backlog(pulsar, topic) == 0, "acked at the broker")
    assert_quiet(second)


def test_a_seek_back_brings_the_whole_batch_again(pulsar: PulsarCluster, client: Any, topic: str) -> None:
    consumer = shared(client, topic, batch_index_ack_enabled=True)
    publish_batch(client, topic)
    received = drain(consumer, SIZE, ack=False)
    for each in received[:3]:
        consumer.acknowledge(each.message)
    consumer.seek(pulsar_client.MessageId.earliest)
    assert texts(drain(consumer, SIZE)) == ALL
    wait_until(lambda: backlog(pulsar, topic) == 0, "acked at the broker")
    assert_quiet(consumer)


@pytest.mark.parametrize(
    "ack_sets",
    [
        [(0,)],
        [(0b1111100000,), (0b0000011111,)],
        [(0b1111100000, -1, -1), (0b0000011111 | 1 << 40,)],
        [(-1,) * 100, (1 << 60,)],
    ],
    ids=["nothing-left", "halves", "too-long", "behind-the-end"],
)
async def test_ack_sets_as_clients_may_send_them(
    bridge: BridgeProcess, pulsar: PulsarCluster, topic: str, ack_sets: list[tuple[int, ...]]
) -> None:
    """All of it is acked in the end, and at the broker too."""
    client = await raw_client(bridge.service_url)
    await client.consume(topic)
    await client.produce(topic)
    position = await client.publish(b"x", messages=SIZE)
    client.flow(100)
    assert (await client.message()).position == position
    for ack_set in ack_sets:
        client.ack(position, ack_set=ack_set)
    await wait_until_async(lambda: backlog(pulsar, topic) == 0, "acked at the broker")
    # Of an entry that nobody has got, or that does not exist, it means nothing.
    client.ack((position[0], position[1] + 5), ack_set=(0,))
    client.ack((1 << 62, 7), ack_set=(1,))
    later = await client.publish(b"y", sequence_id=1)
    assert (await client.message()).position == later
    await client.close()


async def test_what_is_left_is_told_on_redelivery(bridge: BridgeProcess, topic: str) -> None:
    """Whether the ack comes while a consumer has the entry, or when it was given back; it counts as a broker counts."""
    client = await raw_client(bridge.service_url)
    await client.consume(topic)
    await client.produce(topic)
    position = await client.publish(b"x", messages=SIZE)
    client.flow(SIZE)
    await client.message()
    client.ack(position, ack_set=(0b0111111111,))
    client.redeliver(position)
    client.ack(position, ack_set=(0b1111111110,))
    client.flow(100)
    again = await client.message()
    # Acks of a part make the count begin anew, as those of the whole.
    assert (again.position, again.redelivery_count, again.ack_set) == (position, 0, (0b0111111110,))
    await client.close()


@pytest.mark.parametrize("through", ["bridge", "broker"])
async def test_a_batch_that_claims_no_messages_and_is_read_alone(
    through: str, bridge: BridgeProcess, pulsar: PulsarCluster, topic: str
) -> None:
    """A broker sends to nobody what it reads at once and counts as 0 messages; its own consumers do not get it either.

    Whether such a batch is read alone is chance, so whether it is delivered is too. What lies behind it is delivered.
    """
    client = await raw_client(bridge.service_url if through == "bridge" else pulsar.service_url)
    await client.consume(topic)
    client.flow(100)
    await client.produce(topic)
    first = await client.publish(b"x")
    assert (await client.message()).position == first
    empty = await client.publish(b"x", sequence_id=1, messages=0)

    def read() -> bool:
        """By the dispatcher, which is a reader of the bridge or the subscription itself."""
        cursors = admin(pulsar, "GET", f"{rest_path(topic)}/internalStats")["cursors"]
        positions = [tuple(map(int, each["readPosition"].split(":"))) for each in cursors.values()]
        return any(each > empty for each in positions)

    await wait_until_async(read, "read alone")
    last = await client.publish(b"x", sequence_id=2)
    received = await client.message()
    if received.position == empty:
        received = await client.message()
    assert received.position == last
    await client.close()


def test_after_a_takeover_the_whole_batch_comes_again(
    private_bridge: BridgeFactory, pulsar: PulsarCluster, clients: Clients, topic: str
) -> None:
    """The broker does not tell which messages of a batch are acked; acked once more, it is done."""
    bridge = private_bridge()
    client = clients.connect(bridge.service_url)
    consumer = shared(client, topic, batch_index_ack_enabled=True)
    publish_batch(client, topic)
    for each in drain(consumer, SIZE, ack=False)[:3]:
        consumer.acknowledge(each.message)
    bridge.kill()
    client.close()
    bridge.start()
    consumer = shared(clients.connect(bridge.service_url), topic, batch_index_ack_enabled=True)
    assert texts(drain(consumer, SIZE)) == ALL
    wait_until(lambda: backlog(pulsar, topic) == 0, "acked at the broker")
    assert_quiet(consumer)
