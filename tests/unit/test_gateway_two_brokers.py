"""One client, two brokers: what goes to which, and what becomes of a broker that has given a topic up."""

import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from bridge.gateway.listener import Gateway
from bridge.limits import ConnectionLimits
from bridge.net.failures import Failures
from bridge.protocol import commands
from bridge.protocol.answers import ANSWER_OF, FIELD_OF
from bridge.protocol.frames import encode_frame
from bridge.protocol.named_requests import TOPIC_OF, coordinator_topic, refusal
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
        await gateway.start([bound])
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


# -- requests that name what they are for


def _named(kind: int, coordinator: int = 3) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.Type.Name(kind))
    body: Any = getattr(command, FIELD_OF[kind])
    fields = body.DESCRIPTOR.fields_by_name
    if "txnid_most_bits" in fields:
        body.txnid_most_bits, body.txnid_least_bits = coordinator, 7
    if "tc_id" in fields:
        body.tc_id = coordinator
    if kind == BaseCommand.END_TXN_ON_SUBSCRIPTION:
        body.subscription.topic, body.subscription.subscription = TOPIC, "s"
    elif "topic" in fields:
        body.topic = TOPIC
    if kind == BaseCommand.GET_OR_CREATE_SCHEMA:
        body.schema.name, body.schema.schema_data, body.schema.type = "n", b"", 0
    return command


def _with_id(command: BaseCommand, request_id: int) -> BaseCommand:
    getattr(command, FIELD_OF[command.type]).request_id = request_id
    return command


@pytest.mark.parametrize("kind", TOPIC_OF, ids=BaseCommand.Type.Name)
async def test_a_request_goes_to_the_broker_of_what_it_names(two: TwoBrokers, kind: int) -> None:
    client = await two.client()
    two.homes[coordinator_topic(3)] = two.second
    client.send(_with_id(_named(kind), client.next_request_id()))
    await wait_until_async(lambda: _heard(two.second, kind) == 1)
    assert _heard(two.first, kind) == 0
    await client.close()


@pytest.mark.parametrize("kind", TOPIC_OF, ids=BaseCommand.Type.Name)
async def test_without_a_broker_it_is_refused_in_its_own_words(two: TwoBrokers, kind: int) -> None:
    client = await two.client()
    two.homes.clear()
    request_id = client.next_request_id()
    client.send(_with_id(_named(kind), request_id))
    answer = await client.event(ANSWER_OF[kind])
    body = getattr(answer, FIELD_OF[answer.type])
    assert body.request_id == request_id
    if "txnid_most_bits" in body.DESCRIPTOR.fields_by_name:
        assert body.txnid_most_bits == 3  # clients find by it what waits
    client.send(_with_id(_named(kind), request_id))  # the id is free again
    await client.event(ANSWER_OF[kind])
    await client.close()


@pytest.mark.parametrize(
    ("kind", "said", "code"),
    [
        (BaseCommand.NEW_TXN, ServerError.ServiceNotReady, ServerError.TransactionCoordinatorNotFound),
        (BaseCommand.END_TXN, ServerError.AuthorizationError, ServerError.AuthorizationError),
        (BaseCommand.END_TXN_ON_PARTITION, ServerError.ServiceNotReady, ServerError.ServiceNotReady),
        (BaseCommand.GET_OR_CREATE_SCHEMA, ServerError.ServiceNotReady, ServerError.ServiceNotReady),
    ],
)
def test_what_a_refusal_says(kind: int, said: ServerError, code: ServerError) -> None:
    body = getattr(refusal(_named(kind), 7, said, "why"), FIELD_OF[ANSWER_OF[kind]])
    error, message = (
        (body.error_code, body.error_message)
        if kind == BaseCommand.GET_OR_CREATE_SCHEMA
        else (body.error, body.message)
    )
    assert (body.request_id, error, message) == (7, code, "why")


async def test_a_coordinator_that_moved_is_found_again(two: TwoBrokers) -> None:
    """Its former broker answers that it is not there."""
    client = await two.client()
    topic = coordinator_topic(3)
    two.homes[topic] = two.second
    two.second.answers[BaseCommand.NEW_TXN] = lambda command: [
        encode_frame(
            commands.refused(command, command.newTxn.request_id, ServerError.TransactionCoordinatorNotFound, "moved")
        )
    ]
    client.send(_with_id(_named(BaseCommand.NEW_TXN), client.next_request_id()))
    await client.event(BaseCommand.NEW_TXN_RESPONSE)
    two.homes[topic] = two.first
    client.send(_with_id(_named(BaseCommand.NEW_TXN), client.next_request_id()))
    await wait_until_async(lambda: _heard(two.first, BaseCommand.NEW_TXN) == 1)
    await client.close()
