"""Nobody gets what the broker has not granted: answers belong to one command, and who is not listed gets nothing."""

import asyncio
import contextlib
from typing import Any

import pytest

from bridge.gateway.requests import GATEWAY_REQUEST_ID_BASE
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandAck, CommandSubscribe, ServerError
from bridge.protocol.service_url import ServiceUrls
from tests.bridge_process import BridgeProcess, now_ms
from tests.broker.conftest import InProcessFactory
from tests.clients import admin, rest_path, some_topic
from tests.cluster import PulsarCluster
from tests.helpers import wait_until_async
from tests.raw_client import RawClient, raw_client

ATTEMPTS = 5
PATIENCE = 50
ELSEWHERE = 1_000


def subscribe_command(topic: str, request_id: int, consumer_id: int = 1, **fields: Any) -> BaseCommand:
    values = {"subType": CommandSubscribe.Shared, "initialPosition": CommandSubscribe.Earliest, **fields}
    body = CommandSubscribe(
        topic=topic, subscription="s", consumer_id=consumer_id, request_id=request_id, consumer_name="x", **values
    )
    return BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=body)


def close_command(request_id: int, consumer_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
    command.close_consumer.consumer_id, command.close_consumer.request_id = consumer_id, request_id
    return command


async def owner_of_exclusive(pulsar: PulsarCluster, topic: str) -> RawClient:
    """Somebody who has the subscription for himself, and has messages in it."""
    victim = await raw_client(pulsar.service_url)
    await victim.consume(topic, subType=CommandSubscribe.Exclusive)
    await victim.produce(topic)
    for number in range(3):
        await victim.publish(b"secret", sequence_id=number)
    return victim


async def test_an_answer_to_another_command_opens_nothing(
    bridge: BridgeProcess, pulsar: PulsarCluster, topic: str
) -> None:
    """SUBSCRIBE, which the broker refuses, and behind it what it grants, with the same request id."""
    victim = await owner_of_exclusive(pulsar, topic)
    for _ in range(ATTEMPTS):
        intruder = await raw_client(bridge.service_url)
        await intruder.lookup(topic)
        intruder.send(subscribe_command(topic, 50))
        for number in range(5):
            intruder.send(close_command(50, ELSEWHERE + number))
        with contextlib.suppress(AssertionError):  # the connection is closed
            for _ in range(PATIENCE):
                intruder.flow(100)
                await asyncio.sleep(0.01)
        assert intruder.messages.empty()
        assert intruder.lost.done()
    await victim.close()


async def test_a_consumer_id_in_use_opens_nothing(bridge: BridgeProcess, pulsar: PulsarCluster, topic: str) -> None:
    """The broker answers SUCCESS to a SUBSCRIBE with the id of a consumer that is there, whatever it asks for."""
    victim = await owner_of_exclusive(pulsar, topic)
    intruder = await raw_client(bridge.service_url)
    await intruder.lookup(topic)
    for kind in (CommandSubscribe.Exclusive, CommandSubscribe.Shared):
        await intruder.consume(some_topic("own"), consumer_id=kind, subType=kind)
        await intruder.request(subscribe_command(topic, 50 + kind, kind), 50 + kind)
        intruder.flow(100, consumer_id=kind)
    with pytest.raises(TimeoutError):
        await intruder.message(0.5)
    await intruder.close()
    await victim.close()


@pytest.mark.parametrize("kind", ["in-use", "the-gateways"])
async def test_request_ids_that_could_be_mistaken(bridge: BridgeProcess, topic: str, kind: str) -> None:
    client = await raw_client(bridge.service_url)
    peer = client.address
    await client.lookup(topic)
    request_id = 50 if kind == "in-use" else GATEWAY_REQUEST_ID_BASE + 1
    client.send(subscribe_command(topic, request_id))
    client.send(subscribe_command(topic, request_id, 2))
    await client.closed_by_peer()
    lines = [line for line in bridge.log().splitlines() if peer in line and f"request id {request_id}" in line]
    assert len(lines) == 1, lines


async def test_closed_while_it_is_being_opened(bridge: BridgeProcess, pulsar: PulsarCluster, topic: str) -> None:
    """SUBSCRIBE and CLOSE_CONSUMER in one breath leave no consumer, neither at the broker nor here."""
    client = await raw_client(bridge.service_url)
    for number in range(4):
        if number == 2:
            await client.lookup(topic)
        client.send(subscribe_command(topic, 1_000 + number, number))
        await client.close_consumer(number)
    await client.consume(topic, "last", 99)

    def left() -> list[str]:
        found = admin(pulsar, "GET", f"{rest_path(topic)}/stats")["subscriptions"]
        return [each["consumerName"] for each in found.get("s", {}).get("consumers", [])]

    # Consumers of the bridge's own may be there for a moment, to mark the cursor.
    await wait_until_async(lambda: asyncio.to_thread(lambda: not left()), "nobody", timeout=3)

    def attached() -> list[str]:
        if bridge.topic(topic).get("role") != "owner":
            return []
        return [name for name, one in bridge.stats(topic)["subscriptions"].items() if one["consumers"]]

    assert await wait_until_async(lambda: asyncio.to_thread(attached), "the last one") == ["last"]
    await client.close()


async def test_permits_given_before_the_answer(bridge: BridgeProcess, topic: str) -> None:
    """They must not reach the broker, which would dispatch by itself: early, and a second time."""
    client = await raw_client(bridge.service_url)
    await client.produce(topic)
    await client.subscribe(topic)
    await client.close_consumer()
    at = now_ms() + 1_500
    sent = [await client.publish(b"x", at if number % 2 else None, sequence_id=number) for number in range(10)]
    for number in range(10):
        client.send(subscribe_command(topic, 1_000 + number, number))
        client.flow(1, consumer_id=number)
    await client.consume(topic, consumer_id=99)
    client.flow(100, consumer_id=99)
    received = [await client.message() for _ in sent]
    assert now_ms() >= at
    assert sorted(each.position for each in received) == sorted(sent)
    assert client.messages.empty()
    await client.close()


async def test_who_is_not_listed_by_the_broker_gets_nothing(bridge_here: InProcessFactory, topic: str) -> None:
    """The second lock: should a consumer ever be taken for one that the broker has accepted."""
    bridge = await bridge_here(limits={"unlisted_lasts_s": 0.3})
    honest = await raw_client(bridge.advertised_url)
    await honest.consume(topic)
    await honest.produce(topic)
    position = await honest.publish(b"secret")
    intruder = Intruder()
    consumer = TrackedConsumer(intruder, topic, "s", 1, "raw-1", 0, "a-mark-nobody-sent")
    assert bridge.topics is not None
    bridge.topics.attach(consumer)
    bridge.topics.flow(consumer, 100)
    ack = BaseCommand(type=BaseCommand.ACK)
    ack.ack.consumer_id, ack.ack.ack_type = 1, CommandAck.Individual
    ack.ack.message_id.add(ledgerId=position[0], entryId=position[1])
    bridge.topics.acked(consumer, ack.ack)
    await wait_until_async(lambda: intruder.closed, "turned away")
    assert not intruder.written
    honest.flow(10)
    assert (await honest.message()).position == position
    bridge.topics.detach(consumer)
    await honest.close()


async def test_who_is_listed_no_more_is_closed(bridge_here: InProcessFactory, topic: str) -> None:
    """The broker has closed the consumer, and the bridge has not noticed; the client subscribes anew."""
    bridge = await bridge_here(limits={"maintenance_interval_s": 0.2})
    gone, stays = [await raw_client(bridge.advertised_url) for _ in range(2)]
    for client in (gone, stays):
        await client.consume(topic)
    assert bridge.topics is not None
    known = bridge.topics.get(topic)
    assert known is not None
    dispatcher = known.subscriptions["s"].dispatcher
    await wait_until_async(lambda: len(dispatcher.consumers) == 2, "attached")
    next(one.consumer for one in dispatcher.consumers if one.consumer.peer == gone.address).mark = "forgotten"
    closed = await gone.event(BaseCommand.CLOSE_CONSUMER)
    assert closed.close_consumer.consumer_id == 1
    await gone.consume(topic)
    await wait_until_async(lambda: len(dispatcher.consumers) == 2, "attached anew")
    assert not [each for each in stays.events if each.type == BaseCommand.CLOSE_CONSUMER]
    await gone.close()
    await stays.close()


@pytest.mark.parametrize("what", ["flow", "subscribe"])
async def test_consumer_ids_of_the_gateways_own(bridge: BridgeProcess, topic: str, what: str) -> None:
    """With permits it would be sent messages before they are due."""
    client = await raw_client(bridge.service_url)
    await client.lookup(topic)
    if what == "flow":
        client.flow(10, consumer_id=1 << 62)
    else:
        client.send(subscribe_command(topic, 1_000, 1 << 62))
    await client.closed_by_peer()


class Intruder:
    """A connection that claims a consumer (ClientWriter)."""

    writable, peer, knows_broker_metadata = True, "127.0.0.1:1", False

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed: list[TrackedConsumer] = []

    def write_client(self, data: bytes) -> None:
        self.written.append(data)

    def send_upstream(self, consumer_id: int, command: BaseCommand) -> None:
        raise AssertionError("nothing is asked on its behalf")

    def request_mark_delete(self, consumer_id: int, answer: object) -> None:
        raise AssertionError("nothing is asked on its behalf")

    def close_consumer(self, consumer: TrackedConsumer, to: ServiceUrls | None) -> None:
        self.closed.append(consumer)


async def test_a_second_consumer_of_the_same_id_while_the_first_is_being_opened(
    bridge: BridgeProcess, topic: str
) -> None:
    """Refused as by a broker."""
    client = await raw_client(bridge.service_url)
    client.send(subscribe_command(topic, 1_000))
    answer = await client.request(subscribe_command(topic, 1_001), 1_001)
    assert answer.error.error == ServerError.ServiceNotReady
    await client.event(BaseCommand.SUCCESS)
    await client.close()
