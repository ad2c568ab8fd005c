"""A topic's page on a bridge that is not its owner, and what becomes of it when the owner goes."""

from collections.abc import Callable

import pytest

from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from bridge.web.pages.display import topic_page
from tests.bridge_process import BridgeProcess, now_ms
from tests.browser.looking import HOUR_MS, Looking
from tests.clients import Clients, admin, publish, rest_path, shared, some_topic
from tests.cluster import PulsarCluster
from tests.helpers import wait_until


def elected(
    pulsar: PulsarCluster, bridges: list[BridgeProcess], topic: str
) -> tuple[BridgeProcess, BridgeProcess] | None:
    """Owner and standby, once both stand for election and the broker's choice has come to both."""
    subscription = admin(pulsar, "GET", f"{rest_path(topic)}/stats")["subscriptions"].get(HIDDEN_SUBSCRIPTION, {})
    if {each["consumerName"] for each in subscription.get("consumers", [])} != {each.service_url for each in bridges}:
        return None
    for owner, standby in (bridges, bridges[::-1]):
        roles = owner.topic(topic).get("role"), standby.topic(topic).get("role")
        if subscription["activeConsumerName"] == owner.service_url and roles == ("owner", "standby"):
            return owner, standby
    return None


def test_the_page_leads_to_the_owner_and_changes_with_it(
    pulsar: PulsarCluster,
    tmp_path_factory: pytest.TempPathFactory,
    clients: Clients,
    open_window: Callable[..., Looking],
) -> None:
    bridges = [BridgeProcess(pulsar, tmp_path_factory.mktemp("one-of-two")).start() for _ in range(2)]
    topic = some_topic("two")
    try:
        for number, each in enumerate(bridges):
            shared(clients.connect(each.service_url), topic, f"s{number}")
        found = wait_until(lambda: elected(pulsar, bridges, topic), "the bridges agree with the broker", timeout=20)
        assert found is not None
        owner, standby = found
        producer = clients.connect(owner.service_url).create_producer(topic)
        publish(producer, ["a", "b"], deliver_at=now_ms() + HOUR_MS)
        wait_until(
            lambda: standby.topic(topic)["ownerWebUrl"] == owner.web_url, "the standby knows of the owner's page"
        )

        window = open_window(standby)
        window.open(topic_page(topic))
        assert "another bridge dispatches it" in window.text(".who")
        assert not window.page.locator("#chart").count()
        window.keep("topic-standby")
        link = window.page.get_by_role("link", name="Open this page there")
        assert link.get_attribute("href") == owner.web_url + topic_page(topic)
        assert not window.complaints

        owner.stop()
        wait_until(lambda: window.page.locator("#chart").count(), "the page of an owner", timeout=30)
        window.see(".who", "this bridge dispatches it")
    finally:
        for each in bridges:
            each.stop()
