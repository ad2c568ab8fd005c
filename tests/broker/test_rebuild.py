"""A lost index is rebuilt by a Spark job while what is new is delivered: every message exactly as it is needed.

DELAY_BRIDGE_LONG=1 kills ten times instead of twice, among more messages, and rebuilds on several processes too;
DELAY_BRIDGE_MESSAGES says how many are pending, and how many are not.
"""

import asyncio
import json
import os
import random
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from bridge.answers.values import Engine
from bridge.cli import main
from bridge.embedded import EmbeddedPulsar
from bridge.ledgers.bookies.read_from import ReadFrom
from bridge.refill.audit import AuditStatus
from bridge.refill.rebuilds import Rebuilds
from tests.bridge_process import BridgeProcess, Broker, now_ms
from tests.broker.conftest import BridgeFactory, InProcessFactory
from tests.broker.test_faults import wait_for_acks_to_be_kept
from tests.clients import Clients, Received, assert_quiet, drain_all, publish, rest_path, shared, texts
from tests.cluster import PulsarCluster
from tests.helpers import children_with, wait_until, wait_until_async
from tracker import Position, encode_key

LONG = os.environ.get("DELAY_BRIDGE_LONG") == "1"
COUNT = int(os.environ.get("DELAY_BRIDGE_MESSAGES", 20_000 if LONG else 800))
SOON = min(COUNT // 4, 20_000)
"""Less than a consumer may leave without an ack."""
MASTERS = ["local[2]", "local-cluster[2,1,1024]"] if LONG else ["local[2]"]
KILLS = 10 if LONG else 2
pytestmark = pytest.mark.timeout(600 + COUNT // 200)
PATIENCE_S = 150 + COUNT // 1_000
LATER_MS = 15_000 + COUNT
"""After messages were published and received, and the bridge lost its index."""


class Scene:
    """A topic with acked, unacked and pending messages, and three subscriptions that need different ones of them."""

    def __init__(self, bridge: BridgeProcess, clients: Clients, pulsar: Broker, topic: str) -> None:
        self.client = clients.connect(bridge.service_url)
        self.consumers = {name: shared(self.client, topic, name) for name in ("a", "b", "c")}
        self.producer = self.client.create_producer(topic, max_pending_messages=10_000, block_if_queue_full=True)
        soon = [f"soon {number}" for number in range(SOON)]
        immediate = [f"immediate {number}" for number in range(COUNT)]
        later = [f"later {number}" for number in range(COUNT)]
        publish(self.producer, soon, deliver_at=now_ms() + 200)
        self.due_ms = now_ms() + LATER_MS
        for start in range(0, COUNT, 200):
            publish(self.producer, later[start : start + 200], deliver_at=self.due_ms + start // 10)
        publish(self.producer, immediate)
        # What is not acked comes again.
        again = {"a": [], "b": soon, "c": soon[::3]}
        self.wanted = {name: {*later, *some} for name, some in again.items()}
        acked = {name: {*immediate, *soon} - {*some} for name, some in again.items()}
        for name, got in self._receive({name: len(soon) + COUNT for name in again}, acked).items():
            assert {each.text for each in got} == {*soon, *immediate}, name
        wait_for_acks_to_be_kept_by(pulsar, topic, {name: len(wanted) for name, wanted in self.wanted.items()})

    def _receive(self, counts: dict[str, int], acked: dict[str, set[str]] | None = None) -> dict[str, list[Received]]:
        """So many of each subscription, all at the same time; ack all, or only what is listed."""
        with ThreadPoolExecutor(len(counts)) as threads:
            found = {
                name: threads.submit(_drain, self.consumers[name], count, None if acked is None else acked[name])
                for name, count in counts.items()
            }
            return {name: each.result() for name, each in found.items()}

    def assert_all_comes(self, new: set[str], *, once: bool = True) -> None:
        """What is pending, and what was published after the loss, comes and not early.

        Not `once`: messages that were due before a kill may have been on their way then, and come again.
        """
        wanted = {name: some | new for name, some in self.wanted.items()}
        for name, got in self._receive({name: len(some) for name, some in wanted.items()}).items():
            counted = Counter(texts(got))
            assert set(counted) == wanted[name], name
            assert not once or max(counted.values()) == 1, name
            assert all(each.at_ms >= self.due_ms for each in got if each.text.startswith("later"))
        if once:
            assert_quiet(*self.consumers.values())


def _drain(consumer: Any, count: int, acked: set[str] | None = None) -> list[Received]:
    """So many different ones."""
    found: list[Received] = []
    different: set[str] = set()

    def enough() -> bool:
        for each in drain_all(consumer, 20, ack=False, limit=5_000):
            if acked is None or each.text in acked:
                consumer.acknowledge(each.message)
            found.append(each._replace(message=None))
            different.add(each.text)
        return len(different) >= count

    wait_until(enough, f"{count} messages", timeout=PATIENCE_S + LATER_MS // 1_000)
    return found


def wait_for_acks_to_be_kept_by(pulsar: Broker, topic: str, left: dict[str, int]) -> None:
    for name, count in left.items():
        wait_for_acks_to_be_kept(pulsar, topic, count, name)


def lose_index(bridge: BridgeProcess) -> None:
    bridge.kill()
    shutil.rmtree(bridge.data_dir)
    bridge.start()


@pytest.mark.parametrize("master", MASTERS)
def test_a_lost_index_is_rebuilt(
    private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, topic: str, master: str
) -> None:
    bridge = private_bridge(rebuild_from_entries=400, spark_master=master)
    scene = Scene(bridge, clients, pulsar, topic)
    lose_index(bridge)
    new = {f"new {number}" for number in range(100)}
    publish(scene.producer, new, deliver_at=now_ms() + 500)
    wait_until(lambda: "rebuild started" in bridge.log(), "the start of the rebuild", timeout=60)
    wait_until(lambda: "rebuild loaded" in bridge.log(), "the end of the rebuild", timeout=PATIENCE_S)
    wait_until(lambda: nothing_is_missing(bridge, topic), "all gaps filled", timeout=60)
    assert run(["audit", "--admin-url", bridge.web_url, topic]) == 0
    scene.assert_all_comes(new)
    # Subscriptions whose cursors stand at different places may make several gaps.
    by_jobs = [each for each in rebuilds_of(bridge, topic) if each["engine"] == "spark"]
    status = max(by_jobs, key=lambda each: int(each["entriesTotal"]))
    assert (status["state"], status["trigger"]) == ("succeeded", "ownership"), status
    assert COUNT <= sum(each["entriesIndexed"] for each in by_jobs) <= COUNT + SOON + len(new)
    assert status["entriesRead"] == status["entriesTotal"] >= 2 * COUNT
    assert status["sparkError"] is None
    assert status["proof"]["count"] >= COUNT
    assert not list((bridge.data_dir / "rebuilds").iterdir()), "the files are needed no more"


def test_killed_during_the_rebuild(
    private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, topic: str
) -> None:
    bridge = private_bridge(rebuild_from_entries=400, spark_master="local[2]")
    scene = Scene(bridge, clients, pulsar, topic)
    lose_index(bridge)
    choose = random.Random(5)
    for _ in range(KILLS):
        until = now_ms() + choose.randrange(100, 12_000)
        wait_until(lambda until=until: now_ms() > until, "the time to kill", timeout=20)  # type: ignore[misc]
        bridge.kill()
        bridge.start()
    scene.assert_all_comes(set(), once=False)
    wait_until(lambda: "rebuild loaded" in bridge.log(), "the end of the rebuild", timeout=PATIENCE_S)
    assert_complete(bridge, topic)


def test_the_job_is_killed(private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, topic: str) -> None:
    """It goes on where it was; one that is killed a fourth time is given up, and the gap read in the bridge."""
    bridge = private_bridge(rebuild_from_entries=400, spark_master="local[2]")
    scene = Scene(bridge, clients, pulsar, topic)
    choose = random.Random(7)
    for number in range(KILLS if LONG else 1):
        if number % 3 == 0:
            lose_index(bridge)
        wait_until(lambda: bool(_jobs_of(bridge)), "a job", timeout=60)
        until = now_ms() + choose.randrange(100, 8_000)
        wait_until(lambda until=until: now_ms() > until, "the time to kill", timeout=20)  # type: ignore[misc]
        for job in _jobs_of(bridge):
            job.kill()
    scene.assert_all_comes(set())
    assert_complete(bridge, topic)


@pytest.mark.skipif(not LONG, reason="part of the long form")
def test_the_broker_is_restarted_during_the_rebuild(
    private_bridge: BridgeFactory, clients: Clients, private_pulsar: EmbeddedPulsar, topic: str
) -> None:
    """The bridge is no longer the owner then; when it is again, it goes on with what the job has read."""
    bridge = private_bridge(private_pulsar, rebuild_from_entries=400, spark_master="local[2]")
    scene = Scene(bridge, clients, private_pulsar, topic)
    lose_index(bridge)
    ranges = bridge.data_dir / "rebuilds"
    wait_until(lambda: any(ranges.glob("*/ranges")), "the first reads", timeout=60, interval=0.01)
    private_pulsar.kill()
    private_pulsar.start()
    scene.assert_all_comes(set(), once=False)
    wait_until(lambda: "rebuild loaded" in bridge.log(), "the end of the rebuild", timeout=PATIENCE_S)
    assert_complete(bridge, topic)


def _jobs_of(bridge: BridgeProcess) -> list[psutil.Process]:
    return children_with(bridge.pid, "spark_jobs.rebuild")


@pytest.mark.parametrize("read_from", ReadFrom)
def test_without_spark_the_gap_is_read_here(
    private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, topic: str, read_from: ReadFrom
) -> None:
    bridge = private_bridge(rebuild_from_entries=400, spark_master="nonsense", read_from=read_from)
    scene = Scene(bridge, clients, pulsar, topic)
    lose_index(bridge)
    wait_until(lambda: "the gap is read here" in bridge.log(), "word of the failure", timeout=PATIENCE_S)
    scene.assert_all_comes(set())
    status = next(each for each in rebuilds_of(bridge, topic) if each["sparkError"])
    assert (status["state"], status["engine"]) == ("succeeded", "in-process"), status
    assert "Master must either be yarn or start with spark, k8s, or local" in status["sparkError"]
    from_bookies = 0 if read_from is ReadFrom.broker else status["entriesRead"]
    assert (status["fromBookies"], status["notFromBookies"]) == (from_bookies, None)


def test_an_operator_has_a_topic_read_again(
    private_bridge: BridgeFactory, clients: Clients, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is missing, so nothing is stored twice; the command shows what was done."""
    bridge = private_bridge()
    client = clients.connect(bridge.service_url)
    consumer = shared(client, topic)
    publish(client.create_producer(topic), [str(number) for number in range(300)], deliver_at=now_ms() + 5_000)
    wait_until(lambda: bridge.topic(topic).get("entries") == 300, "300 entries in the index")
    here = ["--admin-url", bridge.web_url]
    assert run(["rebuild", "--wait", *here, topic]) == 0
    row, proof, source = capsys.readouterr().out.splitlines()[-3:]
    assert row.split() == [*("succeeded", "operator", "in-process", *range_of(bridge, topic), "300", "300", "0")]
    assert proof.startswith("index and topic hold the same 300 entries, checksum ")
    assert source == "300 of the entries were read from the bookies"
    assert bridge.topic(topic)["entries"] == 300
    assert run(["audit", *here, topic]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:3] == ["succeeded", "in-process", "300"]
    assert run(["rebuild-status", "--output", "json", *here, topic]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "succeeded"
    assert sorted(texts(drain_all(consumer, 6_000, limit=300)), key=int) == [str(number) for number in range(300)]
    assert_quiet(consumer)


async def test_an_audit_finds_what_differs(bridge_here: InProcessFactory, clients: Clients, topic: str) -> None:
    """One entry is taken out of the index, and one gets another due time."""
    here = await bridge_here()
    later = now_ms() + 3_600_000

    def fill() -> list[Any]:
        client = clients.connect(here.advertised_url)
        shared(client, topic)
        producer = client.create_producer(topic, block_if_queue_full=True)
        return publish(producer, [str(number) for number in range(1_500)], deliver_at=later)

    ids = [Position(each.ledger_id(), each.entry_id()) for each in await asyncio.to_thread(fill)]
    assert here.topics is not None
    tracked = here.topics.get(topic)
    assert tracked is not None
    await wait_until_async(lambda: tracked.role == "owner", "ownership", timeout=60)
    index = tracked.index
    assert index is not None

    def rebuilds() -> Rebuilds:
        assert tracked is not None
        assert tracked.tenure is not None
        return tracked.tenure.rebuilds

    await wait_until_async(lambda: index.entries == 1_500 and not rebuilds().is_rebuilding, "1,500 entries", timeout=60)

    async def audited(engine: Engine) -> AuditStatus:
        status = rebuilds().start_audit(engine)
        assert status is not None
        await wait_until_async(lambda: status.finished_ms is not None, "the end of the audit", timeout=PATIENCE_S)
        return status

    clean = await audited(Engine.in_process)
    assert (clean.state, clean.result.compared) == ("succeeded", 1_500)
    by_job = await audited(Engine.spark)
    assert (by_job.state, by_job.engine, by_job.result) == ("succeeded", Engine.spark, clean.result), by_job.spark_error

    store = here._store
    assert store is not None
    for position, due in ((ids[7], None), (ids[1_000], later + 5)):
        batch = store.new_batch()
        entry = index.search.locate(position)
        assert entry is not None
        batch.delete(entry.key, index.families.main.handle)
        if due is not None:
            batch.put(encode_key(due, *position), b"\1" + entry.raw, index.families.main.handle)
        store.write(batch)
    for engine in (Engine.in_process, Engine.spark):
        differs = await audited(engine)
        assert (differs.state, differs.result.differing, differs.spark_error) == ("differs", 2, None)
        assert differs.result.missing == [ids[7], ids[1_000]]
    # A rebuild mends it: the job finds what differs, that is read again.
    rebuild = rebuilds().start_rebuild(Engine.spark)
    assert rebuild is not None
    await wait_until_async(lambda: rebuild.finished_ms is not None, "the end of the rebuild", timeout=PATIENCE_S)
    assert (rebuild.state, rebuild.engine, rebuild.entries_indexed) == ("succeeded", Engine.spark, 2), rebuild
    assert rebuild.proof is not None
    assert rebuild.proof.count == 1_500
    await asyncio.to_thread(clients.close)  # while the bridge is there: without it they would try for long


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rebuild", "nobody-made-this"], "nobody-made-this is not tracked by this bridge"),
        (["rebuild", "a/b"], "not a topic name: 'a/b'"),
        (["rebuild", "non-persistent://a/b/c"], "not a persistent topic: 'non-persistent://a/b/c'"),
        (["rebuild-status", "nobody-made-this"], "404 persistent://public/default/nobody-made-this is not tracked"),
    ],
)
def test_what_cannot_be_rebuilt_is_said(
    bridge: BridgeProcess, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([arguments[0], "--admin-url", bridge.web_url, *arguments[1:]]) == 1
    assert said in capsys.readouterr().err


def run(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(str(ended.value.code or 0))


def assert_complete(bridge: BridgeProcess, topic: str) -> None:
    """All gaps are filled, and the index holds what the topic does."""
    wait_until(lambda: nothing_is_missing(bridge, topic), "all gaps filled", timeout=60)
    assert run(["audit", "--engine", "in-process", "--admin-url", bridge.web_url, topic]) == 0


def nothing_is_missing(bridge: BridgeProcess, topic: str) -> bool:
    """No gap is being filled, because all are, or there was none since the bridge started."""
    status, found = bridge.get(f"/admin/v2/delayed/{rest_path(topic)}/rebuild")
    return status == 404 or (status == 200 and not any(one["finishedAt"] is None for one in [found, *found["earlier"]]))


def rebuilds_of(bridge: BridgeProcess, topic: str) -> list[dict[str, Any]]:
    """Newest first."""
    status, found = bridge.get(f"/admin/v2/delayed/{rest_path(topic)}/rebuild")
    assert status == 200, found
    return [found, *found["earlier"]]


def range_of(bridge: BridgeProcess, topic: str) -> tuple[str, str]:
    found = rebuilds_of(bridge, topic)[0]
    return found["after"], found["to"]
