"""Nothing grows with what slow, silent or many clients leave undone; others are served meanwhile."""

import asyncio
import os
import time
import uuid
from typing import Any

import psutil
import pytest

from tests.bridge_process import BridgeProcess, now_ms
from tests.broker.conftest import BridgeFactory, InProcessFactory
from tests.clients import Clients, admin, drain, publish, shared, texts
from tests.cluster import PulsarCluster
from tests.helpers import wait_until_async
from tests.raw_client import RawClient, raw_client
from tracker.limits import StoreLimits

MB = 1024 * 1024
LONG = os.environ.get("DELAY_BRIDGE_LONG") == "1"
FLOWING = 100_000 if LONG else 20_000
SMALL_BUFFERS = {"tail_buffer_bytes": MB, "feed_queue_bytes": MB}
SLACK_MB = 32
"""Allocators do not give everything back."""
CACHE_MB = StoreLimits().block_cache_bytes // MB
"""RocksDB's block cache, which large entries fill while they are delivered."""


def memory_mb(bridge: BridgeProcess) -> float:
    return float(psutil.Process(bridge.pid).memory_info().rss / MB)


async def all_messages(client: RawClient, count: int, timeout_s: float = 20.0) -> list[tuple[int, int]]:
    """The positions of all there are; waits for `count`."""
    await wait_until_async(lambda: client.messages.qsize() >= count, f"{count} messages", timeout=timeout_s)
    return [client.messages.get_nowait().position for _ in range(client.messages.qsize())]


