"""Bridge or broker die, lose their disk, or hand topics around: nothing is lost, what is acked stays acked.

DELAY_BRIDGE_LONG=1 takes the long form, with ten times as many messages.
"""

import os
import random
import resource
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pulsar as pulsar_client
import pytest

from bridge.embedded import EmbeddedPulsar
from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from tests.bridge_process import BridgeProcess, Broker, now_ms
from tests.broker.conftest import BridgeFactory
from tests.clients import (
    Clients,
    Received,
    admin,
    assert_quiet,
    backlog,
    drain,
    drain_all,
    publish,
    receive,
    rest_path,
    shared,
    some_topic,
    texts,
)
from tests.cluster import PulsarCluster
from tests.helpers import wait_until
from tracker import Position

LONG = os.environ.get("DELAY_BRIDGE_LONG") == "1"
PENDING = 50_000 if LONG else 5_000
ACKS_ARE_KEPT_AFTER_MS = 1_000


class Load:
    """Publishes in a thread, until stopped, numbers that are due a little later; knows which are stored."""

    def __init__(self, client: Any, topic: str, per_second: int = 300) -> None:
        self.stored: set[str] = set()
        self.failed: list[Any] = []
        self._producer = client.create_producer(topic, send_timeout_millis=120_000, max_pending_messages=100_000)
        self._pause = 1 / per_second
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._sent = 0

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._ended.wait(self._pause):
            deliver_at = now_ms() + random.randrange(600) if self._sent % 3 else None
            self._send(str(self._sent), deliver_at)
            self._sent += 1

    def _send(self, text: str, deliver_at: int | None) -> None:
        def stored(result: Any, _: Any) -> None:
            if result == pulsar_client.Result.Ok:
                self.stored.add(text)
            else:
                self.failed.append(result)

        self._producer.send_async(text.encode(), stored, deliver_at=deliver_at)

    def wait_for(self, stored: int) -> None:
        wait_until(lambda: len(self.stored) >= stored, f"{stored} messages stored", timeout=30)

    def stop(self) -> None:
        """Returns once everything sent is stored."""
        self._ended.set()
        self._thread.join()
        self._producer.flush()
        wait_until(lambda: len(self.stored) + len(self.failed) == self._sent, "everything stored", timeout=60)
        assert not self.failed


class Collector:
    """Receives and acks in a thread, until stopped."""

    def __init__(self, consumer: Any) -> None:
        self.received: list[Received] = []
        self._consumer = consumer
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Collector":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            self.received += drain_all(self._consumer, 50, limit=500)

    @property
    def seen(self) -> Counter[str]:
        return Counter(texts(self.received))

    def wait_for(self, expected: set[str], timeout: float = 60.0) -> None:
        def missing() -> int:
            return len(expected - set(texts(self.received)))

        wait_until(lambda: not missing(), f"{len(expected)} messages", timeout=timeout, interval=0.1)


@pytest.fixture
def killable(private_bridge: BridgeFactory) -> BridgeProcess:
    return private_bridge()


def wait_for_acks_to_be_kept(broker: Broker, topic: str, left: int, subscription: str = "s") -> None:
    """Until the broker has all acks but `left`, and a second has passed: by then they are on its disk."""
    wait_until(lambda: backlog(broker, topic, subscription) == left, f"backlog of {left}")
    kept_at = now_ms() + ACKS_ARE_KEPT_AFTER_MS
    wait_until(lambda: now_ms() >= kept_at)


