"""The rebuild of a topic's index by Spark beside what the broker does: its rebuild of the in-memory delay tracker.

`python -m benchmarks.rebuild` publishes delayed messages to a real Pulsar, then measures in turn how long the broker
takes to have them in its tracker again once the topic was unloaded, and how long a rebuild job and the load of its
files take, which reads from the bookies, and one that reads through the broker. Rows that are read already
become files of an index on one core, without a broker. Medians are printed and written below `benchmarks/results/`.
"""

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pulsar
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.index_data import BASE_MS, PAYLOAD_BYTES, WIDTH_MS, payloads
from benchmarks.recorded import write_result
from bridge.embedded.java import find_java
from bridge.embedded.pulsar import EmbeddedPulsar
from bridge.ledgers.bookies.read_from import ReadFrom
from bridge.protocol.names import TopicName
from bridge.protocol.pulsar_pb2 import MessageMetadata
from bridge.showcase.bench_client import must_succeed
from spark_jobs import limits
from spark_jobs.ledgers.access import ClusterAccess
from spark_jobs.ledgers.admin import topic_state
from spark_jobs.ledgers.stats import LedgerRange
from spark_jobs.plan import SPEC_NAME, RangeResult, RebuildSpec, marker_name, spread_of
from spark_jobs.rebuild_job import Rebuild
from spark_jobs.session import open_context
from spark_jobs.stages.read import ROWS
from tracker import Position, Store, TopicIndex
from tracker.bulk.files import MANIFEST_NAME, Manifest, write_positions
from tracker.bulk.load import BulkLoad
from tracker.entries import encode_value
from tracker.fingerprint import fingerprint
from tracker.keys import KEY, KEY_LENGTH
from tracker.partitions.positions import PlacedEntry

TOPIC = "persistent://public/default/rebuild-benchmark"
SUBSCRIPTION = "bench"
HOUR_MS = 3_600_000
ROWS_SPAN_MS = 30 * 24 * HOUR_MS
ROWS_RANGE = 50_000
ROWS_BATCH = 1_000
"""Rows the read stage gets from one read of its connection, about."""
FROM_BOOKIES, THROUGH_BROKER = "from the bookies", "through the broker"
POLL_S = 0.1
GIVE_UP_S = 600.0
_HEADERS = b"\x0e\x01" + bytes(8)
"""In the place of an entry's magic number, checksum and length of the metadata."""

Figures = dict[str, float]

SHOWN: list[tuple[str, str]] = [
    ("broker: unload until all are in its tracker again (s)", "broker_s"),
    ("broker: entries a second", "broker_per_s"),
    ("job, from the bookies: start until all are in the index (s)", "job_s"),
    ("… start of Spark (s)", "startup_s"),
    ("… reading (s)", "reading_s"),
    ("… reading: entries a second", "read_per_s"),
    ("… writing (s)", "writing_s"),
    ("… end of Spark (s)", "ending_s"),
    ("… loading (s)", "loading_s"),
    ("job: entries a second", "job_per_s"),
    ("job / broker", "ratio_with_startup"),
    ("job / broker, without the start of Spark", "ratio"),
    ("job, through the broker: start until all are in the index (s)", "job_through_broker_s"),
    ("… reading: entries a second", "read_through_broker_per_s"),
    ("… job / broker", "ratio_through_broker"),
    ("rows to index, all on one core: entries a second", "rows_to_index_per_s_core"),
    ("… entries a second of CPU time", "rows_to_index_per_cpu_s"),
    ("… local[1], on as many cores as there are: entries a second", "rows_to_index_per_s_local1"),
    ("… … entries a second of CPU time", "rows_to_index_per_cpu_s_local1"),
]


# --- the broker's own rebuild


def publish(service_url: str, entries: int) -> None:
    """Publish messages of 128 B, an entry each, due at random 2 to 26 hours from now."""
    choose, payload = random.Random(3), payloads()
    first_ms = time.time_ns() // 1_000_000 + 2 * HOUR_MS
    with open_client(service_url) as client:
        producer = client.create_producer(
            TOPIC, batching_enabled=False, block_if_queue_full=True, max_pending_messages=5_000
        )
        for _ in range(entries):
            deliver_at = first_ms + choose.randrange(24 * HOUR_MS)
            producer.send_async(next(payload), must_succeed, deliver_at=deliver_at)
        producer.flush()


