"""What a real broker says of policies and consumers becomes warnings, in stats, overview and metrics."""

import uuid
from typing import Any

import pytest

from tests.bridge_process import BridgeProcess, now_ms
from tests.broker.conftest import BridgeFactory
from tests.broker.test_metrics import scrape
from tests.broker.test_steering import joined
from tests.clients import Clients, admin, publish, receive, rest_path, shared
from tests.cluster import PulsarCluster
from tests.helpers import wait_until

HOUR_MS = 3_600_000


@pytest.fixture
def namespace(pulsar: PulsarCluster) -> str:
    """One whose policies are nobody else's."""
    name = f"public/warned-{uuid.uuid4().hex[:8]}"
    admin(pulsar, "PUT", f"namespaces/{name}", {})
    return name


@pytest.fixture
def bridge(private_bridge: BridgeFactory) -> BridgeProcess:
    """It looks at the broker often."""
    quick = {"maintenance_interval_s": 1.0, "policies_kept_s": 1.0, "warnings_kept_ms": 200, "overdue_warning_ms": 500}
    return private_bridge(limits=quick)


def warned(bridge: BridgeProcess, topic: str) -> dict[str, Any]:
    """The warnings of a topic by code."""
    status, found = bridge.get(f"/admin/v2/delayed/{rest_path(topic)}/stats")
    return {each["code"]: each for each in found["warnings"]} if status == 200 else {}


def test_policies_that_do_not_go_with_delays(
    bridge: BridgeProcess, clients: Clients, pulsar: PulsarCluster, namespace: str
) -> None:
    topic = f"persistent://{namespace}/reminders"
    client = clients.connect(bridge.service_url)
    joined(bridge, client, topic)
    publish(client.create_producer(topic), ["later"], deliver_at=now_ms() + 2 * HOUR_MS)
    wait_until(lambda: bridge.topic(topic).get("entries") == 1, "the entry")
    assert warned(bridge, topic) == {}
    admin(pulsar, "POST", f"namespaces/{namespace}/messageTTL", 3_600)
    quota = {"limitTime": 600, "limitSize": -1, "policy": "producer_request_hold"}
    admin(pulsar, "POST", f"namespaces/{namespace}/backlogQuota?backlogQuotaType=message_age", quota)
    wait_until(lambda: set(warned(bridge, topic)) == {"message-ttl", "backlog-quota"}, "two warnings", timeout=20)
    assert "expire after 3600 s" in warned(bridge, topic)["message-ttl"]["text"]
    assert warned(bridge, topic)["message-ttl"]["severity"] == "critical"
    _, overview = bridge.get("/admin/v2/delayed/overview")
    assert [each["code"] for each in overview["warnings"] if each["topic"] == topic] == ["message-ttl", "backlog-quota"]
    assert "messages expire after 3600 s" in bridge.log(), "said in the log too"


def test_a_consumer_past_the_bridge(bridge: BridgeProcess, clients: Clients, direct: Any, topic: str) -> None:
    joined(bridge, clients.connect(bridge.service_url), topic)
    publish(direct.create_producer(topic), ["later"], deliver_at=now_ms() + HOUR_MS)
    wait_until(lambda: scrape(bridge, topic).get(("unbridged_consumers", "")) == 0, "none", timeout=20)
    past = shared(direct, topic, consumer_name="stray")
    wait_until(lambda: "unbridged-consumers" in warned(bridge, topic), "a warning", timeout=20)
    assert "stray" in warned(bridge, topic)["unbridged-consumers"]["text"]
    assert warned(bridge, topic)["unbridged-consumers"]["subscription"] == "s"
    wait_until(lambda: scrape(bridge, topic)["unbridged_consumers", ""] == 1, "the metric", timeout=20)
    past.close()
    wait_until(lambda: warned(bridge, topic) == {}, "no warning any more", timeout=20)


def test_clocks_are_compared(bridge: BridgeProcess, clients: Clients, topic: str) -> None:
    """They are the same machine's."""
    joined(bridge, clients.connect(bridge.service_url), topic)
    assert abs(bridge.get("/admin/v2/delayed/overview")[1]["clockOffsetMs"]) < 500


def test_what_is_late_is_not_all_well(bridge: BridgeProcess, clients: Clients, topic: str) -> None:
    client = clients.connect(bridge.service_url)
    consumer, producer = shared(client, topic, receiver_queue_size=1), client.create_producer(topic)
    due = now_ms() + 300
    publish(producer, ["0", "1", "2", "3"], deliver_at=due)
    wait_until(lambda: "no-permits" in warned(bridge, topic), "nobody asks for more", timeout=20)
    assert "none of its 1 consumers has permits" in warned(bridge, topic)["no-permits"]["text"]
    consumer.close()
    wait_until(lambda: "no-consumers" in warned(bridge, topic), "nobody is there", timeout=20)
    _, overview = bridge.get("/admin/v2/delayed/overview")
    assert [each["code"] for each in overview["warnings"] if each["topic"] == topic] == ["no-consumers"]
    wait_until(lambda: now_ms() > due + 1_500, "more than a second late")
    again = shared(client, topic)
    for _ in range(4):
        receive(again)
    wait_until(lambda: set(warned(bridge, topic)) == {"late"}, "late lately", timeout=20)
    assert "mostly for want of permits" in warned(bridge, topic)["late"]["text"]


def test_next_due_is_the_time_of_an_entry(bridge: BridgeProcess, clients: Clients, topic: str) -> None:
    client = clients.connect(bridge.service_url)
    _, producer = shared(client, topic), client.create_producer(topic)
    due = now_ms() + 9 * HOUR_MS
    (cancelled,) = publish(producer, ["first"], deliver_at=due - HOUR_MS)
    publish(producer, ["then"], deliver_at=due)
    wait_until(lambda: bridge.topic(topic).get("entries") == 2, "harvested")
    # An index knows of nobody who waits before the cursor of a subscription was read.
    wait_until(lambda: bridge.topic(topic)["earliestDeliverAt"] == due - HOUR_MS, "the first one is next")
    at = f"{cancelled.ledger_id()}:{cancelled.entry_id()}"
    path = f"/admin/v2/delayed/{rest_path(topic)}/subscription/s/pending/{at}"
    assert bridge.ask("DELETE", path)[1] == {"outcome": "cancelled"}
    assert bridge.topic(topic)["earliestDeliverAt"] == due
    assert scrape(bridge, topic)["earliest_deliver_at_seconds", ""] == due / 1000


def test_a_burst_is_warned_of_and_a_trickle_is_not(bridge: BridgeProcess, clients: Clients, topic: str) -> None:
    """Nobody knows what the consumer takes: it has shown nothing yet."""
    client = clients.connect(bridge.service_url)
    _, producer = shared(client, topic), client.create_producer(topic)
    due = (now_ms() // 1000 + 2 * 3_600) * 1000
    publish(producer, [str(number) for number in range(30)], deliver_at=due)
    wait_until(lambda: bridge.topic(topic).get("entries") == 30, "harvested")
    assert warned(bridge, topic) == {}
    for _ in range(2):
        publish(producer, [str(number) for number in range(750)], deliver_at=due + HOUR_MS)
    wait_until(lambda: "storm" in warned(bridge, topic), "the storm", timeout=20)
    assert "1,500 messages a second come due" in warned(bridge, topic)["storm"]["text"]
    assert "not known" in warned(bridge, topic)["storm"]["text"]
