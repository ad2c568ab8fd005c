"""The data source against a real broker."""

import urllib.request
from typing import Any

import pytest

from bridge.protocol.names import TopicName
from bridge.protocol.pulsar_pb2 import MessageMetadata
from spark_jobs.ledgers.entry import LedgerEntry
from spark_jobs.stages.source import key_of, properties_of
from tests.clients import Clients, publish
from tests.cluster import PulsarCluster

DUE_MS = 4_000_000_000_000
COUNT = 3_000


def options(pulsar: PulsarCluster, topic: str) -> dict[str, str]:
    return {"topic": topic, "serviceUrl": pulsar.service_url, "webUrl": pulsar.web_url}


def load(spark: Any, given: dict[str, str]) -> Any:
    return spark.read.format("pulsar_ledgers").options(**given).load()


def fill(client: Any, topic: str, count: int = COUNT) -> list[tuple[int, int]]:
    """Every third message is delayed; returns the positions in order."""
    client.subscribe(topic, "keeps what is acked").close()
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    ids: list[Any] = []
    for start in range(0, count, 3):
        ids += publish(producer, [f"message {start}"], properties={"n": str(start)}, partition_key=f"k{start}")
        ids += publish(producer, [f"message {start + 1}"], deliver_at=DUE_MS + start)
        ids += publish(producer, [f"message {start + 2}"])
    return sorted((one.ledger_id(), one.entry_id()) for one in ids)


def test_rows_are_what_is_stored(spark: Any, pulsar: PulsarCluster, topic: str, clients: Clients) -> None:
    positions = fill(clients.connect(pulsar.service_url), topic, 60)
    rows = load(spark, options(pulsar, topic) | {"splitEntries": "7", "rangesPerTask": "3"}).collect()
    rows.sort(key=lambda row: (row.ledger, row.entry))
    assert [(row.ledger, row.entry) for row in rows] == positions
    first, second, third = rows[:3]
    assert (first.key, first.properties, first.deliver_at) == ("k0", {"n": "0"}, None)
    assert (second.key, second.properties, second.deliver_at) == (None, {}, DUE_MS)
    assert third.message_count == 1
    assert all(row.raw.endswith(f"message {number}".encode()) for number, row in enumerate(rows))
    assert all(row.size == len(row.raw) for row in rows)
    assert 0 <= rows[-1].publish_time - first.publish_time < 60_000


def test_columns_range_and_kind_can_be_chosen(spark: Any, pulsar: PulsarCluster, topic: str, clients: Clients) -> None:
    positions = fill(clients.connect(pulsar.service_url), topic, 60)
    given = options(pulsar, topic) | {
        "columns": "deliver_at, entry",
        "delayedOnly": "true",
        "after": f"{positions[3][0]}:{positions[3][1]}",
        "upto": f"{positions[40][0]}:{positions[40][1]}",
    }
    frame = load(spark, given)
    assert frame.columns == ["deliver_at", "entry"]
    found = sorted((row.deliver_at, row.entry) for row in frame.collect())
    assert found == [(DUE_MS + number - 1, positions[number][1]) for number in range(4, 41, 3)]


def test_a_topic_without_entries_has_no_rows(spark: Any, pulsar: PulsarCluster, topic: str, clients: Clients) -> None:
    clients.connect(pulsar.service_url).subscribe(topic, "s").close()
    assert load(spark, options(pulsar, topic)).collect() == []


def test_a_topic_that_moves_is_read_to_its_end(spark: Any, pulsar: PulsarCluster, topic: str, clients: Clients) -> None:
    """Each unload starts a new ledger and closes the readers."""
    client = clients.connect(pulsar.service_url)
    expected: list[tuple[int, int]] = []
    for _ in range(3):
        client.subscribe(topic, "keeps what is acked").close()
        producer = client.create_producer(topic, block_if_queue_full=True)
        ids = publish(producer, [str(number) for number in range(5_000)], deliver_at=DUE_MS)
        expected += [(one.ledger_id(), one.entry_id()) for one in ids]
        producer.close()
        unload(pulsar, topic)
    given = options(pulsar, topic) | {"splitEntries": "1024", "columns": "ledger,entry"}
    moved = load(spark, given)
    unload(pulsar, topic)
    rows = moved.collect()
    assert sorted((row.ledger, row.entry) for row in rows) == sorted(expected)


def unload(pulsar: PulsarCluster, topic: str) -> None:
    url = f"{pulsar.web_url}/admin/v2/{TopicName.parse(topic).rest_path}/unload"
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=30):
        pass


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"topic": "persistent://public/default/nobody-made-this"}, "no such topic"),
        ({"topic": "a/b"}, "not a topic name: 'a/b'"),
        ({"webUrl": "http://127.0.0.1:1"}, "cannot reach http://127.0.0.1:1"),
        ({"columns": "ledger,color"}, "no column 'color'"),
        ({"splitEntries": "many"}, "not a number: 'many'"),
        ({"after": "5"}, "not a position: '5'"),
    ],
)
def test_what_is_wrong_is_named(
    spark: Any, pulsar: PulsarCluster, topic: str, wrong: dict[str, str], said: str
) -> None:
    with pytest.raises(Exception, match=said):
        load(spark, options(pulsar, topic) | wrong).count()


def test_text_of_any_bytes() -> None:
    """A column of text holds text, whatever a producer wrote."""
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, partition_key="kkkk")
    metadata.properties.add(key="kkkk", value="v")
    read = MessageMetadata.FromString(metadata.SerializeToString().replace(b"kkkk", b"k\xff\xffk"))
    entry = LedgerEntry(1, 2, read, b"")
    assert key_of(entry) == "k\ufffd\ufffdk"
    assert properties_of(entry) == [("k\ufffd\ufffdk", "v")]
