"""Jobs that cannot write: what REST, the command line and the log say, and that nothing is missing afterwards."""

import random
import resource

import pytest

from tests.bridge_process import BridgeProcess, now_ms
from tests.broker.conftest import BridgeFactory
from tests.broker.test_rebuild import assert_complete, lose_index, rebuilds_of, run
from tests.clients import Clients, publish, shared
from tests.helpers import children_with, wait_until

COUNT = 400
FILE_BYTES = 4 << 20
"""Enough for what Spark itself writes, half of what the job does."""
PATIENCE_S = 150
pytestmark = pytest.mark.timeout(400)


def fill(bridge: BridgeProcess, clients: Clients, topic: str, size: int) -> None:
    """Messages that are due in an hour are in the index."""
    client = clients.connect(bridge.service_url)
    shared(client, topic)
    producer = client.create_producer(topic, block_if_queue_full=True)
    texts = [f"{number} {random.randbytes(size // 2).hex()}" for number in range(COUNT)]
    publish(producer, texts, deliver_at=now_ms() + 3_600_000)
    wait_until(lambda: bridge.topic(topic).get("entries") == COUNT, "entries in the index", timeout=30)


def assert_told(bridge: BridgeProcess, topic: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same reason everywhere; and the bridge did itself what the job could not."""
    told = [line for line in bridge.log().splitlines() if "the gap is read here, the rebuild failed" in line]
    assert reason in told[0]
    [status] = [each for each in rebuilds_of(bridge, topic) if each["sparkError"]]
    assert status["sparkError"].startswith(reason)
    assert (status["state"], status["engine"]) == ("succeeded", "in-process")
    capsys.readouterr()
    assert run(["rebuild-status", "--admin-url", bridge.web_url, topic]) == 0
    assert f"read in the bridge, for the job failed: {reason}" in capsys.readouterr().out
    assert bridge.topic(topic)["entries"] == COUNT
    assert_complete(bridge, topic)


def test_output_that_cannot_be_written(
    private_bridge: BridgeFactory, clients: Clients, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bridge = private_bridge(spark_master="local[1]", spark_output="/proc/no/folder")
    fill(bridge, clients, topic, 100)
    assert run(["rebuild", "--wait", "--engine", "spark", "--admin-url", bridge.web_url, topic]) == 0
    assert_told(bridge, topic, "cannot write spec.json to /proc/no/folder/", capsys)
    assert run(["audit", "--engine", "spark", "--admin-url", bridge.web_url, topic]) == 0
    assert "read in the bridge, for the job failed: cannot write spec.json to /proc/no/" in capsys.readouterr().out


def test_a_disk_that_is_full(
    private_bridge: BridgeFactory, clients: Clients, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file of the job may grow beyond a size; those of the bridge may."""
    bridge = private_bridge(spark_master="local[1]", rebuild_from_entries=COUNT // 2)
    fill(bridge, clients, topic, 20_000)
    lose_index(bridge)

    def limited() -> bool:
        jobs = children_with(bridge.pid, "spark_jobs.rebuild")
        for job in jobs:
            # Before it has started Spark, which hands the limit on to what it starts.
            resource.prlimit(job.pid, resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
        return bool(jobs)

    wait_until(limited, "a job", timeout=60, interval=0.005)
    wait_until(lambda: "the gap is read here" in bridge.log(), "word of the failure", timeout=PATIENCE_S)
    wait_until(lambda: bridge.topic(topic).get("entries") == COUNT, "what the job was to read", timeout=60)
    wait_until(
        lambda: rebuilds_of(bridge, topic)[0]["finishedAt"] is not None, "the end of the rebuild", timeout=PATIENCE_S
    )
    assert_told(
        bridge, topic, "OSError: [Errno 27] Error writing bytes to file. Detail: [errno 27] File too large", capsys
    )
    assert not list((bridge.data_dir / "rebuilds").rglob("*.sst")), "nothing that could be taken for a result"
