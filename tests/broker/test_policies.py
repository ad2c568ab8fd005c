"""Policies of the broker that concern the bridge itself: where they leave it no place, the broker dispatches."""

import uuid
from typing import Any

import pytest

from tests.bridge_process import BridgeProcess, now_ms
from tests.broker.conftest import BridgeFactory
from tests.broker.test_warnings import warned
from tests.clients import Clients, admin, assert_quiet, publish, receive, rest_path, shared
from tests.cluster import PulsarCluster
from tests.helpers import wait_until

LATER_MS = 1_500
TICK_MS = 1_000
"""The broker's own tracker is early by up to so much."""


@pytest.fixture
def new_topic(pulsar: PulsarCluster) -> str:
    """In a namespace whose policies are nobody else's."""
    namespace = f"public/policies-{uuid.uuid4().hex[:8]}"
    admin(pulsar, "PUT", f"namespaces/{namespace}", {})
    topic = f"persistent://{namespace}/t"
    admin(pulsar, "PUT", rest_path(topic))
    return topic


@pytest.fixture
def often(private_bridge: BridgeFactory) -> BridgeProcess:
    """A bridge that looks at the broker often."""
    return private_bridge(limits={"maintenance_interval_s": 0.5, "warnings_kept_ms": 200})


def policy(broker: PulsarCluster, topic: str, name: str, value: object) -> None:
    namespace = rest_path(topic).removeprefix("persistent/").rpartition("/")[0]
    admin(broker, "POST", f"namespaces/{namespace}/{name}", value)


def send_six(client: Any, topic: str) -> list[str]:
    """Three messages at once, three later."""
    producer = client.create_producer(topic)
    publish(producer, ["0", "1", "2"])
    publish(producer, ["3", "4", "5"], deliver_at=now_ms() + LATER_MS)
    return [str(number) for number in range(6)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxSubscriptionsPerTopic", 1),
        ("subscriptionTypesEnabled", ["Shared"]),
        ("subscriptionTypesEnabled", ["Shared", "Failover"]),
        ("maxConsumersPerTopic", 1),
        ("maxConsumersPerTopic", 2),
    ],
)
def test_where_policies_leave_the_bridge_no_place_the_broker_dispatches(
    bridge: BridgeProcess, client: Any, pulsar: PulsarCluster, new_topic: str, name: str, value: object
) -> None:
    policy(pulsar, new_topic, name, value)
    consumer = shared(client, new_topic)
    sent = send_six(client, new_topic)
    assert sorted({receive(consumer).text for _ in sent}) == sent
    assert_quiet(consumer)
    wait_until(lambda: "passed-through" in warned(bridge, new_topic), "a warning")
    assert bridge.topic(new_topic)["role"] == "passed-through"


