"""A bridge that was the owner and does not know better: it hands out nothing that its successor has handed out."""

import os
import signal

import pytest

from bridge.embedded import EmbeddedPulsar
from tests.bridge_process import now_ms
from tests.broker.conftest import BridgeFactory
from tests.clients import Clients, drain, drain_all, publish, shared, texts
from tests.helpers import wait_until

QUICK = [{"keepAliveIntervalSeconds": "4"}]
"""A broker drops who is silent for one or two of these."""
LIMITS = {"confirm_every_s": 0.5, "confirmed_s": 2.0}


@pytest.mark.parametrize("private_pulsar", QUICK, indirect=True)
def test_an_owner_that_was_frozen(
    private_bridge: BridgeFactory, private_pulsar: EmbeddedPulsar, clients: Clients, topic: str
) -> None:
    """What came due meanwhile was delivered by the next owner; thawed, the former one does not deliver it again."""
    first = private_bridge(broker=private_pulsar, limits=LIMITS)
    ghosts = shared(clients.connect(first.service_url), topic)
    second = private_bridge(broker=private_pulsar, limits=LIMITS)
    producer = clients.connect(private_pulsar.service_url).create_producer(topic)
    publish(producer, ["before"])
    assert texts(drain(ghosts, 1)) == ["before"]
    wait_until(lambda: first.stats(topic)["subscriptions"]["s"]["acked"] == 1, "the broker has its ack")
    publish(producer, [f"due-{number}" for number in range(50)], deliver_at=now_ms() + 3_000)
    first.freeze()
    try:
        others = shared(clients.connect(second.service_url), topic)
        wait_until(lambda: second.topic(topic).get("role") == "owner", "the second one is the owner", timeout=40.0)
        received = drain(others, 50)
        assert sorted(texts(received)) == sorted(f"due-{number}" for number in range(50))
        publish(producer, [f"later-{number}" for number in range(50)], deliver_at=now_ms() + 1_000)
        drain(others, 50)
    finally:
        first.thaw()
    first.wait_for_log("no longer owner of topic", timeout=30.0)
    assert drain_all(ghosts, quiet_ms=3_000) == []
    assert drain_all(others) == []
    # Its consumer is one of the next owner's now.
    publish(producer, [f"after-{number}" for number in range(20)])
    shared_out = texts(drain_all(others)) + texts(drain_all(ghosts))
    assert sorted(shared_out) == sorted(f"after-{number}" for number in range(20))


@pytest.mark.parametrize("private_pulsar", QUICK, indirect=True)
def test_a_broker_that_is_frozen_holds_dispatch(
    private_bridge: BridgeFactory, private_pulsar: EmbeddedPulsar, clients: Clients, topic: str
) -> None:
    """The bridge cannot know whether it is the owner still; it says so, and goes on when the broker does."""
    bridge = private_bridge(broker=private_pulsar, limits=LIMITS)
    consumer = shared(clients.connect(bridge.service_url), topic)
    publish(clients.connect(private_pulsar.service_url).create_producer(topic), ["due"], deliver_at=now_ms() + 3_500)
    wait_until(lambda: bridge.topic(topic).get("pending") == 1, "it is pending")
    assert private_pulsar.pid is not None
    os.kill(private_pulsar.pid, signal.SIGSTOP)
    try:
        bridge.wait_for_log("dispatch is held", timeout=20.0)
        warnings = bridge.get("/admin/v2/delayed/overview")[1]["warnings"]
        assert [each["code"] for each in warnings if "does not answer" in each["text"]] == ["not-dispatched"]
        assert drain_all(consumer, quiet_ms=3_000) == []
    finally:
        os.kill(private_pulsar.pid, signal.SIGCONT)
    assert texts(drain(consumer, 1, timeout_ms=30_000)) == ["due"]