async def test_a_consumer_without_permits(
    private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, topic: str
) -> None:
    """It gets nothing, holds nobody up, and costs no memory; with permits it gets everything."""
    changed = SMALL_BUFFERS | {"max_unacked_per_consumer": FLOWING + 1, "max_unacked_per_subscription": FLOWING + 1}
    bridge = await asyncio.to_thread(private_bridge, limits=changed)
    idle, beside = await raw_client(bridge.service_url), await raw_client(bridge.service_url)
    await idle.consume(topic, "idle")
    await beside.consume(topic, "busy", consumer_name="beside")
    consumer = shared(clients.connect(bridge.service_url), topic, "busy")
    producer = clients.connect(pulsar.service_url).create_producer(topic, max_pending_messages=FLOWING)

    def flow(start: int, count: int) -> None:
        expected = [f"{number:1024}" for number in range(start, start + count)]
        publish(producer, expected)
        assert texts(drain(consumer, count)) == expected

    await asyncio.to_thread(flow, 0, FLOWING // 4)
    before = memory_mb(bridge)
    await asyncio.to_thread(flow, FLOWING // 4, FLOWING - FLOWING // 4)
    grown = memory_mb(bridge) - before
    assert grown < SLACK_MB
    assert idle.messages.empty()
    assert beside.messages.empty()
    idle.flow(FLOWING)
    positions = await all_messages(idle, FLOWING, 60)
    assert positions == sorted(set(positions))
    assert len(positions) == FLOWING
    await idle.close()
    await beside.close()


async def test_a_consumer_that_never_acks(bridge_here: InProcessFactory, pulsar: PulsarCluster) -> None:
    """Pulsar's `maxUnackedMessagesPerConsumer`; half of them acked, it goes on."""
    namespace = f"public/unacked-{uuid.uuid4().hex[:8]}"
    topic = f"persistent://{namespace}/t"
    await asyncio.to_thread(admin, pulsar, "PUT", f"namespaces/{namespace}", {})
    await asyncio.to_thread(admin, pulsar, "POST", f"namespaces/{namespace}/maxUnackedMessagesPerConsumer", 40)
    bridge = await bridge_here()
    client, other = [await raw_client(bridge.advertised_url) for _ in range(2)]
    await client.consume(topic)
    await other.consume(topic, "other")
    await client.produce(topic)
    client.flow(1_000)
    sent = [await client.publish(b"x", sequence_id=number) for number in range(100)]
    first = await all_messages(client, 40)
    assert first == sent[: len(first)]
    other.flow(1_000)  # the bridge has looked at everything once this one has its part
    await all_messages(other, 40)
    assert client.messages.empty()
    assert len(first) == 40
    client.ack(*first[:21])
    await wait_until_async(lambda: client.messages.qsize() == 21, "half of them again")
    await client.close()
    await other.close()


async def test_a_subscription_that_never_acks(bridge_here: InProcessFactory, topic: str) -> None:
    """Pulsar's `maxUnackedMessagesPerSubscription`: a further consumer does not help, acks do."""
    most = {"max_unacked_per_consumer": 60, "max_unacked_per_subscription": 60}
    bridge = await bridge_here(limits={**most, "round_robin_batch": 5, "dispatch_slice": 20})
    busy = [await raw_client(bridge.advertised_url) for _ in range(3)]
    for number, client in enumerate(busy):
        await client.consume(topic, consumer_id=number)
        client.flow(1_000, consumer_id=number)
    await busy[0].produce(topic)
    at = now_ms() + 300
    sent = [await busy[0].publish(b"x", at, sequence_id=number) for number in range(200)]

    def received() -> int:
        return sum(client.messages.qsize() for client in busy)

    await wait_until_async(lambda: received() >= 60, "the first messages")
    other = await raw_client(bridge.advertised_url)
    await other.consume(topic, "other")
    other.flow(1_000)
    # It stops as well, but what one subscription holds is no business of the other's.
    await all_messages(other, 60)
    assert received() <= 60 + bridge.limits.dispatch.dispatch_slice
    for _ in range(20):
        for number, client in enumerate(busy):
            while not client.messages.empty():
                position = client.messages.get_nowait().position
                client.ack(position, consumer_id=number)
                sent.remove(position)
        if not sent:
            break
        await wait_until_async(lambda: received() > 0, "more")
    assert not sent
    for client in (*busy, other):
        await client.close()


async def test_two_hundred_clients(bridge: BridgeProcess, topic: str) -> None:
    connected = await asyncio.gather(*(raw_client(bridge.service_url) for _ in range(200)))
    await asyncio.gather(*(client.consume(topic, consumer_name=f"c{n}") for n, client in enumerate(connected)))
    for client in connected:
        client.flow(1_000)
    await connected[0].produce(topic)
    at = now_ms() + 1_500
    sent = [await connected[0].publish(b"x", at, sequence_id=number) for number in range(1_000)]
    await wait_until_async(lambda: sum(client.messages.qsize() for client in connected) >= 1_000, "all messages")
    received = [client.messages.get_nowait().position for client in connected for _ in range(client.messages.qsize())]
    assert sorted(received) == sent
    # In turns of `round_robin_batch`: nobody gets everything.
    assert sum(1 for client in connected if client.messages.empty()) == 200
    for client in connected:
        await client.close()


@pytest.mark.parametrize(
    ("size", "delayed"),
    [
        pytest.param(100_000, True, id="delayed"),
        pytest.param(100_000, False, id="immediate"),
        pytest.param(2_000_000, True, id="large-delayed"),
        pytest.param(2_000_000, False, id="large-immediate"),
    ],
)
async def test_a_client_that_does_not_read(
    private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, topic: str, size: int, delayed: bool
) -> None:
    """100 MB for it wait on disk or in the broker, not in memory; another client is served on time meanwhile."""
    bridge = await asyncio.to_thread(private_bridge, limits=SMALL_BUFFERS, near_term_bytes=MB)
    stuck, other = [await raw_client(bridge.service_url) for _ in range(2)]
    await stuck.consume(topic)
    await other.consume(f"{topic}-other")
    await other.produce(f"{topic}-other")
    other.flow(1_000)
    producer = clients.connect(pulsar.service_url).create_producer(topic, max_pending_messages=1_000)
    text = "x" * size
    count = 100_000_000 // size
    await asyncio.to_thread(publish, producer, [text] * count, deliver_at=1 if delayed else None)
    await other.publish(b"after")
    await other.message()
    before = memory_mb(bridge)
    stuck.transport.pause_reading()
    stuck.flow(100_000)
    late = []
    peak = 0.0
    for number in range(20):
        at = now_ms() + 100
        await other.publish(b"on time", at, sequence_id=number)
        await other.message()
        late.append(now_ms() - at)
        peak = max(peak, memory_mb(bridge))
    assert min(late) >= 0
    assert sorted(late)[10] < 50
    stuck.transport.resume_reading()
    assert len(set(await all_messages(stuck, count))) == count
    await stuck.close()
    await other.close()
    # Less than the 100 MB that wait.
    assert peak - before < SLACK_MB + CACHE_MB, f"from {before:.0f} to {peak:.0f} MB"


async def test_many_consumers_of_a_client_that_does_not_read(
    private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, topic: str
) -> None:
    """One connection, one limit: not one for each of its consumers."""
    bridge = await asyncio.to_thread(private_bridge, limits=SMALL_BUFFERS)
    stuck, consumers = await raw_client(bridge.service_url), 100
    for number in range(consumers):
        await stuck.consume(topic, f"s{number}", consumer_id=number)
    producer = clients.connect(pulsar.service_url).create_producer(topic)
    text, count = "x" * 250_000, 4
    await asyncio.to_thread(publish, producer, [text] * count, deliver_at=now_ms() + 1_500)
    stuck.transport.pause_reading()
    before, peak = memory_mb(bridge), 0.0
    for number in range(consumers):
        stuck.flow(count, consumer_id=number)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        await asyncio.sleep(0.05)
        peak = max(peak, memory_mb(bridge))
    stuck.transport.resume_reading()
    assert len(await all_messages(stuck, consumers * count, 60)) == consumers * count
    await stuck.close()
    # Less than a slice for each consumer.
    assert peak - before < SLACK_MB + CACHE_MB, f"from {before:.0f} to {peak:.0f} MB"


def test_messages_larger_than_the_write_buffer_flow_on(client: Any, topic: str) -> None:
    consumer = shared(client, topic, receiver_queue_size=100)
    producer = client.create_producer(topic)
    text = "y" * 2_000_000
    publish(producer, [text] * 20, deliver_at=now_ms() + 1_000)
    started = time.monotonic()
    assert texts(drain(consumer, 20)) == [text] * 20
    assert time.monotonic() - started < 20
