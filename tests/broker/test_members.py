"""Bridges that know each other: topics are shared out, moved when bridges come and go, and never left alone."""

import os
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from bridge.cli import main
from bridge.embedded import EmbeddedPulsar
from tests.bridge_process import BridgeProcess, now_ms
from tests.broker.conftest import BridgeFactory
from tests.clients import Clients, admin, drain, publish, rest_path, shared, texts
from tests.cluster import PulsarCluster
from tests.helpers import wait_until

LONG = os.environ.get("DELAY_BRIDGE_LONG") == "1"
TOPICS = 60 if LONG else 12
LIMITS = {"look_s": 0.5, "standby_follow_s": 2.0}
PATIENCE_S = 180.0 if LONG else 60.0

MakeMember = Callable[..., BridgeProcess]


def command(*arguments: str) -> None:
    """Run `delay-bridge`."""
    try:
        main(arguments)
    except SystemExit as end:
        if end.code not in (0, None):
            raise


@pytest.fixture
def member(private_bridge: BridgeFactory) -> MakeMember:
    """Starts bridges that are members of one cluster."""
    members_topic = f"persistent://public/default/members-{uuid.uuid4().hex[:10]}"
    return lambda **others: private_bridge(limits=LIMITS, **{"members_topic": members_topic, **others})


def owned(bridge: BridgeProcess) -> list[str]:
    return [each["topic"] for each in bridge.get("/admin/v2/delayed/owned")[1]["topics"]]


def takeovers(*bridges: BridgeProcess) -> int:
    """How often any of them became the owner of a topic."""
    return sum(bridge.log().count("] owner of topic ") for bridge in bridges)


def even(*bridges: BridgeProcess) -> bool:
    """All topics are owned, each once, and every share is within a fifth of the mean, or one topic."""
    shares = [owned(bridge) for bridge in bridges]
    found = Counter(topic for share in shares for topic in share)
    mean = TOPICS / len(bridges)
    within = max(0.2 * mean, 1.0)
    return len(found) == TOPICS and set(found.values()) == {1} and all(abs(len(s) - mean) <= within for s in shares)


def test_topics_are_shared_out_and_nothing_is_lost(member: MakeMember, clients: Clients, pulsar: PulsarCluster) -> None:
    """Bridges join, one is killed, one is stopped; each message of each topic comes, and none early."""
    first = member()
    names = [f"persistent://public/default/shared-{uuid.uuid4().hex[:10]}-{number}" for number in range(TOPICS)]
    client, direct = clients.connect(first.service_url), clients.connect(pulsar.service_url)
    producers = [direct.create_producer(name) for name in names]  # first: what nobody is connected to is let go of
    for name in names:
        shared(client, name).close()
    wait_until(lambda: even(first), "one bridge owns all topics", timeout=PATIENCE_S)

    sent: dict[str, int] = {}

    def send(what: str) -> None:
        for number, producer in enumerate(producers):
            due = now_ms() + 1_000 * (5 + 10 * (number % 3))
            sent[f"{what}-{number}"] = due
            publish(producer, [f"{what}-{number}"], deliver_at=due)

    send("alone")
    second = member()
    began = takeovers(first)
    wait_until(lambda: even(first, second), "two share", timeout=PATIENCE_S)
    assert takeovers(first, second) - began <= 1.2 * TOPICS / 2 + 1
    send("two")
    third = member()
    began = takeovers(first, second)
    wait_until(lambda: even(first, second, third), "three share", timeout=PATIENCE_S)
    assert takeovers(first, second, third) - began <= 1.2 * TOPICS / 3 + 1
    send("three")

    def everything_has_a_standby() -> bool:
        ready = [each for bridge in (first, second, third) for each in bridge.get("/admin/v2/delayed/topics")[1]]
        return {each["topic"] for each in ready if each["standbyPosition"] is not None} >= set(names)

    wait_until(everything_has_a_standby, "a standby for each topic", timeout=PATIENCE_S)
    began = takeovers(first, second)
    of_third = len(owned(third))
    third.kill()
    wait_until(lambda: even(first, second), "two share what the third one had", timeout=PATIENCE_S)
    assert takeovers(first, second) - began <= 1.2 * of_third + 2
    first.stop()
    wait_until(lambda: even(second), "the last one has all", timeout=PATIENCE_S)
    received: dict[str, Any] = {}
    last = clients.connect(second.service_url)
    for number, name in enumerate(names):
        for each in drain(shared(last, name), 3):
            received[each.text] = each.at_ms
        assert {text for text in received if text.endswith(f"-{number}")} == {
            f"{what}-{number}" for what in ("alone", "two", "three")
        }
    assert all(at_ms >= sent[text] for text, at_ms in received.items())