@pytest.mark.parametrize("disk", ["kept", "lost"])
def test_killed_with_pending_messages(
    killable: BridgeProcess,
    clients: Clients,
    pulsar: PulsarCluster,
    topic: str,
    disk: str,
    record_property: Callable[[str, object], None],
) -> None:
    client = clients.connect(killable.service_url)
    consumers = [shared(client, topic) for _ in range(2)]
    producer = client.create_producer(topic, max_pending_messages=PENDING)
    start = now_ms()
    before = {f"acked {number}" for number in range(1_000)}
    publish(producer, before, deliver_at=start + 200)
    immediate = {f"acked immediate {number}" for number in range(500)}
    publish(producer, immediate)
    acked: list[str] = []

    def enough() -> bool:
        for consumer in consumers:
            acked.extend(texts(drain_all(consumer, 20)))
        return len(acked) >= 1_500

    wait_until(enough, "messages due before the kill", timeout=30)
    assert sorted(acked) == sorted(before | immediate)

    due_while_down = now_ms() + 3_500 + PENDING // 10
    pending = [f"pending {number}" for number in range(PENDING)]
    publish(producer, pending, deliver_at=due_while_down)
    publish(producer, ["unacked"], deliver_at=1)
    publish(producer, ["unacked immediate"])
    unacked: list[Received] = []

    def both() -> bool:
        for consumer in consumers:
            unacked.extend(drain_all(consumer, 20, ack=False))
        return len(unacked) == 2

    wait_until(both, "two messages", timeout=20)
    assert sorted(texts(unacked)) == ["unacked", "unacked immediate"]
    wait_for_acks_to_be_kept(pulsar, topic, PENDING + 2)
    assert now_ms() < due_while_down
    killable.kill()
    if disk == "lost":
        shutil.rmtree(killable.data_dir)

    started = now_ms()
    killable.start()
    with Collector(consumers[0]) as first, Collector(consumers[1]) as second:

        def received() -> list[Received]:
            return [*first.received, *second.received]

        wait_until(lambda: len(received()) >= PENDING + 2, "all pending messages", timeout=60 + PENDING / 1_000)
    record_property("ms from start to first due message", received()[0].at_ms - started)
    record_property("ms from start to last", max(each.at_ms for each in received()) - started)
    print(f"{disk}: first {min(each.at_ms for each in received()) - started} ms after the start")
    counted = Counter(texts(received()))
    assert set(counted) == {*pending, "unacked", "unacked immediate"}
    assert all(each.at_ms >= due_while_down for each in received() if each.text.startswith("pending"))
    assert max(counted.values()) == 1
    assert_quiet(*consumers)


def test_killed_in_the_middle_of_delivery(
    killable: BridgeProcess, clients: Clients, pulsar: PulsarCluster, topic: str
) -> None:
    """Again and again, with consumers busy: at least once, and what was acked a second before never again."""
    acks = Acks(shared(clients.connect(killable.service_url), topic, receiver_queue_size=100))
    with Load(clients.connect(pulsar.service_url), topic) as load:
        for _ in range(3):
            until = now_ms() + 2 * ACKS_ARE_KEPT_AFTER_MS
            while now_ms() < until:
                acks.take(50)
            acks.kills.append(now_ms())
            killable.kill()
            acks.take(50)
            killable.start()

    def all_there() -> bool:
        acks.take(200)
        return acks.received >= load.stored

    wait_until(all_there, "everything", timeout=60)
    assert not acks.again


class Acks:
    """What a consumer receives and acks; `again` gets what comes although its ack was surely kept."""

    def __init__(self, consumer: Any) -> None:
        self.kills: list[int] = []
        self.received: set[str] = set()
        self.again: list[tuple[str, int]] = []
        self._consumer = consumer
        self._acked_ms: dict[str, int] = {}  # while the consumer was connected

    def take(self, quiet_ms: int) -> None:
        """What there is, until nothing comes for so long; an ack given without a connection is nobody's."""
        received = drain_all(self._consumer, quiet_ms, limit=100)
        connected = self._consumer.is_connected()
        for each in received:
            acked_ms = self._acked_ms.pop(each.text, None)
            if acked_ms is not None and self._was_kept(acked_ms):
                self.again.append((each.text, each.at_ms - acked_ms))
            if connected:
                self._acked_ms[each.text] = each.at_ms
        self.received.update(each.text for each in received)

    def _was_kept(self, acked_ms: int) -> bool:
        """Not near a kill: just before it is on its way, and just after it the client does not know yet."""
        return all(abs(killed_ms - acked_ms) > ACKS_ARE_KEPT_AFTER_MS for killed_ms in self.kills)


