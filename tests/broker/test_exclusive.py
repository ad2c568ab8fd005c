"""Exclusive and Failover subscriptions that the bridge dispatches: without delays the same as on the broker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pulsar as client_library
import pytest
import pytest_asyncio

from bridge.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe, ServerError
from tests.bridge_process import BridgeProcess
from tests.clients import Clients, drain_all, publish, texts
from tests.cluster import PulsarCluster
from tests.raw_client import RawClient, raw_client
from tests.single_active import (
    EVERYTHING,
    NAMES,
    TYPES,
    ack_up_to,
    acked_up_to,
    active,
    join,
    places,
    publish_all,
    receive,
    seek,
    silent,
)

Connect = Callable[[], Awaitable[RawClient]]


@pytest.fixture(scope="module")
def delaying(pulsar: PulsarCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeProcess]:
    """A bridge that honours delays on these types."""
    folder = tmp_path_factory.mktemp("delaying")
    process = BridgeProcess(pulsar, folder, delays_on_exclusive="public/default other/*").start()
    yield process
    process.stop()


@pytest.fixture(params=["broker", "bridge"])
def url(request: pytest.FixtureRequest, pulsar: PulsarCluster) -> str:
    """Where clients connect to: what passes at the one must pass at the other."""
    return str(pulsar.service_url if request.param == "broker" else request.getfixturevalue("delaying").service_url)


@pytest_asyncio.fixture
async def connect(url: str) -> AsyncIterator[Connect]:
    yield lambda: raw_client(url)


@pytest.fixture(params=TYPES, ids=NAMES)
def kind(request: pytest.FixtureRequest) -> CommandSubscribe.SubType:
    return request.param  # type: ignore[no-any-return]


# -- without delays: as on the broker


async def test_one_consumer_gets_everything_in_order(
    connect: Connect, kind: CommandSubscribe.SubType, pulsar: PulsarCluster, topic: str
) -> None:
    client = await connect()
    await join(client, topic, kind, permits=10)
    stored = await publish_all(client, topic, 30)
    assert await places(client, 10) == stored[:10]
    await silent(client)
    client.flow(EVERYTHING)
    assert await places(client, 20) == stored[10:]
    await ack_up_to(client, stored[19])
    await acked_up_to(pulsar, topic, stored[19])
    client.ack(*stored[20:])
    await acked_up_to(pulsar, topic, stored[29])


async def test_a_backlog_comes_in_order(connect: Connect, kind: CommandSubscribe.SubType, topic: str) -> None:
    client = await connect()
    await join(client, topic, kind)
    await client.close_consumer()
    stored = await publish_all(client, topic, 200)
    await join(client, topic, kind)
    received = await receive(client, 200)
    assert [each.position for each in received] == stored
    assert {each.redelivery_count for each in received} == {0}


async def test_all_that_is_not_acked_comes_again_in_order(
    connect: Connect, kind: CommandSubscribe.SubType, topic: str
) -> None:
    """Whatever is asked for; redeliveries are not counted."""
    client = await connect()
    await join(client, topic, kind)
    stored = await publish_all(client, topic, 10)
    assert await places(client, 10) == stored
    client.ack(stored[3], stored[7])
    await ack_up_to(client, stored[1])
    left = [place for number, place in enumerate(stored) if number not in (0, 1, 3, 7)]
    for asked in ((), (stored[8],)):
        client.redeliver(*asked)
        received = await receive(client, 6)
        assert [each.position for each in received] == left
        assert {each.redelivery_count for each in received} == {0}
    await silent(client)


async def test_the_next_consumer_gets_what_is_not_acked(
    connect: Connect, kind: CommandSubscribe.SubType, topic: str
) -> None:
    client, other = await connect(), await connect()
    await join(client, topic, kind)
    stored = await publish_all(client, topic, 10)
    assert await places(client, 10) == stored
    await ack_up_to(client, stored[2])
    client.ack(stored[5])
    await asyncio.sleep(1.1)  # brokers keep single acks in a second's rhythm
    await client.close()
    await join(other, topic, kind, "b")
    assert await places(other, 6) == [stored[3], stored[4], *stored[6:]]
    await silent(other)


async def test_a_second_exclusive_consumer_is_refused(connect: Connect, topic: str) -> None:
    client, other = await connect(), await connect()
    await join(client, topic, CommandSubscribe.Exclusive)
    await other.lookup(topic)
    for wrong in (CommandSubscribe.Exclusive, CommandSubscribe.Shared, CommandSubscribe.Failover):
        answer = await other.subscribe(topic, subType=wrong, consumer_name="b")
        assert answer.error.error == ServerError.ConsumerBusy, answer
    stored = await publish_all(client, topic, 3)
    assert await places(client, 3) == stored


async def test_failover_to_the_next_consumer(connect: Connect, topic: str) -> None:
    """A better priority takes over; what the former one had comes again, and then what is new."""
    client, other = await connect(), await connect()
    await join(client, topic, CommandSubscribe.Failover, priority_level=2)
    await active(client)
    stored = await publish_all(client, topic, 10)
    assert await places(client, 10) == stored
    client.ack(stored[4])
    await ack_up_to(client, stored[1])
    await join(other, topic, CommandSubscribe.Failover, "b", priority_level=1)
    await active(other)
    assert await places(other, 7) == [*stored[2:4], *stored[5:]]
    more = await publish_all(client, topic, 5, 10)
    assert await places(other, 5) == more
    client.flow(EVERYTHING)
    client.redeliver()
    await silent(client, other)
    await other.close()
    assert await places(client, 12) == [*stored[2:4], *stored[5:], *more]


async def test_what_a_former_consumer_acks_counts(connect: Connect, pulsar: PulsarCluster, topic: str) -> None:
    client, other = await connect(), await connect()
    await join(client, topic, CommandSubscribe.Failover, priority_level=2)
    await active(client)
    stored = await publish_all(client, topic, 10)
    assert await places(client, 10) == stored
    await join(other, topic, CommandSubscribe.Failover, "b", priority_level=1)
    await active(other)
    assert await places(other, 10) == stored
    await ack_up_to(client, stored[5])
    await acked_up_to(pulsar, topic, stored[5])
    other.redeliver()
    assert await places(other, 4) == stored[6:]
    await silent(client, other)


async def test_a_part_of_a_batch(connect: Connect, kind: CommandSubscribe.SubType, topic: str) -> None:
    """By default brokers keep no acks of messages of a batch; what lies before it is acked."""
    client = await connect()
    await join(client, topic, kind)
    stored = await publish_all(client, topic, 3, messages=4)
    assert await places(client, 3) == stored
    await ack_up_to(client, stored[1], ack_set=(0b1100,), wait=False)
    client.redeliver()
    assert await places(client, 2) == stored[1:]
    await ack_up_to(client, stored[1])
    client.redeliver()
    assert await places(client, 1) == stored[2:]
    await silent(client)


async def test_acks_of_what_is_acked_are_answered(connect: Connect, kind: CommandSubscribe.SubType, topic: str) -> None:
    client = await connect()
    await join(client, topic, kind)
    stored = await publish_all(client, topic, 4)
    assert await places(client, 4) == stored
    for place in (stored[2], stored[2], stored[0]):
        await ack_up_to(client, place)
    client.redeliver()
    assert await places(client, 1) == stored[3:]


async def test_what_was_sent_before_a_redelivery_can_be_told(
    url: str, kind: CommandSubscribe.SubType, topic: str, epochs: list[int | None]
) -> None:
    """By the consumer's epoch, where the client names one."""
    client = await raw_client(url)
    await join(client, topic, kind, consumer_epoch=3)
    stored = await publish_all(client, topic, 2)
    assert await places(client, 2) == stored
    command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    command.redeliverUnacknowledgedMessages.consumer_id = 1
    command.redeliverUnacknowledgedMessages.consumer_epoch = 4
    client.send(command)
    assert await places(client, 2) == stored
    assert epochs == [3, 3, 4, 4]