def test_any_bridge_answers_for_any_topic(member: MakeMember, clients: Clients, topic: str) -> None:
    """Lookups and REST of a bridge that no client has asked for the topic lead to its owner."""
    first, *others = bridges = [member() for _ in range(3)]
    consumer = shared(clients.connect(first.service_url), topic)
    wait_until(lambda: first.topic(topic).get("role") == "owner", "the first one is the owner")
    publish(clients.connect(first.service_url).create_producer(topic), ["later"], deliver_at=now_ms() + 60_000)

    def ready() -> list[bool]:
        return sorted(bridge.topic(topic).get("standbyPosition") is not None for bridge in others)

    wait_until(lambda: ready() == [False, True], "one of the others is ready")
    assert first.topic(topic)["role"] == "owner", "who joins does not depose"
    urls = sorted(bridge.service_url for bridge in bridges)
    for number, bridge in enumerate(bridges):

        def knows_all(bridge: BridgeProcess = bridge) -> bool:
            return [each["url"] for each in bridge.get("/admin/v2/delayed/members")[1]["members"]] == urls

        wait_until(knows_all, "all bridges are known")
        assert bridge.stats(topic)["owner"] == first.service_url
        publish(clients.connect(bridge.service_url).create_producer(topic), [f"by {number}"])
        assert texts(drain(consumer, 1)) == [f"by {number}"]
        elsewhere = shared(clients.connect(bridge.service_url), topic, f"s-{number}")
        assert texts(drain(elsewhere, number + 1)) == [f"by {each}" for each in range(number + 1)]


def test_a_bridge_is_drained_and_joins_again(
    member: MakeMember, clients: Clients, pulsar: PulsarCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the commands, while messages come due: nothing is lost or early, and what is stopped then has no clients."""
    first, second = member(), member()
    names = [f"persistent://public/default/drained-{uuid.uuid4().hex[:10]}-{number}" for number in range(4)]
    client = clients.connect(first.service_url)
    consumers = [shared(client, name) for name in names]
    producers = [clients.connect(pulsar.service_url).create_producer(name) for name in names]
    wait_until(lambda: sorted((len(owned(first)), len(owned(second)))) == [2, 2], "each has two", timeout=PATIENCE_S)
    due_ms = [now_ms() + 400 * number for number in range(20)]
    for number, producer in enumerate(producers):
        for each, at_ms in enumerate(due_ms):
            publish(producer, [f"{number}-{each}"], deliver_at=at_ms)
    command("drain", "--admin-url", first.web_url)
    assert "2 topic partitions are taken over by others" in capsys.readouterr().out
    assert (owned(first), len(owned(second))) == ([], 4)
    status, told = first.get("/admin/v2/delayed/drain")
    assert (status, told) == (200, {"draining": True, "left": 0})
    command("members", "--admin-url", second.web_url)
    assert capsys.readouterr().out.count("draining") == 1
    for number, consumer in enumerate(consumers):
        found = drain(consumer, len(due_ms))
        assert set(texts(found)) >= {f"{number}-{each}" for each in range(len(due_ms))}
        assert all(each.at_ms >= due_ms[int(each.text.partition("-")[2])] for each in found)
    command("join", "--admin-url", first.web_url)
    assert "the bridge owns 2 topic partitions" in capsys.readouterr().out
    alone = member(members_topic="off")
    with pytest.raises(SystemExit):
        command("drain", "--admin-url", alone.web_url)
    assert "members_topic is off" in capsys.readouterr().err


@pytest.mark.parametrize("private_pulsar", [{"keepAliveIntervalSeconds": "5"}], indirect=True)
def test_a_bridge_that_does_not_answer_stops_moves_only(
    member: MakeMember, clients: Clients, topic: str, private_pulsar: EmbeddedPulsar
) -> None:
    """Frozen, it has its topics until the broker drops it; then the other one has them."""
    first, second = member(broker=private_pulsar), member(broker=private_pulsar)
    consumer = shared(clients.connect(first.service_url), topic)
    producer = clients.connect(private_pulsar.service_url).create_producer(topic)
    publish(producer, ["before"])
    assert texts(drain(consumer, 1)) == ["before"]
    wait_until(lambda: second.topic(topic).get("standbyPosition") is not None, "the second one is ready")
    first.freeze()
    try:
        publish(producer, ["meanwhile"])
        silent = {"url": first.service_url, "webUrl": first.web_url, "draining": False}
        silent |= {"owned": None, "load": None, "clockOffsetMs": None}
        wait_until(lambda: silent in second.get("/admin/v2/delayed/members")[1]["members"], "it does not answer")
        found = admin(private_pulsar, "GET", f"{rest_path(topic)}/stats")["subscriptions"]["__delay-bridge"]
        assert found["activeConsumerName"] == first.service_url
        wait_until(lambda: second.topic(topic).get("role") == "owner", "the broker has dropped it", timeout=90)
        assert texts(drain(shared(clients.connect(second.service_url), topic), 1)) == ["meanwhile"]
    finally:
        first.thaw()
    wait_until(lambda: first.topic(topic).get("role") != "owner", "it knows that it is not the owner")