def test_stopped_and_started_again(
    killable: BridgeProcess, clients: Clients, pulsar: PulsarCluster, topic: str
) -> None:
    """A stop in order: not even the latest acks are forgotten."""
    client = clients.connect(killable.service_url)
    consumer = shared(client, topic)
    producer = client.create_producer(topic)
    publish(producer, map(str, range(500)), deliver_at=now_ms() + 200)
    publish(producer, map(str, range(500, 1_000)))
    later = now_ms() + 4_000
    publish(producer, ["later"], deliver_at=later)
    assert len(drain(consumer, 1_000)) == 1_000
    wait_until(lambda: backlog(pulsar, topic) == 1, "acks")
    killable.stop()
    killable.start()
    received = receive(consumer)
    assert received.text == "later"
    assert received.at_ms >= later
    assert_quiet(consumer)


def test_due_while_the_bridge_is_down(
    killable: BridgeProcess, clients: Clients, pulsar: PulsarCluster, topic: str
) -> None:
    # Closed, for a consumer that comes back by itself would share what is due.
    shared(clients.connect(killable.service_url), topic).close()
    killable.stop()
    producer = clients.connect(pulsar.service_url).create_producer(topic)
    at = now_ms() + 100
    publish(producer, map(str, range(100)), deliver_at=at)
    publish(producer, map(str, range(100, 200)))
    wait_until(lambda: now_ms() > at)
    killable.start()
    consumer = shared(clients.connect(killable.service_url), topic)
    assert sorted(texts(drain(consumer, 200)), key=int) == [str(number) for number in range(200)]
    assert_quiet(consumer)


