"""A bridge without an index of its own takes over from a snapshot of the former owner's."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from tests.bridge_process import BridgeProcess, now_ms
from tests.broker.conftest import BridgeFactory
from tests.clients import Clients, admin, assert_quiet, drain, publish, rest_path, shared, texts
from tests.cluster import PulsarCluster
from tests.helpers import wait_until

PENDING = 2_000
REST = 1_500
LATER_MS = 25_000


def role(bridge: BridgeProcess, topic: str) -> Any:
    return bridge.topic(topic).get("role")


def has_snapshot(bridge: BridgeProcess, topic: str, entries: int) -> None:
    """Wait until one has so many entries."""
    wait_until(lambda: f"entries={entries} " in _last_snapshot(bridge), f"a snapshot of {entries}", timeout=60)


def _last_snapshot(bridge: BridgeProcess) -> str:
    lines = [line + " " for line in bridge.log().splitlines() if "snapshot of the index" in line]
    return lines[-1] if lines else ""


def settings_of(folder: Path) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    return {"standby_count": 0, "snapshot_dir": str(folder), "snapshot_interval_ms": 1_000}


def test_a_bridge_without_an_index_takes_over_from_a_snapshot(
    private_bridge: BridgeFactory, clients: Clients, topic: str, tmp_path: Path
) -> None:
    first = private_bridge(**settings_of(tmp_path / "shared"))
    client = clients.connect(first.service_url)
    consumer = shared(client, topic)
    producer = client.create_producer(topic, max_pending_messages=10_000, block_if_queue_full=True)
    publish(producer, [f"soon {number}" for number in range(200)], deliver_at=now_ms() + 500)
    assert len(drain(consumer, 200)) == 200
    due_ms = now_ms() + LATER_MS
    wanted = {f"later {number}" for number in range(PENDING)}
    publish(producer, wanted, deliver_at=due_ms)
    has_snapshot(first, topic, PENDING + 200)
    shutil.copytree(tmp_path / "shared", tmp_path / "some-time-ago")
    rest = {f"rest {number}" for number in range(REST)}
    publish(producer, rest, deliver_at=due_ms + 10)
    client.close()
    first.kill()
    shutil.rmtree(first.data_dir)
    second = private_bridge(**settings_of(tmp_path / "some-time-ago"))
    consumer = shared(clients.connect(second.service_url), topic)
    wait_until(lambda: "the index is loaded from a snapshot" in second.log(), "the snapshot is loaded", timeout=30)
    wait_until(lambda: "what was left out is read" in second.log(), "the rest is read", timeout=30)
    assert "filling a gap" not in second.log()
    assert now_ms() < due_ms, "the machine is too slow for this test"
    received = drain(consumer, PENDING + REST, timeout_ms=LATER_MS + 10_000)
    counted = Counter(texts(received))
    assert {*counted} == wanted | rest
    assert max(counted.values()) == 1
    assert all(each.at_ms >= due_ms for each in received)
    assert_quiet(consumer)
    has_snapshot(second, topic, PENDING + REST + 200)


def test_a_topic_made_anew_does_not_get_the_snapshot_of_the_former(
    private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, topic: str, tmp_path: Path
) -> None:
    first = private_bridge(**settings_of(tmp_path / "shared"))
    client = clients.connect(first.service_url)
    shared(client, topic)
    producer = client.create_producer(topic)
    publish(producer, [f"former {number}" for number in range(50)], deliver_at=now_ms() + 8_000)
    has_snapshot(first, topic, 50)
    client.close()
    first.kill()
    shutil.rmtree(first.data_dir)
    admin(pulsar, "DELETE", f"{rest_path(topic)}?force=true")
    second = private_bridge(**settings_of(tmp_path / "shared"))
    client = clients.connect(second.service_url)
    consumer = shared(client, topic)
    publish(client.create_producer(topic), ["new"], deliver_at=now_ms() + 8_500)
    assert texts(drain(consumer, 1)) == ["new"]
    assert_quiet(consumer)
    assert "loaded from a snapshot" not in second.log()


def test_a_damaged_snapshot_is_refused_and_all_is_read(
    private_bridge: BridgeFactory, clients: Clients, topic: str, tmp_path: Path
) -> None:
    first = private_bridge(**settings_of(tmp_path / "shared"))
    client = clients.connect(first.service_url)
    shared(client, topic)
    due_ms = now_ms() + 10_000
    wanted = {f"later {number}" for number in range(PENDING)}
    publish(client.create_producer(topic, block_if_queue_full=True), wanted, deliver_at=due_ms)
    has_snapshot(first, topic, PENDING)
    client.close()
    first.kill()
    shutil.rmtree(first.data_dir)
    for path in (tmp_path / "shared").rglob("*.sst"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    second = private_bridge(**settings_of(tmp_path / "shared"))
    consumer = shared(clients.connect(second.service_url), topic)
    received = drain(consumer, PENDING)
    assert {*texts(received)} == wanted
    assert all(each.at_ms >= due_ms for each in received)
    assert "the snapshot of the index is not used" in second.log()
    assert "filling a gap" in second.log()
