"""The bridge lets go of topics that nobody is connected to: they can be deleted, and the broker cleans them up."""

import asyncio
import contextlib
import os
import urllib.error
import uuid
from typing import Any

import pytest

from bridge.broker.reader import READER_NAME_PREFIX, open_reader
from tests.bridge_process import BridgeProcess, now_ms
from tests.broker.conftest import BridgeFactory, InProcessFactory
from tests.broker.test_cursors import tracked_topic
from tests.clients import Clients, admin, assert_quiet, publish, receive, rest_path, shared
from tests.cluster import PulsarCluster
from tests.helpers import wait_until, wait_until_async
from tests.raw_client import raw_client
from tracker import EARLIEST

QUICK = {"let_go_after_s": 0.3, "maintenance_interval_s": 0.5}
LATER_MS = 1_500
HOUR_MS = 3_600_000


def deleted(broker: PulsarCluster, topic: str) -> bool:
    """Whether an unforced deletion was granted."""
    with contextlib.suppress(urllib.error.HTTPError):
        admin(broker, "DELETE", rest_path(topic))
        return True
    return False


def role(bridge: BridgeProcess, topic: str) -> str | None:
    return bridge.topic(topic).get("role")


def left(client: Any, topic: str, due: int) -> None:
    """Leave a delayed message behind, and go."""
    shared(client, topic)
    publish(client.create_producer(topic), ["later"], deliver_at=due)
    client.close()


def test_a_topic_can_be_deleted_after_all_clients_have_closed(
    bridge: BridgeProcess, clients: Clients, pulsar: PulsarCluster, topic: str
) -> None:
    client = clients.connect(bridge.service_url)
    consumer, producer = shared(client, topic), client.create_producer(topic)
    publish(producer, ["now"])
    publish(producer, ["later"], deliver_at=now_ms() + HOUR_MS)
    assert receive(consumer).text == "now"
    assert not deleted(pulsar, topic)
    consumer.close()
    assert not deleted(pulsar, topic)
    producer.close()
    wait_until(lambda: deleted(pulsar, topic), "deleted", timeout=20, interval=0.2)
    again = shared(client, topic)
    publish(client.create_producer(topic), ["new"])
    assert receive(again).text == "new"
    assert_quiet(again)
    assert bridge.topic(topic)["entries"] == 0, "what was pending is gone with the topic"


def test_of_two_bridges_both_let_go(
    private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, topic: str
) -> None:
    first, second = private_bridge(limits=QUICK), private_bridge(limits=QUICK)
    one = shared(clients.connect(first.service_url), topic)
    other = shared(clients.connect(second.service_url), topic, "other")
    wait_until(lambda: {role(first, topic), role(second, topic)} == {"owner", "standby"}, "both are there")
    one.close()
    other.close()
    wait_until(lambda: deleted(pulsar, topic), "deleted", timeout=20, interval=0.2)
    wait_until(lambda: not first.topic(topic) and not second.topic(topic), "forgotten", timeout=20)


def test_what_is_pending_is_delivered_when_somebody_comes_back(
    private_bridge: BridgeFactory, clients: Clients, topic: str
) -> None:
    bridge = private_bridge(limits=QUICK)
    due = now_ms() + LATER_MS
    left(clients.connect(bridge.service_url), topic, due)
    wait_until(lambda: role(bridge, topic) == "idle", "let go", timeout=20)
    assert bridge.topic(topic)["pending"] == 1, "it stands as it did"
    assert bridge.get(f"/admin/v2/delayed/{rest_path(topic)}/ready")[0] == 200
    consumer = shared(clients.connect(bridge.service_url), topic)
    received = receive(consumer)
    assert (received.text, received.at_ms >= due) == ("later", True)
    assert_quiet(consumer)


def test_who_publishes_past_the_bridge_is_noticed(
    private_bridge: BridgeFactory, clients: Clients, direct: Any, topic: str
) -> None:
    bridge = private_bridge(limits=QUICK)
    left(clients.connect(bridge.service_url), topic, now_ms() + HOUR_MS)
    wait_until(lambda: role(bridge, topic) == "idle", "let go", timeout=20)
    publish(direct.create_producer(topic), ["more"], deliver_at=now_ms() + HOUR_MS)
    wait_until(lambda: bridge.topic(topic)["entries"] == 2, "harvested", timeout=20)


