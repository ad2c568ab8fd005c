"""The bridge in front of a cluster of two brokers: what concerns a topic reaches the broker that has it."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

from bridge.protocol import commands
from bridge.protocol.named_requests import coordinator_topic
from bridge.protocol.pulsar_pb2 import BaseCommand, Schema, TxnAction
from tests.bridge_process import BridgeProcess, now_ms
from tests.clients import Clients, admin, drain, publish, receive, rest_path, shared, texts
from tests.helpers import wait_until, wait_until_async
from tests.java_tools import Tools
from tests.raw_client import RawClient, raw_client
from tests.transactions import ask
from tests.two_brokers import COORDINATORS, TwoBrokers

ENDED = "client session ends"


@pytest.fixture(scope="module")
def bridge(two_brokers: TwoBrokers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeProcess]:
    """One that is told of the first broker only."""
    process = BridgeProcess(two_brokers, tmp_path_factory.mktemp("bridge")).start()
    yield process
    process.stop()


def both(two_brokers: TwoBrokers, prefix: str) -> list[str]:
    """A topic on each broker, the first one's first."""
    return [two_brokers.topic_on(broker, prefix) for broker in two_brokers.brokers]


def elsewhere(bridge: BridgeProcess) -> str:
    """The bridge by a name that is not its advertised address: clients look up on a connection of its own."""
    return bridge.service_url.replace("127.0.0.1", "localhost")


# -- transactions


def spread_coordinators(two_brokers: TwoBrokers) -> None:
    """There is one at least on each broker."""
    topics = [coordinator_topic(number) for number in range(COORDINATORS)]
    for topic, broker in zip(topics, itertools.cycle(two_brokers.brokers), strict=False):
        if len({two_brokers.owner(each) for each in topics}) == 2:
            return
        two_brokers.move(topic, broker)
    assert len({two_brokers.owner(each) for each in topics}) == 2


async def transact(client: RawClient, kind: BaseCommand.Type, field: str, **fields: Any) -> Any:
    """What the answer to a command about transactions says; without an error, or it is tried again."""
    tries: list[Any] = []

    async def agreed() -> bool:
        tries.append(await ask(client, kind, field, **fields))
        return not tries[-1].HasField("error")

    await wait_until_async(agreed, f"{field}: {tries[-1:]}", timeout=30, interval=0.2)
    return tries[-1]


async def test_each_transaction_goes_to_its_coordinator(two_brokers: TwoBrokers, bridge: BridgeProcess) -> None:
    spread_coordinators(two_brokers)
    topics = both(two_brokers, "transaction")
    client = await raw_client(bridge.service_url)
    for topic in topics:
        await client.produce(topic, producer_id=topics.index(topic))
    for coordinator in range(COORDINATORS):
        await transact(client, BaseCommand.TC_CLIENT_CONNECT_REQUEST, "tcClientConnectRequest", tc_id=coordinator)
        new = await transact(client, BaseCommand.NEW_TXN, "newTxn", tc_id=coordinator, txn_ttl_seconds=60_000)
        assert new.txnid_most_bits == coordinator
        transaction = {"txnid_most_bits": new.txnid_most_bits, "txnid_least_bits": new.txnid_least_bits}
        await transact(client, BaseCommand.ADD_PARTITION_TO_TXN, "addPartitionToTxn", **transaction, partitions=topics)
        await transact(client, BaseCommand.END_TXN, "endTxn", **transaction, txn_action=TxnAction.COMMIT)
    await client.close()


def test_messages_in_transactions_of_the_java_client(
    two_brokers: TwoBrokers, bridge: BridgeProcess, tools: Tools
) -> None:
    """From a topic on one broker to one on the other, by way of coordinators on both."""
    spread_coordinators(two_brokers)
    source, target = both(two_brokers, "moved")
    count = 2 * COORDINATORS
    printed = tools.run_source(
        Path(__file__).parents[1] / "java" / "Transactions.java", bridge.service_url, source, target, str(count)
    )
    said = re.findall(r"^(coordinator|early|received) (\w+)$", printed, re.MULTILINE)
    assert {number for word, number in said if word == "coordinator"} == {str(each) for each in range(COORDINATORS)}
    assert ("early", "false") in said
    received = sorted(int(number) for word, number in said if word == "received")
    assert received == list(range(0, count, 2))


# -- schemas


async def test_a_second_schema_is_made_where_the_topic_is(two_brokers: TwoBrokers, bridge: BridgeProcess) -> None:
    client = await raw_client(bridge.service_url)
    for topic in both(two_brokers, "schema"):
        await client.produce(topic)
        versions = [await make_schema(client, topic, *names) for names in (["f"], ["f", "g"])]
        assert len(set(versions)) == 2, versions
        assert b"" not in versions
        closing = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        closing.close_producer.producer_id = 1
        closing.close_producer.request_id = request_id = client.next_request_id()
        assert (await client.request(closing, request_id)).type == BaseCommand.SUCCESS
    await client.close()


