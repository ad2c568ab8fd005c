"""Ledgers read from the bookies of a real cluster: the same entries as through the broker."""

from collections.abc import Iterator
from typing import Any

import pulsar as official
import pytest

from bridge.embedded import EmbeddedError
from bridge.embedded.ports import free_ports
from bridge.ledgers.bookies.digests import Digest
from bridge.ledgers.bookies.layout import Bookie, Ensemble, Layout, LedgerLayout
from bridge.ledgers.bookies.read_from import ReadFrom
from spark_jobs.errors import LedgerReadError
from spark_jobs.ledgers.access import ClusterAccess
from spark_jobs.ledgers.admin import topic_state
from spark_jobs.ledgers.entry import LedgerEntry
from spark_jobs.ledgers.sources import Portion, Rest, read_from_bookies, read_rest
from spark_jobs.ledgers.stats import LedgerRange, ranges_of
from tests.bridge_process import Broker
from tests.clients import Clients, admin, publish, rest_path, some_topic
from tests.cluster import PulsarCluster
from tests.helpers import wait_until
from tests.raw_client import raw_client
from tests.transactions import begin, connect_coordinator, end, produce_in
from tests.two_brokers import TwoBrokers
from tracker import EARLIEST, Position

DUE_MS = 4_000_000_000_000
END = Position(2**62, 0)


@pytest.fixture(scope="module")
def three_bookies() -> Iterator[TwoBrokers]:
    """Every entry on two of them."""
    try:
        with TwoBrokers(bookies=3, write_quorum=2) as cluster:
            yield cluster
    except EmbeddedError as error:
        pytest.fail(str(error), pytrace=False)


def access(broker: Broker, read_from: ReadFrom) -> ClusterAccess:
    return ClusterAccess(broker.service_url, broker.web_url, read_from=read_from)


def fill(broker: Broker, clients: Clients, topic: str) -> None:
    """All sorts of messages, in two ledgers: one that is closed and one that is not."""
    client = clients.connect(broker.service_url)
    client.subscribe(topic, "keeps what is acked").close()
    single = client.create_producer(topic, batching_enabled=False, properties={"p": "q"})
    batched = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=20, compression_type=official.CompressionType.LZ4
    )
    chunked = client.create_producer(topic, chunking_enabled=True, max_pending_messages=1_000)
    for _ in range(2):
        publish(single, [f"late {number}" for number in range(700)], deliver_at=DUE_MS)
        publish(batched, [f"soon {number}" for number in range(500)], partition_key="k", properties={"a": "b"})
        chunked.send(b"c" * 6_000_000)
        publish(single, ["", "é" * 400])
        admin(broker, "PUT", f"{rest_path(topic)}/unload")
    client.close()


def portions(broker: Broker, topic: str, read_from: ReadFrom, split_entries: int = 300) -> list[Portion]:
    state = topic_state(access(broker, read_from), topic, layouts=True)
    return [
        portion
        for wanted in ranges_of(state, EARLIEST, END, split_entries)
        for portion in read_portions(access(broker, read_from), topic, wanted, state.layouts[wanted.ledger])
    ]


def read_portions(access: ClusterAccess, topic: str, wanted: LedgerRange, layout: Layout) -> Iterator[Portion]:
    rest: Rest | None = yield from read_from_bookies(access, topic, wanted, layout)
    if rest is not None:
        yield from read_rest(access, topic, rest)


def entries(found: list[Portion]) -> list[LedgerEntry]:
    return [entry for portion in found for entry in portion.entries]


def nowhere() -> LedgerLayout:
    """On a bookie that is not there."""
    return LedgerLayout(1, Digest.CRC32C, (Ensemble(0, (Bookie("127.0.0.1", free_ports(1)[0]),)),))


def assert_the_same(broker: Broker, topic: str) -> None:
    through_broker = entries(portions(broker, topic, ReadFrom.broker))
    from_bookies = portions(broker, topic, ReadFrom.bookies)
    assert all(portion.from_bookies and portion.instead is None for portion in from_bookies)
    assert entries(from_bookies) == through_broker
    automatic = portions(broker, topic, ReadFrom.auto)
    assert all(portion.from_bookies and portion.instead is None for portion in automatic)
    assert entries(automatic) == through_broker


def test_bookies_give_what_the_broker_gives(pulsar: PulsarCluster, topic: str, clients: Clients) -> None:
    fill(pulsar, clients, topic)
    assert len({one.ledger for one in entries(portions(pulsar, topic, ReadFrom.bookies))}) == 2
    assert_the_same(pulsar, topic)


def test_what_the_broker_notes_of_entries_comes_too(
    configured_broker: PulsarCluster, topic: str, clients: Clients
) -> None:
    fill(configured_broker, clients, topic)
    assert_the_same(configured_broker, topic)


def test_the_open_ledger(pulsar: PulsarCluster, topic: str, clients: Clients) -> None:
    publish(clients.connect(pulsar.service_url).create_producer(topic, batching_enabled=False), ["one", "two"])
    assert [one.raw[-3:] for one in entries(portions(pulsar, topic, ReadFrom.bookies))] == [b"one", b"two"]


