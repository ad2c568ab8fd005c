"""The broker's statistics, completed by what the bridge knows: pure."""

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from bridge.broker.answers import MARK_METADATA
from bridge.protocol.sent import Rates, Sent
from bridge.web.front_door.broker import NoAnswer, Question
from bridge.web.front_door.headers import one_line
from bridge.web.front_door.stats import added_up, filled, has_own, with_subscriptions
from bridge.web.front_door.stats_calls import with_partitions, without_own
from bridge.web.front_door.truths import ConsumerTruth, Dispatched, Truth

OWN, READER = "__delay-bridge", "__delay-bridge-reader-x"
OUT = ("msgOutCounter", "bytesOutCounter", "msgRateOut", "msgThroughputOut")


def consumer(name: str, mark: str | None = None, out: int = 0) -> dict[str, Any]:
    metadata = {"mine": "1"} if mark is None else {"mine": "1", MARK_METADATA: mark}
    return {
        **dict.fromkeys(OUT, out),
        "consumerName": name,
        "availablePermits": 0,
        "unackedMessages": 0,
        "msgRateRedeliver": 0,
        "blockedConsumerOnUnackedMsgs": False,
        "address": "/bridge:1",
        "lastConsumedTimestamp": 0,
        "lastConsumedTime": "1970-01-01T00:00:00Z",
        "metadata": metadata,
    }


def subscription(backlog: int = 0, out: int = 0, *consumers: dict[str, Any]) -> dict[str, Any]:
    zeros = dict.fromkeys(
        ("msgDelayed", "unackedMessages", "msgInReplay", "msgRateRedeliver", "lastConsumedTimestamp"), 0
    )
    return {
        **zeros,
        **dict.fromkeys(OUT, out),
        "msgBacklog": backlog,
        "msgBacklogNoDelayed": backlog,
        "consumers": list(consumers),
    }


def topic(**subscriptions: dict[str, Any]) -> dict[str, Any]:
    names = {name.replace("OWN", OWN).replace("READER", READER): one for name, one in subscriptions.items()}
    out = sum(one["msgOutCounter"] for one in names.values())
    return {**dict.fromkeys(OUT, out), "msgInCounter": 11, "subscriptions": names}


TRUTH = Truth(
    delayed=5,
    in_replay=2,
    dispatched=Dispatched(7, 70, Rates(1.5, 15.0, 0.5), 1_795_364_827_731, 3),
    consumers={"m1": ConsumerTruth("client:9", 4, True, Dispatched(6, 60, Rates(1.0, 10.0), 1_795_364_827_000, 3))},
)


def test_what_the_broker_cannot_know_is_filled_in() -> None:
    stats = topic(
        s=subscription(11, 1, consumer("a", "m1", 1), consumer("b", "m2"), consumer("c")), x=subscription(3, 4)
    )
    before = copy.deepcopy(stats)
    told = filled(stats, {"s": TRUTH, "gone": TRUTH})
    assert stats == before
    s = told["subscriptions"]["s"]
    assert (s["msgBacklog"], s["msgDelayed"], s["msgBacklogNoDelayed"]) == (11, 5, 6)
    assert (s["unackedMessages"], s["msgInReplay"], s["lastConsumedTimestamp"]) == (3, 2, 1_795_364_827_731)
    assert [s[name] for name in OUT] == [8, 71, 2.5, 16.0]
    assert told["subscriptions"]["x"] == before["subscriptions"]["x"]
    assert [told[name] for name in OUT] == [12, 75, 6.5, 20.0]
    a, b, c = s["consumers"]
    assert (a["availablePermits"], a["unackedMessages"], a["blockedConsumerOnUnackedMsgs"]) == (4, 3, True)
    assert [a[name] for name in OUT] == [7, 61, 2.0, 11.0]
    assert (a["address"], a["metadata"], a["lastConsumedTime"]) == ("/client:9", {"mine": "1"}, "2026-11-22T16:27:07Z")
    assert [b, c] == before["subscriptions"]["s"]["consumers"][1:]


def test_what_the_broker_delays_too_is_not_counted_twice() -> None:
    one = subscription(11) | {"msgDelayed": 4, "msgBacklogNoDelayed": 7}
    s = filled(topic(s=one), {"s": TRUTH})["subscriptions"]["s"]
    assert (s["msgDelayed"], s["msgBacklogNoDelayed"]) == (5, 6)


def test_the_bridges_own_subscriptions_are_left_out_or_shown() -> None:
    stats = topic(s=subscription(out=2), OWN=subscription(out=5), READER=subscription(out=9))
    assert has_own(stats)
    told = with_subscriptions(stats, stats["subscriptions"])
    assert (set(told["subscriptions"]), told["msgOutCounter"], has_own(told)) == ({"s"}, 2, False)
    told = with_subscriptions(stats, stats["subscriptions"], show_own=True)
    assert (set(told["subscriptions"]), told["msgOutCounter"]) == ({"s", OWN, READER}, 2)


