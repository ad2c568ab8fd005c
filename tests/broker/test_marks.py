"""The moment in which a cursor gets its mark: whatever goes wrong in it, clients can subscribe."""

import asyncio

import pytest

from bridge.gateway.stamping import OwnRequests
from bridge.gateway.upstream import Upstream
from bridge.ledgers.cursor_history import UNKNOWN
from bridge.protocol.pulsar_pb2 import BaseCommand
from tests.broker.conftest import InProcessFactory
from tests.broker.test_cursors import tracked_topic
from tests.clients import admin, rest_path
from tests.cluster import PulsarCluster
from tests.helpers import wait_until_async
from tests.raw_client import raw_client


async def test_a_consumer_whose_opening_was_not_waited_for_does_not_stay(
    bridge_here: InProcessFactory, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's answer comes too late, as when the client reads nothing: nobody else could subscribe ever after."""
    take, missed = OwnRequests.answered, 0

    def too_late(self: OwnRequests, upstream: Upstream, request_id: int, command: BaseCommand) -> bool:
        nonlocal missed
        missed += 1
        return missed == 1 or take(self, upstream, request_id, command)

    monkeypatch.setattr(OwnRequests, "answered", too_late)
    here = await bridge_here(limits={"stamp_timeout_s": 0.3})
    client = await raw_client(f"pulsar://127.0.0.1:{here.port}")
    await client.produce(topic)
    await client.consume(topic)
    assert missed > 1
    client.flow(1)
    position = await client.publish(b"one")
    assert (await client.message()).position == position


@pytest.mark.parametrize("next_one", ["whom the broker closed", "who was not there"])
async def test_a_reset_while_a_consumer_reads_nothing(
    bridge_here: InProcessFactory, pulsar: PulsarCluster, topic: str, next_one: str
) -> None:
    """That the broker has closed it is not seen as long as its client does not read: it seems to be there."""
    here = await bridge_here()
    producer, reader, stuck = [await raw_client(f"pulsar://127.0.0.1:{here.port}") for _ in range(3)]
    await producer.produce(topic)
    await reader.consume(topic)
    await stuck.consume(topic, consumer_id=2)
    reader.flow(1)
    first = await producer.publish(b"one")
    assert (await reader.message()).position == first
    reader.ack(first)
    tracked = tracked_topic(here, topic)
    subscription = tracked.subscriptions["s"]
    stuck.transport.pause_reading()
    stuck.flow(100, 2)
    for number in range(1, 12):
        await producer.publish(bytes(1 << 20), sequence_id=number)
    there = [state.consumer for state in subscription.dispatcher.consumers]
    await wait_until_async(lambda: not all(each.writable for each in there), "a client that does not keep up")
    await wait_until_async(lambda: subscription.view.acks.contains(*first), "the ack")
    if next_one == "who was not there":
        await reader.close_consumer()
    place = {"ledgerId": first[0], "entryId": first[1], "partitionIndex": -1}
    await asyncio.to_thread(admin, pulsar, "POST", f"{rest_path(topic)}/subscription/s/resetcursor", place)
    if next_one == "whom the broker closed":
        await reader.event(BaseCommand.CLOSE_CONSUMER)
    await reader.consume(topic, consumer_id=3)
    if next_one == "who was not there":
        await wait_until_async(
            lambda: 3 in [state.consumer.consumer_id for state in subscription.dispatcher.consumers],
            "the next consumer",
        )
        await tracked.tenure.maintain()
    reader.flow(1, 3)
    assert (await reader.message()).position == first
    assert subscription.view.history != UNKNOWN or next_one == "who was not there"
    await stuck.close()


async def test_consumers_that_come_for_a_moment_to_a_cursor_without_a_mark(
    bridge_here: InProcessFactory, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that leaves again and has acked nothing keeps nobody waiting, however often it comes."""

    async def not_allowed(*_: object) -> bool:
        return True

    monkeypatch.setattr("bridge.gateway.openings.stamp", not_allowed)
    here = await bridge_here()
    client = await raw_client(f"pulsar://127.0.0.1:{here.port}")
    await client.produce(topic)
    await client.consume(topic)
    subscriptions = tracked_topic(here, topic).subscriptions
    await wait_until_async(lambda: "s" in subscriptions and subscriptions["s"].dispatching, "served once")
    position = await client.publish(b"one")
    await client.close_consumer()

    async def comes_for_a_moment() -> bool:
        await client.consume(topic)
        client.flow(1)
        try:
            async with asyncio.timeout(here.limits.dispatch.ack_settle_s / 2):
                return (await client.message()).position == position
        except TimeoutError:
            await client.close_consumer()
            return False

    await wait_until_async(comes_for_a_moment, "the message", timeout=3)
