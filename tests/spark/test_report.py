"""The report job: counts on made-up rows, then what it writes of topics of a real broker."""

import dataclasses
import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs import report
from spark_jobs.errors import LedgerReadError
from spark_jobs.report_job import COLUMNS, READ, Totals, counted, write_report
from spark_jobs.report_spec import HOUR_MS, ReportSpec
from tests.clients import Clients, backlog, publish
from tests.cluster import PulsarCluster
from tests.helpers import wait_until
from tests.spark.test_source import load, options, unload

START_MS = 4_000_000_000_000 // (4 * HOUR_MS) * (4 * HOUR_MS)
"""2096-10-02T04:00:00Z, a multiple of four hours."""
HERE = "keeps what is acked"
Row = tuple[Any, ...]


def spec_of(pulsar: PulsarCluster, output: Path, *topics: str, **changes: Any) -> ReportSpec:
    source = {"serviceUrl": pulsar.service_url, "webUrl": pulsar.web_url}
    values: dict[str, Any] = {"topics": topics, "source": source, "output": str(output)}
    return ReportSpec(**(values | changes))


def written(output: Path) -> list[Row]:
    """The rows of a report in the order of the files, without what `due_from` says already."""
    assert (output / "_SUCCESS").exists()
    table = pq.read_table(output)
    assert table.column_names == COLUMNS
    assert table.schema.field("due_from_time").type == pa.timestamp("us", "UTC")
    rows = table.to_pylist()
    for row in rows:
        assert row["due_from_time"] == datetime.fromtimestamp(row["due_from"] / 1000, UTC)
    return [tuple(row[name] for name in COLUMNS if name != "due_from_time") for row in rows]


def fill(client: Any, topic: str) -> None:
    """Three delayed messages an hour for four hours, the third a large one, and one that is due at once."""
    client.subscribe(topic, HERE).close()
    producer = client.create_producer(topic, batching_enabled=False)
    for hour in range(4):
        for minute, key, size in ((0, "eu/1", 10), (20, "us/1", 10), (59, "eu/2", 5_000)):
            due = START_MS + hour * HOUR_MS + minute * 60_000
            publish(producer, ["x" * size], deliver_at=due, partition_key=key)
        publish(producer, ["now"], partition_key="eu/3")


