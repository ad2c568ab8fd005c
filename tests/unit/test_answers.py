"""What is built for REST, without a broker, against its description: with and without an index, connected or not."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.answers.values import Engine, Severity, Trigger
from bridge.clock import ClockSteps
from bridge.dispatch.subscription_stats import SubscriptionStats
from bridge.limits import Limits
from bridge.operate.action_log import ActionLog
from bridge.operate.balance import Places
from bridge.operate.books import Balance
from bridge.operate.pending import Pending, Wanted
from bridge.operate.storm import Forecast
from bridge.operate.warnings import OperatorWarning
from bridge.protocol.pulsar_pb2 import MessageMetadata
from bridge.refill.audit import AuditStatus
from bridge.refill.comparison import ComparisonResult
from bridge.refill.rebuild_status import Proof, RebuildStatus
from bridge.refill.snapshots.writing import SnapshotStatus
from bridge.web.request.parameters import ROOT
from bridge.web.rest.overview import overview_answer
from bridge.web.rest.topic_list import topic_rows
from bridge.web.rest.views import partition_table, topic_stats
from tests.described import assert_described
from tracker import NewEntry, Position, Store, TopicIndex

NOW = 1_800_000_000_000
TOPIC = "persistent://public/default/orders"
PATH = f"{ROOT}/persistent/public/default/orders"
AT = Position(1, 3)
BOOKS = {
    "connected": Balance(NOW, AT, Places(published=4, pending=3), None, 1, (AT,), (AT,)),
    "left": Balance(NOW, unknown="it is not dispatched"),
}


@pytest.fixture
def index(tmp_path: Path) -> Iterator[TopicIndex]:
    with Store.open(tmp_path / "index") as store:
        made = TopicIndex(store, TOPIC)
        made.start_at(Position(1, -1))
        for name in ("connected", "left"):
            made.view(name)
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=NOW, partition_key="k")
        metadata.properties.add(key="a", value="b")
        head = metadata.SerializeToString()
        raw = len(head).to_bytes(4, "big") + head + b"body"
        entries = [NewEntry(NOW + number * 60_000, 1, number, 1, raw) for number in range(3)]
        made.add([*entries, NewEntry(NOW, 1, 3, 1, b"not an entry")], Position(1, 3))
        yield made


def topic(index: TopicIndex | None, **changes: Any) -> Any:
    """As far as it is told."""
    consumer = SimpleNamespace(name="c", peer="10.0.0.1:5")
    state = SimpleNamespace(
        consumer=consumer, priority_level=0, permits=9, unacked_messages=1, blocked=False, delivered=7
    )
    stats = SubscriptionStats()
    stats.first_delivery([NOW - 5, NOW - 500], NOW)
    subscription = SimpleNamespace(
        sharing=None,
        stats=stats,
        dispatcher=SimpleNamespace(unacked={(1, 0): None}, consumers=[state]),
        dispatching=True,
        waiting=1,
        to_redeliver=0,
    )
    forecasts = {"connected": Forecast(1.25, NOW, 0.5, None), "left": Forecast(1.25, NOW, 0.5, 2.75)}
    values: dict[str, Any] = {
        "topic": TOPIC,
        "role": "owner" if index is not None else "opening",
        "reason": None if index is not None else "no broker",
        "owner": "pulsar://b:6650",
        "owner_web_url": None,
        "standby_position": None,
        "is_known": True,
        "index": index,
        "subscriptions": {} if index is None else {"connected": subscription},
        "snapshot": None if index is None else SnapshotStatus(NOW - 5_000, 4, 1_000, 10),
        "last_rebuild": None if index is None else rebuild(),
        "warnings": lambda: [OperatorWarning(Severity.critical, "storm", "trouble", "connected")],
        "tenure": None if index is None else SimpleNamespace(books=SimpleNamespace(latest=dict(BOOKS))),
        "outlook": SimpleNamespace(forecast=forecasts.get, shown_rate=lambda name: 1.234),
    }
    return SimpleNamespace(**values | changes)


def rebuild(trigger: Trigger = Trigger.seek, **changes: Any) -> RebuildStatus:
    return RebuildStatus(trigger, Position(-1, -1), Position(1, 3), NOW, **changes)


def as_json(answer: object) -> Any:
    """As a client reads it."""
    return json.loads(json.dumps(answer))


async def test_topics(index: TopicIndex) -> None:
    several = [topic(index), topic(None), topic(index, is_known=False, role="standby", owner_web_url="http://b:8081")]
    rows = as_json(await topic_rows(several, "ORDERS", "entries", 1))
    assert_described("GET", f"{ROOT}/topics", 200, rows)
    assert [row["entries"] for row in rows] == [4, None, None]
    for each in several:
        assert_described("GET", f"{PATH}/stats", 200, as_json(topic_stats(each)))
    subscriptions = topic_stats(several[0])["subscriptions"]
    assert [subscriptions[name]["inFlight"] for name in ("connected", "left")] == [1, 0]
    assert topic_stats(several[1])["subscriptions"] == {}


def clock_set_back() -> ClockSteps:
    steps, now_s = ClockSteps(200), asyncio.get_running_loop().time()
    steps.note(NOW, now_s - 2)
    steps.note(NOW, now_s - 1)
    return steps


async def test_the_overview(index: TopicIndex, tmp_path: Path) -> None:
    bridge: Any = SimpleNamespace(
        settings=SimpleNamespace(data_dir=tmp_path, cluster="c"),
        not_ready="no broker",
        topics=None,
        gateway=None,
        certificate=None,
        started_ms=NOW,
        clock_offset_s=-2.5,
        clock_steps=clock_set_back(),
        balance=SimpleNamespace(clock_offsets_ms={"pulsar://far:6650": 3_000.0, "pulsar://near:6650": 300.0}),
        exposed=None,
        actions=SimpleNamespace(failure=None),
        limits=Limits(),
    )
    found = await overview_answer(bridge, [topic(index), topic(None), topic(index)], NOW)
    assert_described("GET", f"{ROOT}/overview", 200, as_json(found))
    assert (found["topics"], found["owned"], found["entries"], found["pending"]) == (3, 2, 8, 16)
    assert found["lateness"]["count"] == 4
    assert {each["code"] for each in found["warnings"]} >= {"not-ready", "clock", "storm"}
    assert sorted(each["text"] for each in found["warnings"] if each["code"] == "clock") == [
        "the clock of this machine was set, or stood still: -1.0 s",
        "the clocks of this machine and of pulsar://far:6650 differ by at least 3.0 s",
        "the clocks of this machine and the broker differ by at least 2.5 s",
    ]


async def test_time_partitions(index: TopicIndex) -> None:
    for each in (topic(index), topic(None)):
        table = json.loads((await partition_table(each, NOW, 1)).text)
        assert_described("GET", f"{PATH}/partitions", 200, table)
        assert sum(one["entries"] for one in table["partitions"]) == (4 if each.index else 0)


@pytest.mark.parametrize("payload", [False, True])
async def test_pending_entries(index: TopicIndex, payload: bool) -> None:
    found = as_json(
        await Pending(index, index.view("left"), None, Limits().operators).search(Wanted(), None, 10, payload=payload)
    )
    assert_described("GET", f"{PATH}/subscription/left/pending", 200, found)
    assert [each["key"] for each in found["entries"]].count("k") == 3
    assert ["payload" in each for each in found["entries"]] == [payload] * 4
    assert found["entries"][0]["state"] == "pending"


@pytest.mark.parametrize(
    "status",
    [
        rebuild(),
        rebuild(stage="reading", engine=Engine.auto, entries_total=10, entries_read=5),
        rebuild(finished_ms=NOW + 1, proof=Proof(4, 255, NOW)),
        rebuild(finished_ms=NOW + 1, error="no broker", spark_error="no Java", trigger=Trigger.operator),
    ],
)
def test_rebuilds(status: RebuildStatus) -> None:
    told = as_json(status.answer(NOW + 1_000))
    assert_described("PUT", f"{PATH}/rebuild", 202, told)
    assert_described("GET", f"{PATH}/rebuild", 200, told | {"earlier": [told]})
    assert told["state"] == status.state


@pytest.mark.parametrize("finished", [None, NOW + 1])
def test_audits(finished: int | None) -> None:
    result = ComparisonResult(compared=3, differing=2, missing=[Position(1, 2)], unexpected=[Position(1, 3)])
    status = AuditStatus(NOW, Engine.spark, result=result, finished_ms=finished)
    told = as_json(status.answer())
    assert_described("GET", f"{PATH}/audit", 200, told)
    assert (told["engine"], told["missing"]) == ("spark", ["1:2"])


async def test_acts(tmp_path: Path) -> None:
    log = ActionLog(tmp_path, Limits().operators)
    await log.note("ops", "10.0.0.1", "cancel", TOPIC, subscription="s", positions=["1:2"], outcomes={"cancelled": 1})
    await log.note("ops", "10.0.0.1", "log-in", None)
    assert_described("GET", f"{ROOT}/actions", 200, await log.latest(10))


def test_what_is_not_described_is_found(index: TopicIndex) -> None:
    """A test of the test."""
    told = cast(dict[str, Any], topic_stats(topic(index)))
    lacks = {name: value for name, value in told.items() if name != "early"}
    for wrong in (told | {"more": 1}, told | {"early": "0"}, told | {"harvestedPosition": "first"}, lacks):
        with pytest.raises(AssertionError, match="stats"):
            assert_described("GET", f"{PATH}/stats", 200, wrong)