@pytest.fixture
def epochs(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Of the messages that clients get."""
    found: list[int | None] = []
    on_frame = RawClient._on_frame

    def noting(client: RawClient, frame: Any) -> None:
        command = frame.command()
        if command.type == BaseCommand.MESSAGE:
            message = command.message
            found.append(message.consumer_epoch if message.HasField("consumer_epoch") else None)
        on_frame(client, frame)

    monkeypatch.setattr(RawClient, "_on_frame", noting)
    return found


async def test_seek(connect: Connect, kind: CommandSubscribe.SubType, topic: str) -> None:
    client = await connect()
    await join(client, topic, kind)
    stored = await publish_all(client, topic, 10)
    assert await places(client, 10) == stored
    await ack_up_to(client, stored[9])
    await seek(client, stored[4])
    await join(client, topic, kind)
    assert await places(client, 6) == stored[4:]
    await silent(client)


def test_an_official_client(url: str, kind: CommandSubscribe.SubType, clients: Clients, topic: str) -> None:
    """With batches, and a consumer that comes after them."""
    types = client_library.ConsumerType
    consumer_type = types.Exclusive if kind == CommandSubscribe.Exclusive else types.Failover
    client = clients.connect(url)
    initial = client_library.InitialPosition.Earliest
    client.subscribe(topic, "s", consumer_type=consumer_type, initial_position=initial).close()
    producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
    sent = [str(number) for number in range(5_000)]
    publish(producer, sent)
    consumer = client.subscribe(topic, "s", consumer_type=consumer_type, receiver_queue_size=500)
    received = drain_all(consumer, 2_000, ack=False, limit=5_000)
    assert texts(received) == sent
    consumer.acknowledge_cumulative(received[-1].message)
    consumer.close()
    again = client.subscribe(topic, "s", consumer_type=consumer_type)
    assert drain_all(again, 1_500) == []