async def test_only_the_broker_knows_of_transactions(configured_broker: PulsarCluster, topic: str) -> None:
    client = await raw_client(configured_broker.service_url)
    try:
        await connect_coordinator(client)
        await client.produce(topic)
        await client.publish(b"before")
        for number, commit in enumerate((True, False), start=1):
            transaction = await begin(client, topic)
            await produce_in(client, transaction, topic)
            await client.publish(b"within", sequence_id=number, transaction=transaction)
            await end(client, transaction, commit=commit)
        await client.publish(b"behind", sequence_id=3)
    finally:
        await client.close()
    wait_until(lambda: len(entries(portions(configured_broker, topic, ReadFrom.broker))) == 3, timeout=30)
    found = portions(configured_broker, topic, ReadFrom.auto)
    assert [one.raw[-6:] for one in entries(found)] == [b"before", b"within", b"behind"]
    assert [portion.from_bookies for portion in found if portion.entries] == [True, False]
    assert "is of a transaction" in str(found[-1].instead)
    with pytest.raises(LedgerReadError, match="is of a transaction; read it with another value of read_from"):
        portions(configured_broker, topic, ReadFrom.bookies)


def test_a_bookie_that_cannot_be_reached(pulsar: PulsarCluster, topic: str, clients: Clients) -> None:
    publish(clients.connect(pulsar.service_url).create_producer(topic, batching_enabled=False), ["one", "two"])
    state = topic_state(access(pulsar, ReadFrom.auto), topic, layouts=True)
    [wanted] = ranges_of(state, EARLIEST, END, 1_000)
    layout = nowhere()
    found = list(read_portions(access(pulsar, ReadFrom.auto), topic, wanted, layout))
    assert [one.raw[-3:] for one in entries(found)] == [b"one", b"two"]
    assert all(not portion.from_bookies for portion in found)
    assert ": it cannot be reached: [Errno 111]" in str(found[0].instead)
    # Where nothing else is wanted, it is looked up anew.
    found = list(read_portions(access(pulsar, ReadFrom.bookies), topic, wanted, layout))
    assert [one.raw[-3:] for one in entries(found)] == [b"one", b"two"]
    assert all(portion.from_bookies for portion in found)


@pytest.mark.parametrize("read_from", [ReadFrom.auto, ReadFrom.bookies])
def test_a_ledger_that_is_gone(pulsar: PulsarCluster, topic: str, clients: Clients, read_from: ReadFrom) -> None:
    client = clients.connect(pulsar.service_url)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False)
    publish(producer, ["one", "two"])
    admin(pulsar, "PUT", f"{rest_path(topic)}/unload")
    publish(producer, ["three"])
    state = topic_state(access(pulsar, read_from), topic, layouts=True)
    first = min(ledger for ledger, _ in state.ledgers)
    for _ in range(2):
        consumer.acknowledge(consumer.receive(timeout_millis=10_000))

    def trimmed() -> bool:
        admin(pulsar, "POST", f"{rest_path(topic)}/trim")
        return first not in topic_state(access(pulsar, read_from), topic, layouts=True).layouts

    admin(pulsar, "POST", f"namespaces/{'/'.join(rest_path(topic).split('/')[1:3])}/retention", RETAIN_NOTHING)
    wait_until(trimmed, timeout=30, interval=0.2)
    # Bookies throw away what is in it when they have time for it.
    assert entries(list(read_portions(access(pulsar, read_from), topic, LedgerRange(first, 0, 1), nowhere()))) == []


RETAIN_NOTHING: dict[str, Any] = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}


def test_a_topic_that_lies_nowhere_known(pulsar: PulsarCluster, topic: str, clients: Clients) -> None:
    publish(clients.connect(pulsar.service_url).create_producer(topic, batching_enabled=False), ["one"])
    state = topic_state(access(pulsar, ReadFrom.auto), topic)
    [wanted] = ranges_of(state, EARLIEST, END, 1_000)
    [found] = read_portions(access(pulsar, ReadFrom.auto), topic, wanted, state.layouts[wanted.ledger])
    assert (len(found.entries), found.from_bookies) == (1, False)
    assert "the broker does not say where it lies" in str(found.instead)
    with pytest.raises(LedgerReadError, match="the broker does not say where it lies; read it with another"):
        list(read_portions(access(pulsar, ReadFrom.bookies), topic, wanted, state.layouts[wanted.ledger]))


def test_entries_on_two_of_three_bookies_one_of_which_dies(three_bookies: TwoBrokers, clients: Clients) -> None:
    topic = some_topic("striped")
    fill(three_bookies.owner(topic), clients, topic)
    owner = three_bookies.owner(topic)
    state = topic_state(access(owner, ReadFrom.auto), topic, layouts=True)
    layout = state.layouts[state.ledgers[0][0]]
    assert isinstance(layout, LedgerLayout)
    assert layout.is_striped(0)
    whole = entries(portions(owner, topic, ReadFrom.broker))
    assert_the_same(owner, topic)
    three_bookies.bookies[0].close()
    found = portions(owner, topic, ReadFrom.auto)
    assert all(portion.from_bookies for portion in found)
    assert entries(found) == whole