def limit_files(bridge: BridgeProcess, size: int | None) -> None:
    """No file of the bridge may grow beyond, as if its disk was full; None lifts that."""
    hard = resource.prlimit(bridge.pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(bridge.pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


def position_kept_by_broker(broker: PulsarCluster, topic: str) -> Position:
    cursors = admin(broker, "GET", f"{rest_path(topic)}/internalStats")["cursors"]
    return Position.parse(cursors[HIDDEN_SUBSCRIPTION]["markDeletePosition"])


def test_disk_full_for_a_while(killable: BridgeProcess, clients: Clients, pulsar: PulsarCluster, topic: str) -> None:
    """What is in the index goes out on time, the rest once there is room again, and nobody need do anything for it."""
    client = clients.connect(killable.service_url)
    consumer = shared(client, topic)
    producer = client.create_producer(topic)
    publish(producer, ["first"])
    assert receive(consumer).text == "first", "a subscription that is new on a full disk waits for room"
    due = now_ms() + 5_000
    indexed = {f"indexed {number}" for number in range(500)}
    publish(producer, indexed, deliver_at=due)
    wait_until(lambda: killable.topic(topic)["entries"] == 500, "entries in the index")
    log = max(killable.data_dir.glob("*.log"), key=lambda file: int(file.stem))
    limit_files(killable, log.stat().st_size + 10_000)
    arriving_due = now_ms() + 500
    arriving = {f"arriving {number} {random.randbytes(200).hex()}" for number in range(1_000)}
    publish(producer, arriving, deliver_at=arriving_due)
    immediate = {f"immediate {number}" for number in range(100)}
    publish(producer, immediate)
    with Collector(consumer) as collector:
        killable.wait_for_log("nothing can be stored")
        assert now_ms() < due
        collector.wait_for(indexed)
        assert all(0 <= each.at_ms - due < 1_000 for each in collector.received if each.text in indexed)
        assert arriving - set(collector.seen)
        assert position_kept_by_broker(pulsar, topic) <= Position.parse(killable.topic(topic)["harvestedPosition"])
        assert killable.topic(topic)["role"] == "owner"
        assert "can be written again" not in killable.log()
        limit_files(killable, None)
        collector.wait_for(indexed | arriving | immediate)
        killable.wait_for_log("can be written again")
        later = {f"later {number}" for number in range(100)}
        later_due = now_ms() + 500
        publish(producer, later, deliver_at=later_due)
        collector.wait_for(later)
    assert max(collector.seen.values()) == 1
    for expected, at in ((arriving, arriving_due), (later, later_due)):
        assert all(each.at_ms >= at for each in collector.received if each.text in expected)
    wait_until(lambda: backlog(pulsar, topic) == 0, "acks")
    end = killable.topic(topic)["harvestedPosition"]
    wait_until(lambda: str(position_kept_by_broker(pulsar, topic)) == end, "harvested position kept")
    killable.stop()
    killable.start()
    assert_quiet(consumer)


def mark_delete_position(bridge: BridgeProcess, topic: str) -> str:
    return str(bridge.stats(topic)["subscriptions"]["s"]["markDeletePosition"])


@pytest.mark.parametrize("change", ["reset", "deleted"])
def test_cursor_changed_while_the_bridge_is_down(
    killable: BridgeProcess, clients: Clients, pulsar: PulsarCluster, topic: str, change: str
) -> None:
    """An operator sets a subscription back, or makes it anew, past the bridge."""
    client = clients.connect(killable.service_url)
    consumer = shared(client, topic)
    producer = client.create_producer(topic)
    publish(producer, map(str, range(50)))
    publish(producer, map(str, range(50, 100)), deliver_at=now_ms() + 100)
    assert len(drain(consumer, 100)) == 100
    wait_for_acks_to_be_kept(pulsar, topic, 0)
    # The bridge takes a mark-delete position as final when it saw it twice, two seconds apart.
    end = killable.topic(topic)["harvestedPosition"]
    wait_until(lambda: mark_delete_position(killable, topic) == end, "the bridge knows the cursor", timeout=15)
    client.close()
    killable.stop()
    path = f"{rest_path(topic)}/subscription/s"
    if change == "reset":
        admin(pulsar, "POST", f"{path}/resetcursor/{now_ms() - 600_000}")
    else:
        admin(pulsar, "DELETE", path)
    killable.start()
    consumer = shared(clients.connect(killable.service_url), topic)
    found = drain_all(consumer, 3_000, limit=100)
    assert sorted(texts(found), key=int) == [str(number) for number in range(100)]


def test_topic_unloaded_under_load(client: Any, bridge: BridgeProcess, pulsar: PulsarCluster, topic: str) -> None:
    consumer = shared(client, topic)
    with Collector(consumer) as collector:
        with Load(client, topic) as load:
            for turn in range(1, 5):
                load.wait_for(turn * 150)
                admin(pulsar, "PUT", f"{rest_path(topic)}/unload")
        collector.wait_for(load.stored)
    assert set(collector.seen) == load.stored
    assert_quiet(consumer)
    wait_until(lambda: backlog(pulsar, topic) == 0, "empty backlog")


def test_broker_killed_and_restarted_under_load(
    mortal_pulsar: EmbeddedPulsar, private_bridge: BridgeFactory, clients: Clients
) -> None:
    topic = some_topic("killed-broker")
    bridge = private_bridge(mortal_pulsar)
    client = clients.connect(bridge.service_url)
    consumer = shared(client, topic)
    with Collector(consumer) as collector:
        with Load(client, topic) as load:
            wait_until(lambda: len(collector.received) > 300, "load", timeout=30)
            mortal_pulsar.kill()
            wait_until(lambda: bridge.ready()[0] == 503, "not ready")
            assert bridge.ready()[1]["reason"]
            mortal_pulsar.start()
            wait_until(lambda: bridge.ready()[0] == 200, "ready", timeout=30)
            there = len(collector.received)
            wait_until(lambda: len(collector.received) > there + 300, "load again", timeout=60)
        collector.wait_for(load.stored)
    assert bridge.running
    assert "critical" not in bridge.log()
    assert_quiet(consumer)


def test_acks_that_a_killed_broker_forgot(
    mortal_pulsar: EmbeddedPulsar, private_bridge: BridgeFactory, clients: Clients
) -> None:
    """Brokers store acks once a second: the bridge knows better, and tells the broker."""
    topic = some_topic("forgotten-acks")
    bridge = private_bridge(mortal_pulsar)
    client = clients.connect(bridge.service_url)
    consumer = shared(client, topic)
    producer = client.create_producer(topic)
    publish(producer, ["unacked"])
    unacked = receive(consumer, ack=False)
    publish(producer, map(str, range(500)))
    publish(producer, map(str, range(500, 1_000)), deliver_at=now_ms() + 100)
    assert len(drain(consumer, 1_000)) == 1_000
    wait_until(lambda: backlog(mortal_pulsar, topic) == 1, "acks")
    mortal_pulsar.kill()
    mortal_pulsar.start()
    again = drain_all(consumer, 10_000, limit=1)
    again += drain_all(consumer, 1_000)
    assert texts(again) == [unacked.text]
    wait_until(lambda: backlog(mortal_pulsar, topic) == 0, "the broker's cursor repaired")