def test_a_subscription_of_its_own_where_they_do_not_come_into_being_by_themselves(
    bridge: BridgeProcess, client: Any, pulsar: PulsarCluster, new_topic: str
) -> None:
    policy(pulsar, new_topic, "autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    admin(pulsar, "PUT", f"{rest_path(new_topic)}/subscription/s")
    consumer = shared(client, new_topic)
    sent = send_six(client, new_topic)
    assert sorted({receive(consumer).text for _ in sent}) == sent
    assert bridge.topic(new_topic)["role"] == "owner"


def test_the_bridge_dispatches_again_once_it_is_let(
    bridge: BridgeProcess, client: Any, pulsar: PulsarCluster, new_topic: str
) -> None:
    policy(pulsar, new_topic, "subscriptionTypesEnabled", ["Shared"])
    consumer = shared(client, new_topic)
    producer = client.create_producer(new_topic)
    publish(producer, ["first", "unacked"])
    assert receive(consumer).text == "first"
    assert receive(consumer, ack=False).text == "unacked"
    # Clients send acks late: one on its way when its consumer is closed is lost, on the bare broker too.
    stats = f"{rest_path(new_topic)}/internalStats"
    wait_until(
        lambda: admin(pulsar, "GET", stats)["cursors"]["s"]["markDeletePosition"].endswith(":0"), "the ack is there"
    )
    policy(pulsar, new_topic, "subscriptionTypesEnabled", ["Shared", "Failover", "Exclusive"])
    wait_until(lambda: bridge.topic(new_topic).get("role") == "owner", "the bridge is the owner", timeout=20)
    assert receive(consumer).text == "unacked", "not acked: it comes again, from the bridge"
    due = now_ms() + LATER_MS
    publish(producer, ["later"], deliver_at=due)
    assert receive(consumer).at_ms >= due
    assert_quiet(consumer)
    assert warned(bridge, new_topic) == {}


def test_readers_that_are_refused_end_in_the_brokers_dispatch(
    private_bridge: BridgeFactory, clients: Clients, direct: Any, pulsar: PulsarCluster, new_topic: str
) -> None:
    """There is room for candidate and harvester, and none for who has to read what was there before."""
    bridge = private_bridge(limits={"reading_refused_s": 0.5})
    admin(pulsar, "PUT", f"{rest_path(new_topic)}/subscription/s")
    policy(pulsar, new_topic, "maxConsumersPerTopic", 3)
    publish(direct.create_producer(new_topic), ["0", "1", "2"])
    consumer = shared(clients.connect(bridge.service_url), new_topic)
    assert [receive(consumer).text for _ in range(3)] == ["0", "1", "2"]
    assert bridge.topic(new_topic)["role"] == "passed-through"


def test_a_bridge_that_is_refused_sends_clients_to_the_owner(
    private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, new_topic: str
) -> None:
    """Of two bridges only one may connect: the other one must not have the broker dispatch beside it."""
    policy(pulsar, new_topic, "maxConsumersPerSubscription", 1)
    owner = private_bridge()
    first = shared(clients.connect(owner.service_url), new_topic, "other")
    wait_until(lambda: owner.topic(new_topic).get("role") == "owner", "an owner")
    other = private_bridge()
    client = clients.connect(other.service_url)
    consumer = shared(client, new_topic)
    due = now_ms() + LATER_MS
    publish(client.create_producer(new_topic), ["later"], deliver_at=due)
    assert receive(consumer).at_ms >= due
    assert receive(first).at_ms >= due
    _, stats = owner.get(f"/admin/v2/delayed/{rest_path(new_topic)}/stats")
    assert len(stats["subscriptions"]["s"]["consumers"]) == 1, "it came to the owner"


@pytest.mark.parametrize("level", ["namespace", "topic"])
def test_delayed_delivery_that_is_off_is_off(
    often: BridgeProcess, clients: Clients, pulsar: PulsarCluster, new_topic: str, level: str
) -> None:
    bridge = often

    def switch(active: bool) -> None:
        value = {"active": active, "tickTime": 1000}
        if level == "namespace":
            policy(pulsar, new_topic, "delayedDelivery", value)
        else:
            admin(pulsar, "POST", f"{rest_path(new_topic)}/delayedDelivery", value)
        off = "delayed-delivery-off"
        wait_until(lambda: (off in warned(bridge, new_topic)) is not active, "noticed", timeout=20)

    client = clients.connect(bridge.service_url)
    consumer, producer = shared(client, new_topic), client.create_producer(new_topic)
    hour, day = now_ms() + 3_600_000, now_ms() + 86_400_000
    publish(producer, ["known"], deliver_at=day)
    assert_quiet(consumer)
    switch(active=False)
    assert receive(consumer).text == "known", "held until then, and by the broker until it reads its topic again"
    publish(producer, ["sooner"], deliver_at=hour)
    assert receive(consumer, ack=False).text == "sooner"
    publish(producer, ["later"], deliver_at=2 * day)
    assert receive(consumer).text == "later"
    consumer.redeliver_unacknowledged_messages()
    again = receive(consumer)
    assert (again.text, again.redelivery_count) == ("sooner", 1)
    switch(active=True)
    publish(producer, ["held"], deliver_at=hour)
    due = now_ms() + LATER_MS
    publish(producer, ["soon"], deliver_at=due)
    soon = receive(consumer)
    assert (soon.text, soon.at_ms >= due) == ("soon", True)
    assert_quiet(consumer)
    assert bridge.topic(new_topic)["early"] == 0, "nothing was early: it was not delayed"


def test_redelivery_where_there_is_room_for_one_reader(
    bridge: BridgeProcess, client: Any, direct: Any, pulsar: PulsarCluster, new_topic: str
) -> None:
    """What lies in several ledgers is read by several readers at once only where the policy lets them."""
    admin(pulsar, "PUT", f"{rest_path(new_topic)}/subscription/s")
    policy(pulsar, new_topic, "maxConsumersPerTopic", 4)  # candidate, harvester, consumer, and one
    sent = [str(number) for number in range(6)]
    producer = direct.create_producer(new_topic)
    for text in sent:
        publish(producer, [text])
        admin(pulsar, "PUT", f"{rest_path(new_topic)}/unload")
    consumer = shared(client, new_topic)
    for received in [receive(consumer, ack=False) for _ in sent]:
        consumer.negative_acknowledge(received.message)
    assert [receive(consumer).text for _ in sent] == sent
    assert bridge.topic(new_topic)["role"] == "owner"
