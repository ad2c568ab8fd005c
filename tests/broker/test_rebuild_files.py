"""Files of a rebuild that must not be taken in: said in the status and the log, and the topic is read here instead."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge.refill.spark_job import SparkJob, SparkSettings
from spark_jobs.plan import FINGERPRINTS_NAME, SPEC_NAME, RebuildSpec
from tests.bridge_process import now_ms
from tests.broker.conftest import InProcessFactory
from tests.clients import Clients, drain, publish, shared, texts
from tests.cluster import PulsarCluster
from tests.helpers import wait_until_async
from tracker import EARLIEST, Position
from tracker.bulk.files import MANIFEST_NAME, new_manifest, write_groups, write_positions
from tracker.entries import encode_value
from tracker.keys import KEY
from tracker.limits import BulkFileLimits
from tracker.partitions.positions import PlacedEntry

COUNT = 300
WIDTH_MS = 300_000


def write_files(folder: Path, topic: str, spec: RebuildSpec, entries: list[tuple[int, int, int]]) -> None:
    """As a job leaves them."""
    folder.mkdir(parents=True)
    (folder / SPEC_NAME).write_text(spec.model_dump_json())
    groups = list(
        write_groups(
            folder,
            "entries",
            ((KEY.pack(*each), encode_value(1, b"x")) for each in entries),
            WIDTH_MS,
            BulkFileLimits(),
        )
    )
    placed = [PlacedEntry(ledger, entry, due, 26) for due, ledger, entry in entries]
    positions = write_positions(folder, "positions", placed)
    assert positions is not None
    upto = Position(*spec.upto)
    new_manifest(topic, WIDTH_MS, EARLIEST, upto, [positions], groups).write(folder)
    (folder / FINGERPRINTS_NAME).write_text("[]")


def changed(folder: Path, **values: Any) -> None:
    manifest = json.loads((folder / MANIFEST_NAME).read_text())
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest | values))


def flipped(folder: Path) -> None:
    path = folder / "entries-0.sst"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "topic": (lambda folder: changed(folder, topic="persistent://a/b/c"), "are of persistent://a/b/c, not of"),
    "format": (lambda folder: changed(folder, format=99), "format"),
    "width": (lambda folder: changed(folder, partition_width_ms=7), "partitions of 7 ms"),
    "too far": (lambda folder: changed(folder, upto=[2**40, 0]), "is harvested to"),
    "damaged": (flipped, "is damaged"),
    "missing": (lambda folder: (folder / "entries-0.sst").unlink(), "cannot read"),
    "no counters": (lambda folder: (folder / "entries-1.partitions").unlink(), "cannot read"),
    "no manifest": (lambda folder: (folder / MANIFEST_NAME).write_text("{"), MANIFEST_NAME),
    "no proof": (lambda folder: (folder / FINGERPRINTS_NAME).unlink(), FINGERPRINTS_NAME),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_files_that_are_wrong_are_not_taken_in(
    bridge_here: InProcessFactory, pulsar: PulsarCluster, clients: Clients, topic: str, tmp_path: Path, wrong: str
) -> None:
    later = now_ms() + 2_000

    def fill() -> Position:
        client = clients.connect(pulsar.service_url)
        shared(client, topic).close()
        ids = publish(client.create_producer(topic), [str(number) for number in range(COUNT)], deliver_at=later)
        return Position(ids[-1].ledger_id(), ids[-1].entry_id())

    upto = await asyncio.to_thread(fill)
    settings = SparkSettings(
        1, tmp_path / "data-0" / "rebuilds", "local[1]", (), pulsar.service_url, pulsar.web_url, None
    )
    job = SparkJob("rebuild", topic, settings, 1)
    spec = RebuildSpec(
        topic=topic,
        service_url=pulsar.service_url,
        web_url=pulsar.web_url,
        after=EARLIEST,
        upto=upto,
        partition_width_ms=WIDTH_MS,
        output=job.output,
    )
    make_wrong, said = WRONG[wrong]

    def prepare() -> None:
        write_files(job.folder, topic, spec, [(later, upto.ledger, entry) for entry in range(upto.entry + 1)])
        make_wrong(job.folder)
        (tmp_path / "data-0" / "bridge.lock").touch()  # as in a directory that a bridge has used

    await asyncio.to_thread(prepare)
    here = await bridge_here(rebuild_from_entries=1)
    consumer = await asyncio.to_thread(lambda: shared(clients.connect(here.advertised_url), topic))
    assert sorted(texts(await asyncio.to_thread(drain, consumer, COUNT)), key=int) == list(map(str, range(COUNT)))
    assert here.topics is not None
    tracked = here.topics.get(topic)
    assert tracked is not None
    assert tracked.tenure is not None
    rebuilds = tracked.tenure.rebuilds
    await wait_until_async(lambda: not rebuilds.is_rebuilding, "the end of the rebuild")
    status = rebuilds.history[0]
    assert (status.state, status.engine.value) == ("succeeded", "in-process")
    assert said in (status.spark_error or "")
    assert not await asyncio.to_thread(job.folder.exists)
    await asyncio.to_thread(clients.close)
