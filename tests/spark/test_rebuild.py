"""The rebuild job against a real broker: what it writes is what an index needs."""

from pathlib import Path
from typing import Any

import pytest

from spark_jobs.errors import LedgerReadError
from spark_jobs.plan import RebuildSpec
from spark_jobs.rebuild_job import Rebuild
from tests.clients import Clients, backlog
from tests.cluster import PulsarCluster
from tests.helpers import wait_until
from tests.spark.test_source import COUNT, DUE_MS, fill, unload
from tracker import Position, Store, TopicIndex
from tracker.bulk.files import MANIFEST_NAME, Manifest
from tracker.bulk.load import BulkLoad

WIDTH_MS = 200
HERE = "keeps what is acked"


def spec_of(pulsar: PulsarCluster, topic: str, output: Path, upto: tuple[int, int], **changes: Any) -> RebuildSpec:
    values: dict[str, Any] = {
        "topic": topic,
        "service_url": pulsar.service_url,
        "web_url": pulsar.web_url,
        "after": (-1, -1),
        "upto": upto,
        "partition_width_ms": WIDTH_MS,
        "subscriptions": [HERE],
        "output": str(output),
        "split_entries": 512,
        "bucket_bytes": 20_000,
    }
    return RebuildSpec(**(values | changes))


def loaded(tmp_path: Path, topic: str, files: Path, upto: Position) -> list[tuple[int, int, int, bytes]]:
    """What an index holds that was filled from the files."""
    with Store.open(tmp_path / "data") as store:
        index = TopicIndex(store, topic, partition_width_ms=WIDTH_MS)
        index.start_at(upto)
        BulkLoad(index.bulk, files).load_all()
        index.check()
        found = []
        while due := index.due(index.view("all"), DUE_MS * 2, 1_000):
            found += [(one.deliver_at_ms, one.ledger, one.entry, one.raw) for one in due]
        return found


def delayed(positions: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """What `fill` has delayed."""
    return [(DUE_MS + number - 1, *positions[number]) for number in range(1, len(positions), 3)]


def test_files_hold_what_is_delayed(
    spark: Any, pulsar: PulsarCluster, topic: str, clients: Clients, tmp_path: Path
) -> None:
    client = clients.connect(pulsar.service_url)
    positions = fill(client, topic)
    unload(pulsar, topic)
    positions += fill(client, topic)
    upto = positions[-1]
    manifest = Rebuild(spec_of(pulsar, topic, tmp_path / "out", upto), None).run(spark.sparkContext)
    assert manifest == Manifest.read(tmp_path / "out")
    assert len(manifest.groups) > 3, "several buckets"
    found = loaded(tmp_path, topic, tmp_path / "out", Position(*upto))
    expected = sorted(delayed(positions[:COUNT]) + delayed(positions[COUNT:]))
    assert [one[:3] for one in found] == expected
    assert all(b"message" in one[3] for one in found)


def test_what_every_subscription_has_acked_is_left_out(
    spark: Any, pulsar: PulsarCluster, topic: str, clients: Clients, tmp_path: Path
) -> None:
    client = clients.connect(pulsar.service_url)
    client.subscribe(topic, "other").close()
    positions = fill(client, topic, 300)
    both = delayed(positions)[:20]
    for name, count in ((HERE, 30), ("other", 20)):
        consumer = client.subscribe(topic, name)
        for _ in range(3 * count):
            consumer.acknowledge(consumer.receive(10_000))
        left = 300 - 3 * count
        wait_until(lambda name=name, left=left: backlog(pulsar, topic, name) == left)  # type: ignore[misc]
        consumer.close()
    unload(pulsar, topic)  # so that the broker shows what was acked last
    spec = spec_of(pulsar, topic, tmp_path / "out", positions[-1], subscriptions=[HERE, "other"])
    manifest = Rebuild(spec, None).run(spark.sparkContext)
    assert manifest.entries == 80
    found = loaded(tmp_path, topic, tmp_path / "out", Position(*positions[-1]))
    assert not {one[:3] for one in found} & set(both)
    everything = spec.model_copy(update={"subscriptions": [], "output": str(tmp_path / "everything")})
    assert Rebuild(everything, None).run(spark.sparkContext).entries == 100


def test_a_second_run_reads_only_what_is_missing(
    spark: Any, pulsar: PulsarCluster, topic: str, clients: Clients, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    positions = fill(clients.connect(pulsar.service_url), topic)
    spec = spec_of(pulsar, topic, tmp_path / "out", positions[-1])
    first = Rebuild(spec, None).run(spark.sparkContext)
    assert Rebuild(spec, None).run(spark.sparkContext) == first, "a finished one is not done again"
    (tmp_path / "out" / MANIFEST_NAME).unlink()
    markers = sorted((tmp_path / "out" / "ranges").glob("*.json"))
    buckets = sorted((tmp_path / "out" / "groups").glob("*.json"))
    kept = [each.stat().st_mtime_ns for each in markers[1:]]
    markers[0].unlink()
    buckets[0].unlink()
    second = Rebuild(spec, None).run(spark.sparkContext)
    assert [each.stat().st_mtime_ns for each in markers[1:]] == kept
    assert second.entries == first.entries
    assert [one.first_key for one in second.groups] == [one.first_key for one in first.groups]
    found = loaded(tmp_path, topic, tmp_path / "out", Position(*positions[-1]))
    assert [one[:3] for one in found] == delayed(positions)
    with pytest.raises(LedgerReadError, match="belongs to another job"):
        Rebuild(spec.model_copy(update={"after": (0, 0)}), None).run(spark.sparkContext)


def test_a_topic_with_nothing_delayed_gives_an_empty_manifest(
    spark: Any, pulsar: PulsarCluster, topic: str, clients: Clients, tmp_path: Path
) -> None:
    client = clients.connect(pulsar.service_url)
    client.subscribe(topic, HERE).close()
    sent = client.create_producer(topic).send(b"now")
    spec = spec_of(pulsar, topic, tmp_path / "out", (sent.ledger_id(), sent.entry_id()))
    manifest = Rebuild(spec, None).run(spark.sparkContext)
    assert (manifest.entries, manifest.positions) == (0, [])
    assert loaded(tmp_path, topic, tmp_path / "out", Position(*spec.upto)) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"subscriptions": ["nobody"]}, "no subscription 'nobody'"),
        ({"topic": "persistent://public/default/nobody-made-this"}, "no such topic"),
        ({"output": "nowhere://x"}, "not a place for files: 'nowhere://x'"),
        ({"output": "/proc/no/folder"}, "cannot write"),
    ],
)
def test_what_is_wrong_is_said(
    spark: Any, pulsar: PulsarCluster, topic: str, clients: Clients, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    positions = fill(clients.connect(pulsar.service_url), topic, 30)
    spec = spec_of(pulsar, topic, tmp_path / "out", positions[-1]).model_copy(update=changes)
    with pytest.raises(LedgerReadError, match=said):
        Rebuild(spec, None).run(spark.sparkContext)
    assert not (tmp_path / "out" / MANIFEST_NAME).exists()