@contextmanager
def open_client(service_url: str) -> Iterator[Any]:
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        yield client
    finally:
        client.close()


def broker_rebuild(web_url: str, entries: int) -> float:
    """Unload the topic; return the seconds until a connected consumer has the broker know all delayed entries again."""
    path = f"{web_url}/admin/v2/{TopicName.parse(TOPIC).rest_path}"
    urllib.request.urlopen(urllib.request.Request(f"{path}/unload", method="PUT"), timeout=60).close()
    started = time.perf_counter()
    wait_delayed(web_url, entries)
    return time.perf_counter() - started


def wait_delayed(web_url: str, entries: int) -> None:
    """Return when the broker's tracker has so many entries of the subscription."""
    url, deadline, found = f"{web_url}/admin/v2/{TopicName.parse(TOPIC).rest_path}/stats", time.monotonic(), 0
    while time.monotonic() - deadline < GIVE_UP_S:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=30) as answer:  # not loaded yet: 404
            found = json.load(answer)["subscriptions"].get(SUBSCRIPTION, {}).get("msgDelayed", 0)
        if found >= entries:
            return
        time.sleep(POLL_S)
    raise SystemExit(f"the broker has {found} of {entries} entries in its tracker after {GIVE_UP_S:g} s")


# --- the rebuild by Spark


def job_rebuild(root: Path, broker: EmbeddedPulsar, upto: Position, entries: int, read_from: ReadFrom) -> Figures:
    """Run the job as the bridge does and load its files; return how long each part took, in seconds."""
    folder = root / "files"
    folder.mkdir(parents=True)
    spec = RebuildSpec(
        topic=TOPIC,
        service_url=broker.service_url,
        web_url=broker.web_url,
        after=(-1, -1),
        upto=upto,
        partition_width_ms=WIDTH_MS,
        output=str(folder),
        read_from=read_from,
    )
    (folder / SPEC_NAME).write_text(spec.model_dump_json())
    started = time.perf_counter()
    told = {name: [at - started for at in seconds] for name, seconds in run_job(folder).items()}
    loading_s = load(root / "index", folder, TOPIC, upto, entries)
    # What is told first is told when reading has gone on for a while; a stage ends with the last that is told of it.
    reading = told["reading"]
    startup_s = reading[0] - (limits.PROGRESS_S if len(reading) > 1 else 0)
    return {
        "job_s": told["end"][-1] + loading_s,
        "startup_s": startup_s,
        "reading_s": reading[-1] - startup_s,
        "read_per_s": entries / (reading[-1] - startup_s),
        "writing_s": told["writing"][-1] - reading[-1],
        "ending_s": told["end"][-1] - told["writing"][-1],
        "loading_s": loading_s,
    }


