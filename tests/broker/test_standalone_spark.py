"""A rebuild on a standalone Spark cluster: another process tree, another folder for what the job writes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge_process import now_ms
from tests.broker.conftest import BridgeFactory
from tests.broker.test_rebuild import assert_complete, lose_index, rebuilds_of
from tests.clients import Clients, assert_quiet, drain, publish, shared, texts
from tests.helpers import wait_until
from tests.standalone_spark import HOST, StandaloneSpark

pytestmark = pytest.mark.timeout(400)
COUNT = 1_500
WORKERS = 2
MEMORY = "spark.executor.memory=768m spark.driver.memory=512m"
"""As docker-compose.yml has it."""


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[StandaloneSpark]:
    folder = tmp_path / "spark"
    folder.mkdir()
    cluster = StandaloneSpark(folder, WORKERS)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


def test_a_lost_index_is_rebuilt_by_workers(
    private_bridge: BridgeFactory, clients: Clients, spark_cluster: StandaloneSpark, topic: str, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    bridge = private_bridge(
        rebuild_from_entries=400,
        spark_master=spark_cluster.url,
        spark_output=output.as_uri(),
        spark_conf=f"spark.driver.host={HOST} spark.driver.bindAddress={HOST} {MEMORY}",
    )
    consumer = shared(clients.connect(bridge.service_url), topic)
    # Or what is published before would be a gap already.
    wait_until(lambda: bridge.topic(topic).get("role") == "owner", "ownership", timeout=60)
    producer = clients.connect(bridge.service_url).create_producer(topic, block_if_queue_full=True)
    due_ms = now_ms() + 45_000
    wanted = [str(number) for number in range(COUNT)]
    publish(producer, wanted, deliver_at=due_ms)
    wait_until(lambda: bridge.topic(topic).get("entries") == COUNT, "all in the index", timeout=30)

    lose_index(bridge)
    wait_until(lambda: "rebuild loaded" in bridge.log(), "the end of the rebuild", timeout=120)
    assert_complete(bridge, topic)
    status = rebuilds_of(bridge, topic)[-1]
    assert (status["state"], status["engine"], status["sparkError"]) == ("succeeded", "spark", None), status
    assert status["entriesIndexed"] == status["proof"]["count"] == COUNT

    # The cluster did it, not this machine's `local[*]`; and nothing is left where it wrote.
    applications = spark_cluster.state()["completedapps"]
    assert [each["name"] for each in applications] == [f"rebuild {topic}"]
    for number in range(WORKERS):
        assert list(spark_cluster.work_dir(number).glob("app-*/*/stderr")), f"worker {number} ran no executor"
    assert output.is_dir(), "the job wrote somewhere else"
    assert not list(output.iterdir())

    got = drain(consumer, COUNT, 60_000)
    assert sorted(texts(got), key=int) == wanted
    assert min(each.at_ms for each in got) >= due_ms
    assert_quiet(consumer)