def bytes_by_due(spark: Any, pulsar: PulsarCluster, topic: str, width_ms: int) -> Counter[tuple[int, int]]:
    """What the entries take as stored, by the step they are due in and the size class of this test."""
    found: Counter[tuple[int, int]] = Counter()
    for row in load(spark, options(pulsar, topic) | {"delayedOnly": "true", "columns": "deliver_at,size"}).collect():
        found[row.deliver_at // width_ms * width_ms, 256 if row.size <= 256 else 16_384] += row.size
    return found


def test_groups_are_cut_at_their_bounds(spark: Any, tmp_path: Path) -> None:
    far = 2**63 - 1
    rows = [
        ("a", START_MS - 1, 1, 256, "kö-1"),
        ("a", START_MS, 1, 257, "kö-2"),
        ("a", START_MS + HOUR_MS - 1, 1, 1_024, "kö-2"),
        ("a", START_MS, 1, 1_025, None),
        ("a", START_MS, 7, 1_025, "the first one's"),
        ("b", START_MS, 1, 0, ""),
        ("b", START_MS, 1, 5_000_000, "k"),
        ("b", -5, 1, 1, "k"),
        ("b", far, 1, 1, "k"),
    ]
    frame = spark.createDataFrame(rows, f"topic string, {READ}")
    spec = ReportSpec(("a", "b"), {}, str(tmp_path), prefix_length=2)
    found = counted(frame, spec).collect()
    assert {(*row[:2], *row[3:]) for row in found} == {
        ("a", START_MS - HOUR_MS, "kö", 256, 1, 1, 256),
        ("a", START_MS, "kö", 1_024, 2, 2, 1_281),
        ("a", START_MS, None, 4_096, 2, 8, 2_050),
        ("b", START_MS, "", 256, 1, 1, 0),
        ("b", START_MS, "k", 256 * 4**8, 1, 1, 5_000_000),
        ("b", 0, "k", 256, 1, 1, 1),
        ("b", far // HOUR_MS * HOUR_MS, "k", 256, 1, 1, 1),
    }
    assert [row.due_from for row in found if row.due_from_time is None] == [far // HOUR_MS * HOUR_MS]


def test_what_is_due_when(spark: Any, pulsar: PulsarCluster, topic: str, clients: Clients, tmp_path: Path) -> None:
    client, other, empty = clients.connect(pulsar.service_url), f"{topic}-other", f"{topic}-empty"
    fill(client, topic)
    producer = client.create_producer(other, batching_enabled=False)
    publish(producer, ["due in the past", "as well"], deliver_at=1)
    client.create_producer(empty).close()
    spec = spec_of(pulsar, tmp_path / "out", topic, other, empty, step_ms=2 * HOUR_MS, delimiter="/")
    assert write_report(spark, spec) == Totals(7, 14)
    sizes = bytes_by_due(spark, pulsar, topic, 2 * HOUR_MS)
    past = bytes_by_due(spark, pulsar, other, HOUR_MS)[0, 256]
    expected: list[Row] = []
    for due in (START_MS, START_MS + 2 * HOUR_MS):
        small = sizes[due, 256] // 2
        expected += [
            (topic, due, "eu", 256, 2, 2, small),
            (topic, due, "eu", 16_384, 2, 2, sizes[due, 16_384]),
            (topic, due, "us", 256, 2, 2, small),
        ]
    assert written(tmp_path / "out") == [*expected, (other, 0, None, 256, 2, 2, past)]


def test_what_a_subscription_has_acked_is_left_out(
    spark: Any, pulsar: PulsarCluster, topic: str, clients: Clients, tmp_path: Path
) -> None:
    client = clients.connect(pulsar.service_url)
    client.subscribe(topic, "other").close()
    fill(client, topic)
    consumer = client.subscribe(topic, HERE)
    before = backlog(pulsar, topic, HERE)
    for number in range(11):  # of 16, and not all of them: a cursor with holes
        message = consumer.receive(10_000)
        if number not in (2, 5):
            consumer.acknowledge(message)
    wait_until(lambda: backlog(pulsar, topic, HERE) == before - 9, "acks")
    consumer.close()
    unload(pulsar, topic)  # so that the broker shows what was acked last
    spec = spec_of(pulsar, tmp_path / "out", topic, subscription=HERE)
    assert write_report(spark, spec) == Totals(4, 5)
    rows = [(row[1], *row[2:6]) for row in written(tmp_path / "out")]
    assert rows == [
        (START_MS, None, 16_384, 1, 1),
        (START_MS + HOUR_MS, None, 256, 1, 1),
        (START_MS + 3 * HOUR_MS, None, 256, 2, 2),
        (START_MS + 3 * HOUR_MS, None, 16_384, 1, 1),
    ]


def test_the_command_line(
    spark: Any,
    pulsar: PulsarCluster,
    topic: str,
    clients: Clients,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An output that is there is kept, unless it is a report that is to be replaced."""
    fill(clients.connect(pulsar.service_url), topic)
    monkeypatch.setattr(spark, "stop", lambda: None)  # other tests go on with it
    monkeypatch.setattr(report, "open_session", lambda *_: spark)
    output = tmp_path / "out"
    given = [f"--service-url={pulsar.service_url}", f"--web-url={pulsar.web_url}/", f"--output={output}"]
    given += ["--from", "2096-10-02T05:00:00Z", "--to", str(START_MS + 3 * HOUR_MS), topic.rpartition("/")[2], topic]

    def run(*more: str) -> tuple[int, dict[str, Any]]:
        status = report.main([*given, *more])
        return status, json.loads(capsys.readouterr().out.splitlines()[-1])

    assert run() == (0, {"output": str(output), "rows": 4, "entries": 6})
    first = written(output)
    status, said = run()
    assert (status, said["error"].startswith(f"{output} exists")) == (1, True)
    assert written(output) == first
    assert run("--overwrite", "--step=1d") == (0, {"output": str(output), "rows": 2, "entries": 6})
    assert len(written(output)) == 2
    (output / "notes.txt").write_text("mine")
    status, said = run("--overwrite")
    assert (status, said) == (1, {"error": f"{output} is not replaced: it holds 'notes.txt', which no report has"})
    assert (output / "_SUCCESS").exists()
    assert (output / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"subscription": "nobody"}, "has no subscription 'nobody'"),
        ({"topics": ("persistent://public/default/nobody-made-this",)}, "nobody-made-this: no such topic"),
        ({"source": {"tlsTrustCerts": "/nowhere"}}, "^cannot read the certificates /nowhere: "),
        ({"output": "nowhere://x"}, "not a place for files: 'nowhere://x'"),
        ({"output": "/proc/no/folder"}, "cannot write /proc/no/folder: "),
    ],
)
def test_what_is_wrong_is_said(
    spark: Any, pulsar: PulsarCluster, topic: str, clients: Clients, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    publish(clients.connect(pulsar.service_url).create_producer(topic), ["later"], deliver_at=START_MS)
    spec = spec_of(pulsar, tmp_path / "out", topic)
    if changes.get("source"):
        # The tasks reach the broker, and fail before they say a word.
        there = {"serviceUrl": f"pulsar+ssl{pulsar.service_url[6:]}", "readFrom": "broker"}
        changes = {"source": {**spec.source, **changes["source"], **there}}
    with pytest.raises(LedgerReadError, match=said):
        write_report(spark, dataclasses.replace(spec, **changes))
    assert not list(tmp_path.rglob("*.parquet"))
    assert not (tmp_path / "out" / "_SUCCESS").exists()
