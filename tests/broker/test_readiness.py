"""A bridge that cannot serve says so, of itself and of each topic, and why."""

from typing import Any

from bridge.embedded.ports import free_ports
from bridge.web.pages.display import topic_page
from tests.broker.conftest import BridgeFactory
from tests.broker.test_metrics import scrape
from tests.clients import Clients, rest_path, shared
from tests.helpers import wait_until


def test_a_wrong_admin_url_is_told_everywhere(private_bridge: BridgeFactory, clients: Clients, topic: str) -> None:
    """Consumers subscribe, and nothing can come to them."""
    [nobodys] = free_ports(1)
    web_url = f"http://127.0.0.1:{nobodys}"
    bridge = private_bridge(ready=False, broker_web_url=web_url)

    def ready() -> tuple[int, Any]:
        return bridge.get("/readyz")

    wait_until(lambda: web_url in ready()[1].get("reason", ""), "not ready")
    assert ready()[0] == 503
    shared(clients.connect(bridge.service_url), topic)
    wait_until(lambda: bridge.topic(topic).get("reason"), "the topic's reason")
    # It tries again and again; the reason is told at any time in between.
    for _ in range(50):
        assert str(nobodys) in bridge.topic(topic)["reason"]
    status, answer = bridge.get(f"/admin/v2/delayed/{rest_path(topic)}/ready")
    assert (status, str(nobodys) in answer["reason"]) == (503, True)
    assert scrape(bridge, topic)["not_served", ""] == 1
    _, overview = bridge.get("/admin/v2/delayed/overview")
    assert {(each["code"], each["severity"], each["topic"]) for each in overview["warnings"]} >= {
        ("not-ready", "critical", None),
        ("not-served", "critical", topic),
    }
    assert overview["ready"] is False
    for page in ("/", topic_page(topic)):
        assert f"not served: GET /admin/v2/{rest_path(topic)}/" in bridge.text(page), page
    assert "topic is not served" in bridge.log()


def test_a_topic_that_is_served_is_ready(private_bridge: BridgeFactory, clients: Clients, topic: str) -> None:
    bridge = private_bridge()
    path = f"/admin/v2/delayed/{rest_path(topic)}/ready"
    assert bridge.get(path)[0] == 404
    shared(clients.connect(bridge.service_url), topic)
    wait_until(lambda: bridge.get(path)[0] == 200, "ready")
    assert bridge.get(path)[1] == {"topic": topic, "role": "owner", "owner": bridge.service_url}
    assert scrape(bridge, topic)["not_served", ""] == 0