def test_more_delayed_than_the_broker_has() -> None:
    """Both count at moments of their own."""
    s = filled(topic(s=subscription(3)), {"s": Truth(delayed=5)})["subscriptions"]["s"]
    assert (s["msgDelayed"], s["msgBacklogNoDelayed"]) == (5, 0)


def total_of(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """As the broker adds partitions up, as seen on 4.0.8: consumers by name, without address and metadata."""
    names = {name for part in parts for name in part["subscriptions"]}
    summed = {name: subscription() for name in names}
    for part in parts:
        for name, one in part["subscriptions"].items():
            for field, value in one.items():
                if field == "lastConsumedTimestamp":
                    summed[name][field] = max(summed[name][field], value)
                elif field != "consumers":
                    summed[name][field] += value
            for each in one["consumers"]:
                known = summed[name]["consumers"]
                found = next((one for one in known if one["consumerName"] == each["consumerName"]), None)
                if found is None:
                    found = {"consumerName": each["consumerName"]}
                    known.append(found)
                for field in (*OUT, "availablePermits", "unackedMessages", "msgRateRedeliver"):
                    found[field] = found.get(field, 0) + each[field]
    return with_subscriptions({**dict.fromkeys(OUT, 99)}, summed, show_own=True)


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 1_000), st.booleans()),
        min_size=1,
        max_size=5,
    )
)
def test_partitions_are_added_up_as_the_broker_does(drawn: list[tuple[int, int, int, int, bool]]) -> None:
    """To fill in the parts and add them up is to add them up and fill in."""
    before, after = [], []
    for number, (backlog, delayed, sent, last_ms, own) in enumerate(drawn):
        part = topic(s=subscription(backlog + delayed, 1, consumer("a", f"m{number}"), consumer("b")))
        if own:
            part["subscriptions"][READER] = subscription(out=3)
        of_one = ConsumerTruth("c:1", sent, False, Dispatched(sent, 2 * sent, last_ms=last_ms, unacked=sent))
        truth = Truth(delayed, 0, Dispatched(sent, 2 * sent, last_ms=last_ms, unacked=sent), {f"m{number}": of_one})
        before.append(part)
        after.append(filled(part, {"s": truth}))
    told, expected = added_up(total_of(before), before, after), total_of(after)
    assert told == expected


@pytest.mark.parametrize(
    "stats", [{}, {"subscriptions": []}, {"subscriptions": {"s": {}}}, {"subscriptions": {"s": 3}}]
)
def test_what_is_no_statistics(stats: Mapping[str, Any]) -> None:
    with pytest.raises((AttributeError, KeyError, TypeError, ValueError)):
        filled(stats, {"s": TRUTH})


def test_a_list_of_subscriptions() -> None:
    assert json.loads(without_own(json.dumps(["s", OWN, READER]).encode())) == ["s"]
    for text in (b"", b"<html>", b"3", b"[3]"):
        with pytest.raises(NoAnswer):
            without_own(text)


@pytest.mark.parametrize(
    ("query", "each"), [("", True), ("?perPartition=false&a=%2F", False), ("?perPartition=true", True)]
)
def test_partitions_are_always_asked_for(query: str, each: bool) -> None:
    question, wanted = with_partitions(Question("GET", f"/admin/v2/x%2Fy/partitioned-stats{query}", CIMultiDict()))
    assert wanted == each
    assert question.target.startswith("/admin/v2/x%2Fy/partitioned-stats?")
    assert "perPartition=true" in question.target
    assert "false" not in question.target


def test_rates_are_of_the_last_minute() -> None:
    sent, now = Sent(), 1_000_000_000_000
    assert sent.rates(now) == Rates()
    sent.note(now, 60, 600, 6)
    assert sent.rates(now) == Rates(), "not whole yet"
    for later_s in (10, 60):
        assert sent.rates(now + later_s * 1_000) == Rates(1.0, 10.0, 0.1)
    assert sent.rates(now + 70_000) == Rates()
    sent.note(now + 10_000, 60, 600, 0)
    assert sent.rates(now + 20_000) == Rates(2.0, 20.0, 0.1)
    assert (sent.messages, sent.bytes, sent.last_ms) == (120, 1_200, now + 10_000)


def test_rates_over_a_clock_that_is_set() -> None:
    sent, now = Sent(), 1_000_000_000_000
    for at in (now, now - 3_600_000, now + 3_600_000, now):
        sent.note(at, 60, 60, 0)
    assert sent.rates(now + 10_000).messages == 2.0


def test_a_remark_fits_a_header() -> None:
    assert one_line("broker; ä\r\nX: 1") == "broker; ???X: 1"