async def make_schema(client: RawClient, topic: str, *names: str) -> bytes:
    """The version that the broker gave to a schema of records with these fields."""
    fields = [{"name": name, "type": "int", "default": 0} for name in names]
    command = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA)
    asked = command.getOrCreateSchema
    asked.topic = topic
    asked.request_id = request_id = client.next_request_id()
    asked.schema.name = "r"
    asked.schema.type = Schema.Avro
    asked.schema.schema_data = json.dumps({"type": "record", "name": "r", "fields": fields}).encode()
    answer = (await client.request(command, request_id)).getOrCreateSchemaResponse
    assert not answer.HasField("error_code"), answer
    return bytes(answer.schema_version)


# -- topics that move


async def test_a_message_in_flight_while_its_topic_is_unloaded_costs_nothing_else(
    two_brokers: TwoBrokers, bridge: BridgeProcess
) -> None:
    stays, goes = both(two_brokers, "unloaded")
    client = await raw_client(bridge.service_url)
    await client.produce(stays, producer_id=1)
    await client.produce(goes, producer_id=2)
    await client.publish(b"before", producer_id=2)
    admin_unload(two_brokers, goes)
    await client.event(BaseCommand.CLOSE_PRODUCER, timeout_s=30)
    send = BaseCommand(type=BaseCommand.SEND)
    send.send.producer_id, send.send.sequence_id = 2, 1
    client.send(send, b"\0\0\0\0")  # as if the client had not heard of it yet
    client.send(commands.ping())
    await client.event(BaseCommand.PONG)
    await client.publish(b"still there", producer_id=1)
    assert not client.lost.done()
    await client.close()


def admin_unload(two_brokers: TwoBrokers, topic: str) -> None:
    admin(two_brokers.owner(topic), "PUT", f"{rest_path(topic)}/unload")


@pytest.mark.parametrize("url", ["advertised", "elsewhere"])
def test_delayed_messages_of_a_topic_that_moves_back_and_forth(
    two_brokers: TwoBrokers, bridge: BridgeProcess, clients: Clients, url: str
) -> None:
    """All come, none early, and what is on the other broker notices nothing.

    What the client is given while its consumer is closed may come twice: its ack reaches nobody, as without a bridge.
    """
    stays, goes = both(two_brokers, "moves")
    client = clients.connect(bridge.service_url if url == "advertised" else elsewhere(bridge))
    producer, consumer = client.create_producer(goes), shared(client, goes)
    other_producer, other_consumer = client.create_producer(stays), shared(client, stays)
    ended = bridge.log().count(ENDED)
    due: dict[str, int] = {}
    home = two_brokers.owner(goes)
    for number, broker in enumerate((two_brokers.other(home), home)):
        for each in range(50):
            due[f"{number}-{each}"] = now_ms() + 1_000 + 100 * each
        for text in [text for text in due if text.startswith(f"{number}-")]:
            producer.send(text.encode(), deliver_at=due[text])
        two_brokers.move(goes, broker)
        assert two_brokers.owner(goes) == broker
    missing = set(due)
    while missing:
        received = receive(consumer)
        assert received.at_ms >= due[received.text]
        missing.discard(received.text)
    publish(other_producer, ["there"])
    assert texts(drain(other_consumer, 1)) == ["there"]
    assert bridge.log().count(ENDED) == ended


def test_seek_on_each_broker(two_brokers: TwoBrokers, bridge: BridgeProcess, clients: Clients) -> None:
    client = clients.connect(bridge.service_url)
    for topic in both(two_brokers, "seek"):
        consumer, producer = shared(client, topic), client.create_producer(topic)
        publish(producer, ["one", "two"])
        assert sorted(texts(drain(consumer, 2))) == ["one", "two"]
        consumer.seek(pulsar.MessageId.earliest)
        assert sorted(texts(drain(consumer, 2))) == ["one", "two"]


def test_what_is_pending_is_told_of_topics_on_both(
    two_brokers: TwoBrokers, bridge: BridgeProcess, clients: Clients
) -> None:
    client = clients.connect(bridge.service_url)
    for topic in both(two_brokers, "pending"):
        shared(client, topic)
        publish(client.create_producer(topic), ["later"], deliver_at=now_ms() + 3_600_000)
        wait_until(lambda topic=topic: bridge.topic(topic).get("entries") == 1, "it is in the index")  # type: ignore[misc]
