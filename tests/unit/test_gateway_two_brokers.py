"""One client, two brokers: what goes to which, and what becomes of a broker that has given a topic up."""

import socket
from collections.abc import AsyncIterator

import pytest_asyncio

from bridge.gateway.listener import Gateway
from bridge.limits import ConnectionLimits
from bridge.net.failures import Failures
from bridge.protocol import commands
from bridge.protocol.frames import encode_frame
from bridge.protocol.pulsar_pb2 import BaseCommand, ServerError
from tests.fake_broker import FakeBroker
from tests.helpers import wait_until_async
from tests.raw_client import RawClient, raw_client
from tests.unit.test_gateway_sessions import NoTopics

TOPIC = "persistent://public/default/t"


class TwoBrokers:
    """The first answers lookups: `homes` says by topic where it lives, else with itself."""

    def __init__(self, first: FakeBroker, second: FakeBroker, url: str) -> None:
        self.first, self.second, self.url = first, second, url
        self.homes = {TOPIC: second}
        self.looked_up: list[str] = []
        first.answers[BaseCommand.LOOKUP] = self._looked_up
        for broker in (first, second):
            broker.answers[BaseCommand.PRODUCER] = _producer_success

    def _looked_up(self, command: BaseCommand) -> list[bytes]:
        lookup = command.lookupTopic
        self.looked_up.append(lookup.topic)
        home = self.homes.get(lookup.topic)
        if home is None:
            return [encode_frame(commands.lookup_failed(lookup.request_id, ServerError.ServiceNotReady, "nobody"))]
        return [encode_frame(commands.lookup_connect(lookup.request_id, home.url, authoritative=True))]

    async def client(self) -> RawClient:
        return await raw_client(self.url)


def _producer_success(command: BaseCommand) -> list[bytes]:
    answer = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
    answer.producer_success.request_id = command.producer.request_id
    answer.producer_success.producer_name = "p"
    return [encode_frame(answer)]


def _error(request_id: int) -> bytes:
    return encode_frame(commands.error(request_id, ServerError.ServiceNotReady, "not served by this instance"))


def _closed_by_broker(producer_id: int) -> bytes:
    command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
    command.close_producer.producer_id = producer_id
    command.close_producer.request_id = (1 << 64) - 1
    return encode_frame(command)


def _send(producer_id: int = 1) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id, command.send.sequence_id = producer_id, 0
    return command


async def _open_producer(client: RawClient, producer_id: int = 1) -> BaseCommand:
    """PRODUCER alone: the client has looked the topic up on another connection, or not at all."""
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic, command.producer.producer_id = TOPIC, producer_id
    command.producer.request_id = request_id = client.next_request_id()
    return await client.request(command, request_id)


def _heard(broker: FakeBroker, kind: int) -> int:
    return sum(each.type == kind for each in broker.heard)


async def _answered(client: RawClient) -> None:
    """Whatever the client has said before has been dealt with."""
    client.send(commands.ping())
    await client.event(BaseCommand.PONG)


@pytest_asyncio.fixture
async def two() -> AsyncIterator[TwoBrokers]:
    async with FakeBroker() as first, FakeBroker() as second:
        gateway = Gateway(first.url, NoTopics(), Failures(), 10_000, ConnectionLimits())
        bound = socket.create_server(("127.0.0.1", 0))
        bound.setblocking(False)
        await gateway.start(bound)
        yield TwoBrokers(first, second, f"pulsar://127.0.0.1:{bound.getsockname()[1]}")
        await gateway.close()


# -- a producer that the broker closes


async def test_what_is_sent_while_the_broker_closes_the_producer_is_dropped(two: TwoBrokers) -> None:
    client = await two.client()
    await client.produce(TOPIC)
    two.second.send(_closed_by_broker(1))
    await client.event(BaseCommand.CLOSE_PRODUCER)
    client.send(_send())  # sent before the client has heard of it, for all anybody knows
    await _answered(client)
    assert _heard(two.first, BaseCommand.SEND) == _heard(two.second, BaseCommand.SEND) == 0
    assert not client.lost.done()
    await client.close()


async def test_a_producer_opened_again_is_sent_from(two: TwoBrokers) -> None:
    client = await two.client()
    await client.produce(TOPIC)
    two.second.send(_closed_by_broker(1))
    await client.event(BaseCommand.CLOSE_PRODUCER)
    two.homes[TOPIC] = two.first
    await client.produce(TOPIC)
    client.send(_send())
    await wait_until_async(lambda: _heard(two.first, BaseCommand.SEND) == 1)
    assert _heard(two.second, BaseCommand.SEND) == 0
    await client.close()


async def test_a_late_refusal_does_not_concern_the_producer_opened_since(two: TwoBrokers) -> None:
    """The topic was unloaded while the producer was being opened."""
    client = await two.client()
    await client.lookup(TOPIC)
    first_try = client.next_request_id()
    two.second.answers[BaseCommand.PRODUCER] = lambda command: (
        [] if command.producer.request_id == first_try else _producer_success(command)
    )
    opening = BaseCommand(type=BaseCommand.PRODUCER)
    opening.producer.topic, opening.producer.producer_id, opening.producer.request_id = TOPIC, 1, first_try
    client.send(opening)
    await wait_until_async(lambda: _heard(two.second, BaseCommand.PRODUCER) == 1)
    two.second.send(_closed_by_broker(1))
    await client.event(BaseCommand.CLOSE_PRODUCER)
    await client.produce(TOPIC)
    two.second.send(_error(first_try))
    await client.event(BaseCommand.ERROR)
    client.send(_send())
    await wait_until_async(lambda: _heard(two.second, BaseCommand.SEND) == 1)
    assert _heard(two.first, BaseCommand.SEND) == 0
    await client.close()


# -- what lookups said before


async def test_a_topic_is_looked_up_once_while_nothing_speaks_against_it(two: TwoBrokers) -> None:
    client = await two.client()
    for producer_id in (1, 2):
        assert (await _open_producer(client, producer_id)).type == BaseCommand.PRODUCER_SUCCESS
    assert two.looked_up == [TOPIC]
    await client.close()


async def test_a_broker_that_closed_something_is_not_believed_to_have_the_topic(two: TwoBrokers) -> None:
    client = await two.client()
    await _open_producer(client)
    two.second.send(_closed_by_broker(1))
    await client.event(BaseCommand.CLOSE_PRODUCER)
    two.homes[TOPIC] = two.first
    assert (await _open_producer(client)).type == BaseCommand.PRODUCER_SUCCESS
    assert _heard(two.first, BaseCommand.PRODUCER) == 1
    await client.close()


async def test_neither_is_one_that_refused_something(two: TwoBrokers) -> None:
    client = await two.client()
    two.second.answers[BaseCommand.PRODUCER] = lambda command: [_error(command.producer.request_id)]
    assert (await _open_producer(client)).type == BaseCommand.ERROR
    two.homes[TOPIC] = two.first
    assert (await _open_producer(client)).type == BaseCommand.PRODUCER_SUCCESS
    assert two.looked_up == [TOPIC, TOPIC]
    await client.close()