def test_operators_have_a_topic_served_again(private_bridge: BridgeFactory, clients: Clients, topic: str) -> None:
    bridge = private_bridge(limits=QUICK)
    left(clients.connect(bridge.service_url), topic, now_ms() + HOUR_MS)
    wait_until(lambda: role(bridge, topic) == "idle", "let go", timeout=20)
    path = f"/admin/v2/delayed/{rest_path(topic)}/subscription/s/pending"
    (entry,) = bridge.get(path)[1]["entries"]
    assert bridge.ask("DELETE", f"{path}/{entry['position']}")[1] == {"outcome": "cancelled"}
    wait_until(lambda: role(bridge, topic) == "idle", "let go again", timeout=20)
    assert bridge.topic(topic)["pending"] == 0


def test_a_subscription_deleted_meanwhile_takes_the_bridges_own_along(
    private_bridge: BridgeFactory, clients: Clients, pulsar: PulsarCluster, topic: str
) -> None:
    bridge = private_bridge(limits=QUICK)
    left(clients.connect(bridge.service_url), topic, now_ms() + HOUR_MS)
    wait_until(lambda: role(bridge, topic) == "idle", "let go", timeout=20)
    admin(pulsar, "DELETE", f"{rest_path(topic)}/subscription/s")
    wait_until(lambda: admin(pulsar, "GET", f"{rest_path(topic)}/subscriptions") == [], "none is left", timeout=20)


@pytest.mark.skipif(os.environ.get("DELAY_BRIDGE_LONG") != "1", reason="the broker looks once a minute")
@pytest.mark.parametrize("mode", ["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"])
def test_inactive_topics_are_cleaned_up(
    bridge: BridgeProcess, clients: Clients, pulsar: PulsarCluster, mode: str
) -> None:
    namespace = f"public/inactive-{uuid.uuid4().hex[:8]}"
    admin(pulsar, "PUT", f"namespaces/{namespace}", {})
    policy = {"inactiveTopicDeleteMode": mode, "maxInactiveDurationSeconds": 1, "deleteWhileInactive": True}
    admin(pulsar, "POST", f"namespaces/{namespace}/inactiveTopicPolicies", policy)
    topic = f"persistent://{namespace}/t"
    client = clients.connect(bridge.service_url)
    consumer = shared(client, topic)
    publish(client.create_producer(topic), ["now"])
    assert receive(consumer).text == "now"
    if mode == "delete_when_no_subscriptions":
        consumer.unsubscribe()
    client.close()
    wait_until(lambda: admin(pulsar, "GET", f"persistent/{namespace}") == [], "gone", timeout=150, interval=1)


async def test_a_reader_that_nobody_waits_for_any_more_does_not_stay(
    bridge_here: InProcessFactory, pulsar: PulsarCluster, topic: str
) -> None:
    """It was given up while it was being opened, as by a seek: the broker would not delete the topic."""
    here = await bridge_here()
    client = await raw_client(f"pulsar://127.0.0.1:{here.port}")
    await client.produce(topic)
    await client.consume(topic)
    tracked = tracked_topic(here, topic)
    await wait_until_async(lambda: tracked.role == "owner", "the bridge owns the topic")

    async def readers() -> set[str]:
        stats = await asyncio.to_thread(admin, pulsar, "GET", f"{rest_path(topic)}/stats")
        return {name for name in stats["subscriptions"] if name.startswith(READER_NAME_PREFIX)}

    async def only(expected: set[str]) -> bool:
        return await readers() <= expected

    before = await readers()
    opening = [
        open_reader(tracked._ownership.connection, topic, EARLIEST, lambda _: None, lambda _: None) for _ in range(2)
    ]
    unwanted, wanted = [asyncio.ensure_future(each) for each in opening]
    await asyncio.sleep(0)
    unwanted.cancel()
    (await wanted).close()
    await wait_until_async(lambda: only(before), "no reader but those of before", timeout=3)
