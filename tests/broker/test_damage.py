"""Files of the index that are damaged while the bridge is down: noticed, read again from the broker, nothing lost."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bridge_process import BridgeProcess, now_ms
from tests.broker.conftest import BridgeFactory
from tests.clients import Clients, backlog, drain, publish, shared, texts
from tests.cluster import PulsarCluster
from tests.helpers import wait_until

COUNT = 3_000


@pytest.fixture
def own_bridge(private_bridge: BridgeFactory) -> BridgeProcess:
    return private_bridge()


def flip_bits(file: Path) -> None:
    data = bytearray(file.read_bytes())
    for at in range(2_000, len(data) * 7 // 8, 20_000):
        data[at] ^= 4
    file.write_bytes(data)


def truncate(file: Path) -> None:
    with file.open("r+b") as data:
        data.truncate(file.stat().st_size // 3)


@pytest.mark.parametrize("harm", [flip_bits, truncate])
def test_damaged_entries_are_read_again(
    own_bridge: BridgeProcess, clients: Clients, pulsar: PulsarCluster, topic: str, harm: Callable[[Path], None]
) -> None:
    client = clients.connect(own_bridge.service_url)
    consumer = shared(client, topic)
    producer = client.create_producer(topic, max_pending_messages=COUNT)
    due = now_ms() + 8_000
    sent = {f"{number} {random.randbytes(200).hex()}" for number in range(COUNT)}
    publish(producer, sent, deliver_at=due)
    wait_until(lambda: own_bridge.topic(topic)["entries"] == COUNT, "entries in the index")
    own_bridge.stop()
    harm(max(own_bridge.data_dir.glob("*.sst"), key=lambda file: file.stat().st_size))
    own_bridge.start()
    received = drain(consumer, COUNT)
    assert sorted(texts(received)) == sorted(sent)
    assert all(each.at_ms >= due for each in received)
    own_bridge.wait_for_log("what was damaged in the index is there again")
    wait_until(lambda: own_bridge.stats(topic)["damagedPartitions"] == 0, "nothing is missing")
    wait_until(lambda: backlog(pulsar, topic) == 0, "acks")
    later = {f"later {number}" for number in range(100)}
    publish(producer, later, deliver_at=now_ms() + 500)
    assert sorted(texts(drain(consumer, 100))) == sorted(later)
