"""Delays on Exclusive and Failover subscriptions: what goes out when, in which order, and what acks cover."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pulsar as client_library
import pytest
import pytest_asyncio

from bridge.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe
from tests.bridge_process import BridgeProcess, now_ms
from tests.broker.conftest import BridgeFactory
from tests.clients import Clients, drain_all, publish, texts
from tests.clients import receive as receive_one
from tests.cluster import PulsarCluster
from tests.helpers import wait_until, wait_until_async
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
    seek,
    silent,
)

Connect = Callable[[], Awaitable[RawClient]]
DELAYS = "public/default"
HOUR_MS = 3_600_000
LATE_MS = 1_000
"""Later than a busy machine makes a delivery."""


@pytest.fixture(scope="module")
def delaying(pulsar: PulsarCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeProcess]:
    """A bridge that honours delays on these types."""
    process = BridgeProcess(pulsar, tmp_path_factory.mktemp("delaying"), delays_on_exclusive=DELAYS).start()
    yield process
    process.stop()


@pytest_asyncio.fixture
async def connect(delaying: BridgeProcess) -> AsyncIterator[Connect]:
    yield lambda: raw_client(delaying.service_url)


@pytest.fixture(params=TYPES, ids=NAMES)
def kind(request: pytest.FixtureRequest) -> CommandSubscribe.SubType:
    return request.param  # type: ignore[no-any-return]


async def ready(client: RawClient, topic: str, kind: CommandSubscribe.SubType, permits: int = EVERYTHING) -> None:
    """A consumer that gets what there is, and a producer."""
    await join(client, topic, kind, permits=permits)
    await client.produce(topic)
    first = await client.publish(b"first", sequence_id=1_000)
    assert (await client.message()).position == first
    client.ack(first)


async def test_never_early_in_time_and_nothing_waits_for_it(
    connect: Connect, delaying: BridgeProcess, kind: CommandSubscribe.SubType, topic: str
) -> None:
    client = await connect()
    await ready(client, topic, kind)
    due = now_ms() + 1_500
    delayed = [await client.publish(b"x", due + offset, sequence_id=offset) for offset in (400, 0, 200)]
    behind = [await client.publish(b"y", sequence_id=500 + number) for number in range(5)]
    assert await places(client, 5) == behind
    assert now_ms() < due, "too slow to tell"
    for place, at_ms in ((delayed[1], due), (delayed[2], due + 200), (delayed[0], due + 400)):
        assert await places(client, 1) == [place]
        assert at_ms <= now_ms() < at_ms + LATE_MS
    stats = delaying.stats(topic)["subscriptions"]["s"]
    assert (stats["type"], stats["early"]) == (NAMES[TYPES.index(kind)], 0)


async def test_the_next_consumer_gets_what_is_due_in_the_order_of_positions(
    connect: Connect, kind: CommandSubscribe.SubType, topic: str
) -> None:
    client = await connect()
    await ready(client, topic, kind)
    await client.close_consumer()
    due = now_ms() + 500
    stored = [
        await client.publish(b"x", due - number if number % 3 == 0 else None, sequence_id=number)
        for number in range(60)
    ]
    waits = await client.publish(b"z", now_ms() + HOUR_MS, sequence_id=100)
    last = await client.publish(b"y", sequence_id=101)
    await wait_until_async(lambda: now_ms() > due, "all is due")
    await join(client, topic, kind, permits=10)
    assert await places(client, 10) == stored[:10]
    await silent(client)
    client.flow(EVERYTHING)
    assert await places(client, 51) == [*stored[10:], last]
    await silent(client)
    assert waits not in stored


async def test_a_cumulative_ack_leaves_what_waits(
    connect: Connect, pulsar: PulsarCluster, kind: CommandSubscribe.SubType, topic: str
) -> None:
    client = await connect()
    await ready(client, topic, kind)
    due = now_ms() + 1_500
    waits = await client.publish(b"x", due, sequence_id=1)
    behind = [await client.publish(b"y", sequence_id=number) for number in range(2, 5)]
    assert await places(client, 3) == behind
    await ack_up_to(client, behind[-1])
    before = waits[0], waits[1] - 1
    ranges = f"[({waits[0]}:{waits[1]}..{behind[-1][0]}:{behind[-1][1]}]]"
    await acked_up_to(pulsar, topic, before, ranges)
    assert await places(client, 1) == [waits]
    assert now_ms() >= due
    last = await client.publish(b"z", sequence_id=5)
    assert await places(client, 1) == [last]
    await ack_up_to(client, last)  # does not speak of what was overtaken
    client.redeliver()
    assert await places(client, 1) == [waits]
    client.ack(waits)
    await acked_up_to(pulsar, topic, last)


async def test_a_cumulative_ack_covers_what_came_in_order(
    connect: Connect, pulsar: PulsarCluster, kind: CommandSubscribe.SubType, topic: str
) -> None:
    """Also what was delayed, and what was given to it before it was acked that far."""
    client = await connect()
    await ready(client, topic, kind)
    due = now_ms() + 700
    first = await client.publish(b"x", due, sequence_id=1)
    behind = await client.publish(b"y", sequence_id=2)
    assert await places(client, 2) == [behind, first]
    last = await client.publish(b"y", sequence_id=3)
    assert await places(client, 1) == [last]
    await ack_up_to(client, last)
    await acked_up_to(pulsar, topic, last)


async def test_an_ack_does_not_speak_of_what_was_sent_behind(
    connect: Connect, pulsar: PulsarCluster, kind: CommandSubscribe.SubType, topic: str
) -> None:
    client = await connect()
    await ready(client, topic, kind)
    first = await client.publish(b"x", now_ms() + 700, sequence_id=1)
    behind = await client.publish(b"y", sequence_id=2)
    assert await places(client, 2) == [behind, first]
    await ack_up_to(client, behind)
    client.redeliver()
    assert await places(client, 1) == [first]
    await ack_up_to(client, first)  # by its own position
    await acked_up_to(pulsar, topic, behind)


async def test_failover_with_what_is_delayed_and_what_is_not(connect: Connect, topic: str) -> None:
    client, other = await connect(), await connect()
    await join(client, topic, CommandSubscribe.Failover, priority_level=2)
    await active(client)
    await client.produce(topic)
    due = now_ms() + 3_500
    waits = await client.publish(b"x", due, sequence_id=1)
    soon = await client.publish(b"x", now_ms() + 300, sequence_id=2)
    stored = await publish_all(client, topic, 5, 3)
    assert await places(client, 6) == [*stored, soon]
    await ack_up_to(client, stored[1])
    await join(other, topic, CommandSubscribe.Failover, "b", priority_level=1)
    await active(other)
    assert await places(other, 4) == [soon, *stored[2:]]
    assert await places(other, 1) == [waits]
    assert due <= now_ms() < due + LATE_MS
    await silent(client)
    other.ack(soon, waits, *stored)
    await other.close()
    await silent(client)


async def test_seek_back(connect: Connect, kind: CommandSubscribe.SubType, topic: str) -> None:
    """What was due comes at once and in its place, what was not waits."""
    client = await connect()
    await ready(client, topic, kind)
    due = now_ms() + 500
    stored = [await client.publish(b"x", due if number == 2 else None, sequence_id=number) for number in range(5)]
    waits = await client.publish(b"x", now_ms() + 6_000, sequence_id=6)
    in_time = [place for number, place in enumerate(stored) if number != 2]
    assert await places(client, 5) == [*in_time, stored[2]]
    client.ack(*stored)
    await seek(client, stored[0])
    await join(client, topic, kind)
    assert await places(client, 5) == stored
    await ack_up_to(client, stored[-1])
    client.redeliver()
    assert await places(client, 1) == [waits]


async def test_a_bridge_that_starts_anew(
    private_bridge: BridgeFactory, pulsar: PulsarCluster, kind: CommandSubscribe.SubType, topic: str
) -> None:
    """Also when killed: what was acked stays acked, what waits is in time."""
    bridge = private_bridge(delays_on_exclusive=DELAYS)
    client = await raw_client(bridge.service_url)
    await ready(client, topic, kind)
    due = now_ms() + 8_000
    waits = await client.publish(b"x", due, sequence_id=1)
    stored = await publish_all(client, topic, 6, 2)
    assert await places(client, 6) == stored
    await ack_up_to(client, stored[3])
    await acked_up_to(
        pulsar, topic, (waits[0], waits[1] - 1), f"[({waits[0]}:{waits[1]}..{stored[3][0]}:{stored[3][1]}]]"
    )
    bridge.kill()
    await client.closed_by_peer()
    bridge.start()
    client = await raw_client(bridge.service_url)
    await join(client, topic, kind)
    assert await places(client, 2) == stored[4:]
    await ack_up_to(client, stored[5])
    assert await places(client, 1) == [waits]
    assert due <= now_ms()
    client.ack(waits)
    await acked_up_to(pulsar, topic, stored[5])


async def test_what_was_acked_before_the_bridge_gave_it_does_not_come(
    private_bridge: BridgeFactory, pulsar: PulsarCluster, topic: str
) -> None:
    """A client that was given it by another bridge: as on the broker all that is immediate is acked."""
    client = await raw_client(pulsar.service_url)
    await join(client, topic, CommandSubscribe.Exclusive)
    stored = await publish_all(client, topic, 10)
    assert await places(client, 10) == stored
    await client.close()
    bridge = private_bridge(delays_on_exclusive=DELAYS)
    client = await raw_client(bridge.service_url)
    await join(client, topic, CommandSubscribe.Exclusive, permits=0)
    await ack_up_to(client, stored[5])

    def dispatching() -> bool:
        return bool(bridge.stats(topic)["subscriptions"].get("s", {}).get("dispatching"))

    await wait_until_async(dispatching, "dispatching")
    client.flow(EVERYTHING)
    assert await places(client, 4) == stored[6:]
    await ack_up_to(client, stored[9])
    await acked_up_to(pulsar, topic, stored[9])


async def test_who_may_have_delays(private_bridge: BridgeFactory, topic: str) -> None:
    """By the setting nobody; the subscription's own word goes first, or the consumer's."""
    bridge = private_bridge(delays_on_exclusive="public/other persistent://public/default/none-*")
    client = await raw_client(bridge.service_url)
    await client.produce(topic)
    delayed = await client.publish(b"x", now_ms() + HOUR_MS, sequence_id=1)
    stored = await client.publish(b"y", sequence_id=2)

    expected: dict[tuple[str, str], list[tuple[int, int]]] = {
        ("true", "subscription_properties"): [stored],
        ("true", "metadata"): [stored],
        ("false", "metadata"): [delayed, stored],
        ("perhaps", "metadata"): [delayed, stored],
    }
    await client.lookup(topic)
    for number, ((said, where), found) in enumerate(expected.items()):
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        request_id = client.next_request_id()
        subscribe = CommandSubscribe(topic=topic, subscription=f"s{number}", consumer_id=number, request_id=request_id)
        subscribe.subType, subscribe.initialPosition = CommandSubscribe.Exclusive, CommandSubscribe.Earliest
        getattr(subscribe, where).add(key="delay-bridge.delays", value=said)
        command.subscribe.CopyFrom(subscribe)
        assert (await client.request(command, request_id)).type == BaseCommand.SUCCESS
        client.flow(EVERYTHING, number)
        assert await places(client, len(found)) == found
    await silent(client)


async def test_a_backlog_of_batches(
    delaying: BridgeProcess, clients: Clients, kind: CommandSubscribe.SubType, topic: str
) -> None:
    client = clients.connect(delaying.service_url)
    initial = client_library.InitialPosition.Earliest
    types = client_library.ConsumerType
    consumer_type = types.Exclusive if kind == CommandSubscribe.Exclusive else types.Failover
    await asyncio.to_thread(
        lambda: client.subscribe(topic, "s", consumer_type=consumer_type, initial_position=initial).close()
    )

    def run() -> None:
        batched = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
        sent = [str(number) for number in range(4_000)]
        publish(batched, sent[:2_000])
        due = now_ms() + 300
        publish(batched, ["due"], deliver_at=due)
        waits = now_ms() + 8_000
        publish(batched, ["waits"], deliver_at=waits)
        publish(batched, sent[2_000:])
        wait_until(lambda: now_ms() > due, "it is due")
        consumer = client.subscribe(topic, "s", consumer_type=consumer_type, receiver_queue_size=100)
        received = drain_all(consumer, 1_500, limit=4_001)
        assert texts(received) == [*sent[:2_000], "due", *sent[2_000:]]
        last = receive_one(consumer, 10_000)
        assert last.text == "waits"
        assert last.at_ms >= waits

    await asyncio.to_thread(run)


def test_a_backlog_that_the_bridge_did_not_know(
    private_bridge: BridgeFactory, clients: Clients, direct: Any, topic: str
) -> None:
    """What is immediate comes in order, what is due when it is known, what is not waits."""
    exclusive, initial = client_library.ConsumerType.Exclusive, client_library.InitialPosition.Earliest
    direct.subscribe(topic, "s", consumer_type=exclusive, initial_position=initial).close()
    producer = direct.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
    sent = [str(number) for number in range(6_000)]
    late = [f"due {number}" for number in range(20)]
    publish(producer, sent[:3_000])
    publish(producer, late, deliver_at=now_ms() + 100)
    publish(producer, ["waits"], deliver_at=now_ms() + HOUR_MS)
    publish(producer, sent[3_000:])
    bridge = private_bridge(delays_on_exclusive=DELAYS)
    consumer = clients.connect(bridge.service_url).subscribe(topic, "s", consumer_type=exclusive)
    received = texts(drain_all(consumer, 3_000, limit=6_020))
    assert [text for text in received if text.isdigit()] == sent
    assert [text for text in received if not text.isdigit()] == late
    assert drain_all(consumer) == []
    assert bridge.stats(topic)["subscriptions"]["s"]["pending"] == 1


def test_official_clients_ignore_what_they_acked_past(
    delaying: BridgeProcess, clients: Clients, kind: CommandSubscribe.SubType, topic: str
) -> None:
    """It is not lost: the next consumer gets it, and acks it by itself."""
    client = clients.connect(delaying.service_url)
    types, initial = client_library.ConsumerType, client_library.InitialPosition.Earliest
    consumer_type = types.Exclusive if kind == CommandSubscribe.Exclusive else types.Failover
    consumer = client.subscribe(topic, "s", consumer_type=consumer_type, initial_position=initial)
    producer = client.create_producer(topic)
    publish(producer, ["first"])
    assert receive_one(consumer, 10_000).text == "first"
    due = now_ms() + 1_500
    publish(producer, ["delayed"], deliver_at=due)
    publish(producer, ["behind"])
    behind = receive_one(consumer, ack=False)
    assert behind.text == "behind"
    consumer.acknowledge_cumulative(behind.message)

    def delivered() -> bool:
        return bool(delaying.stats(topic)["subscriptions"]["s"]["delivered"] == 3)

    wait_until(delivered, "the delayed message sent")
    assert drain_all(consumer) == []
    publish(producer, ["last"])
    last = receive_one(consumer, ack=False)
    consumer.acknowledge_cumulative(last.message)
    consumer.close()
    consumer = client.subscribe(topic, "s", consumer_type=consumer_type)
    again = receive_one(consumer, 10_000)
    assert (again.text, again.at_ms >= due) == ("delayed", True)
    consumer.close()
    consumer = client.subscribe(topic, "s", consumer_type=consumer_type)
    assert drain_all(consumer, 2_000) == []