def run_job(folder: Path) -> dict[str, list[float]]:
    """Run the job in the folder to its end; return when each stage told something, by `time.perf_counter`."""
    command = [sys.executable, "-m", "spark_jobs.rebuild", str(folder / SPEC_NAME), "--with-parent"]
    environment = find_java().environment(os.environ) | {"PYSPARK_PYTHON": sys.executable}
    told: dict[str, list[float]] = {}
    with (
        (folder / "job.log").open("wb") as errors,
        subprocess.Popen(
            [*command, "--master", "local[2]"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(ValueError):
                told.setdefault(json.loads(line).get("stage", "manifest"), []).append(time.perf_counter())
        code = process.wait()
    if code:
        raise SystemExit(f"the job ended with status {code}: {(folder / 'job.log').read_text()[-2_000:]}")
    return told | {"end": [time.perf_counter()]}


def load(path: Path, files: Path, topic: str, upto: Position, entries: int) -> float:
    """Take the files into an empty index, without rests; return the seconds it took."""
    with Store.open(path) as store:
        index = TopicIndex(store, topic)
        index.start_at(upto)
        started = time.perf_counter()
        BulkLoad(index.bulk, files).load_all()
        seconds = time.perf_counter() - started
        assert index.entries == entries, f"{index.entries} of {entries} entries are in the index"
    return seconds


# --- rows that are read already


def write_rows(folder: Path, entries: int) -> RebuildSpec:
    """Write what the read stage leaves: entries due at random over 30 days, in ranges of 50,000."""
    (folder / "ranges").mkdir(parents=True)
    spec = RebuildSpec(
        topic=TOPIC,
        service_url="pulsar://127.0.0.1",
        web_url="http://127.0.0.1",
        after=(-1, -1),
        upto=((entries - 1) // ROWS_RANGE, (entries - 1) % ROWS_RANGE),
        partition_width_ms=WIDTH_MS,
        output=str(folder),
    )
    (folder / SPEC_NAME).write_text(spec.model_dump_json())
    choose, payload = random.Random(4), payloads()
    for ledger, first in enumerate(range(0, entries, ROWS_RANGE)):
        wanted = LedgerRange(ledger, 0, min(ROWS_RANGE, entries - first) - 1)
        result = write_range(folder, wanted, choose, payload)
        (folder / marker_name(wanted)).write_text(result.model_dump_json())
    return spec


def write_range(folder: Path, wanted: LedgerRange, choose: random.Random, payload: Iterator[bytes]) -> RangeResult:
    keys, values, placed, spread = [], [], [], Counter[int]()
    for entry in range(wanted.entries):
        due_ms = BASE_MS + choose.randrange(ROWS_SPAN_MS)
        metadata = MessageMetadata(
            producer_name="standalone-0-1", sequence_id=entry, publish_time=BASE_MS + entry, deliver_at_time=due_ms
        )
        raw = b"".join((_HEADERS, len(_HEADERS).to_bytes(4, "big"), metadata.SerializeToString(), next(payload)))
        keys.append(KEY.pack(due_ms, wanted.ledger, entry))
        values.append(encode_value(1, raw))
        placed.append(PlacedEntry(wanted.ledger, entry, due_ms, KEY_LENGTH + len(values[-1])))
        spread[due_ms // WIDTH_MS] += placed[-1].size
    rows, kept = f"ranges/{wanted.ledger}.arrows", fingerprint(keys)
    with pa.ipc.new_stream(str(folder / rows), ROWS, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        for first in range(0, wanted.entries, ROWS_BATCH):
            batch = [pa.array(column[first : first + ROWS_BATCH]) for column in (keys, values)]
            writer.write_batch(pa.RecordBatch.from_arrays(batch, schema=ROWS))
    positions = write_positions(folder / "ranges", f"{wanted.ledger}.positions", placed)
    assert positions is not None
    return RangeResult(
        **wanted._asdict(),
        read=wanted.entries,
        kept=kept.entries,
        bytes=sum(spread.values()),
        checksum=kept.checksum,
        rows=rows,
        positions=positions.model_copy(update={"name": f"ranges/{positions.name}"}),
        spread=spread_of(spread),
        cells=[],
    )


def rows_to_index(root: Path, entries: int, one_core: bool) -> Figures:
    """Build from rows and load, in this process and its children; once without measuring, so that Java is warm."""
    if one_core and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ.update(find_java().environment(os.environ))
    folder = root / "rows"
    spec = write_rows(folder, entries)
    with contextlib.redirect_stdout(io.StringIO()):  # where a job tells of its progress
        context = open_context("rows", "local[1]")
        try:
            build_from_rows(context, spec)
            (folder / MANIFEST_NAME).unlink()
            shutil.rmtree(folder / "groups")
            os.sync()  # what is measured does not wait for these to reach the disk
            started, cpu_s = time.perf_counter(), tree_cpu_s()
            manifest = build_from_rows(context, spec)
            build_s = time.perf_counter() - started
            load_s = load(root / "index", folder, TOPIC, Position(*manifest.upto), entries)
            cpu_s = tree_cpu_s() - cpu_s
        finally:
            context.stop()
    return {"build_s": build_s, "load_s": load_s, "cpu_s": cpu_s}


def build_from_rows(context: Any, spec: RebuildSpec) -> Manifest:
    """The second stage of a job, on the ranges that its folder holds."""
    job = Rebuild(spec, None)
    results = sorted(job.reading.results().values(), key=lambda one: one.range)
    manifest = job._manifest(results, job._write(context, results))
    job.storage.write(MANIFEST_NAME, manifest.model_dump_json().encode())
    return manifest


def tree_cpu_s() -> float:
    """CPU seconds of this process, its children and theirs."""
    own = psutil.Process()
    seconds = 0.0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system
            if process != own:  # those of the process itself ended before
                seconds += times.children_user + times.children_system
    return seconds


def measure_rows(root: Path, entries: int, one_core: bool) -> Figures:
    """Run `rows_to_index` in a process of its own."""
    with (
        tempfile.TemporaryDirectory(dir=root) as folder,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
    ):
        return pool.submit(rows_to_index, Path(folder), entries, one_core).result()


# --- all of it


def run(console: Console, root: Path, given: argparse.Namespace) -> dict[str, list[Figures]]:
    """All rounds; what was measured, by kind."""
    runs: dict[str, list[Figures]] = {FROM_BOOKIES: [], THROUGH_BROKER: [], "one core": [], "local[1]": []}
    with EmbeddedPulsar(root / "pulsar") as broker, open_client(broker.service_url) as client:
        client.subscribe(TOPIC, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=1_000)
        started = time.perf_counter()
        publish(broker.service_url, given.entries)
        console.log(f"{given.entries:,} entries published in {time.perf_counter() - started:.0f} s")
        upto = topic_state(ClusterAccess(broker.service_url, broker.web_url), TOPIC).last_confirmed
        wait_delayed(broker.web_url, given.entries)
        for number in range(given.rounds):
            broker_s = broker_rebuild(broker.web_url, given.entries)
            console.log(f"broker: {broker_s:.1f} s")
            for kind, read_from in ((FROM_BOOKIES, ReadFrom.bookies), (THROUGH_BROKER, ReadFrom.broker)):
                folder = root / f"job-{read_from}-{number}"
                job = job_rebuild(folder, broker, upto, given.entries, read_from)
                runs[kind].append({"broker_s": broker_s} | job)
                console.log(f"job, {kind}", runs[kind][-1])
                shutil.rmtree(folder)
    for _ in range(given.rounds):
        for kind in ("one core", "local[1]"):
            runs[kind].append(measure_rows(root, given.rows, kind == "one core"))
            console.log(f"rows to index, {kind}", runs[kind][-1])
    return runs


def figures_of(runs: dict[str, list[Figures]], entries: int, rows: int) -> Figures:
    """Medians of the times, and the rates that come of them."""

    def medians(kind: str) -> Figures:
        return {name: statistics.median(run[name] for run in runs[kind]) for name in runs[kind][0]}

    def rates(kind: str) -> tuple[float, float]:
        taken = medians(kind)
        return rows / (taken["build_s"] + taken["load_s"]), rows / taken["cpu_s"]

    figures = {"entries": entries, "rows": rows} | medians(FROM_BOOKIES)
    through_broker = medians(THROUGH_BROKER)
    figures["job_through_broker_s"] = through_broker["job_s"]
    figures["read_through_broker_per_s"] = through_broker["read_per_s"]
    figures["broker_per_s"] = entries / figures["broker_s"]
    figures["job_per_s"] = entries / figures["job_s"]
    figures["ratio_with_startup"] = figures["broker_s"] / figures["job_s"]
    figures["ratio_through_broker"] = figures["broker_s"] / through_broker["job_s"]
    figures["ratio"] = figures["broker_s"] / (figures["job_s"] - figures["startup_s"])
    figures["rows_to_index_per_s_core"], figures["rows_to_index_per_cpu_s"] = rates("one core")
    figures["rows_to_index_per_s_local1"], figures["rows_to_index_per_cpu_s_local1"] = rates("local[1]")
    return figures


def report(figures: Figures) -> Table:
    title = f"rebuild of {int(figures['entries']):,} entries, payload {PAYLOAD_BYTES} B, medians"
    table = Table(title=title)
    table.add_column("figure")
    table.add_column("measured", justify="right")
    for name, key in SHOWN:
        table.add_row(name, f"{figures[key]:,.0f}" if figures[key] >= 1_000 else f"{figures[key]:.3g}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rebuild", description=__doc__)
    parser.add_argument("--entries", type=int, default=300_000, help="messages in the broker")
    parser.add_argument("--rows", type=int, default=1_000_000, help="entries of the rows that are read already")
    parser.add_argument("--rounds", type=int, default=2, help="how often each is measured")
    parser.add_argument("--directory", type=Path, help="where the data goes (3 GB), default: temporary")
    parser.add_argument("--output", type=Path, help="file for the result, default: DATE-rebuild.json in the results")
    given = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(dir=given.directory) as root:
        runs = run(console, Path(root), given)
    figures = figures_of(runs, given.entries, given.rows)
    console.print(report(figures))
    written = write_result("rebuild", given.output, {"rounds": given.rounds}, figures=figures, runs=runs)
    console.print(f"written to {written}")


if __name__ == "__main__":
    main()
