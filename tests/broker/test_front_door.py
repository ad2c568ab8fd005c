"""The bridge as the HTTP interface of a real cluster: clients by http, `pulsar-admin`, and who may what."""

import json
import re
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar as official
import pytest

from tests.bridge_process import BridgeProcess, Broker, now_ms
from tests.clients import Clients, admin, drain, publish, receive, rest_path, shared, texts
from tests.cluster import PulsarCluster
from tests.helpers import wait_until
from tests.java_tools import Tools
from tests.secured import NAMESPACE, ROLES, TENANT, forged_token_of, some_topic_of, token_of
from tests.two_brokers import TwoBrokers


@pytest.fixture(scope="module")
def door(pulsar: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeProcess]:
    """A bridge that is all of the front door."""
    process = BridgeProcess(pulsar, tmp_path_factory.mktemp("door"), front_door="all").start()
    yield process
    process.stop()


def pulsar_admin(tools: Tools, web_url: str, *arguments: str) -> str:
    """What it prints; it has to succeed."""
    return tools.run("pulsar-admin", "--admin-url", web_url, *arguments)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def ask(
    url: str, method: str = "GET", token: str | None = None, body: object = None, **headers: str
) -> tuple[int, str, dict[str, str]]:
    """Status, body and headers; redirects are answers."""
    request = urllib.request.Request(url, method=method, headers={k.replace("_", "-"): v for k, v in headers.items()})
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=30) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), dict(error.headers)


# -- clients whose service URL is http


def test_a_client_with_an_http_service_url(bridge: BridgeProcess, clients: Clients, topic: str) -> None:
    """By default; its messages are delayed by the bridge, which has them only if the client came to it."""
    client = clients.connect(bridge.web_url)
    consumer, at = shared(client, topic), now_ms() + 2_000
    publish(client.create_producer(topic), ["delayed"], deliver_at=at)
    publish(client.create_producer(topic), ["now"])
    assert receive(consumer).text == "now"
    wait_until(lambda: bridge.stats(topic)["subscriptions"].get("s", {}).get("pending") == 1, "the bridge has it")
    delayed = receive(consumer)
    assert (delayed.text, delayed.at_ms >= at) == ("delayed", True)


def test_partitioned_topics_and_patterns_by_http(
    bridge: BridgeProcess, pulsar: Broker, clients: Clients, topic: str
) -> None:
    admin(pulsar, "PUT", f"{rest_path(topic)}/partitions", 2)
    client = clients.connect(bridge.web_url)
    publish(client.create_producer(topic), map(str, range(10)), deliver_at=now_ms() + 300)
    of_all = shared(client, topic, "all")
    pattern: Any = re.compile(re.escape(topic) + ".*")
    by_pattern = shared(client, pattern, "pattern")
    for consumer in (of_all, by_pattern):
        assert sorted(texts(drain(consumer, 10))) == [str(number) for number in range(10)]
    for number in range(2):
        assert set(bridge.stats(f"{topic}-partition-{number}")["subscriptions"]) == {"all", "pattern"}


def test_schemas_and_topics_that_are_not_tracked_by_http(bridge: BridgeProcess, clients: Clients, topic: str) -> None:
    client, schema = clients.connect(bridge.web_url), official.schema.StringSchema()
    for name in (topic, topic.replace("persistent", "non-persistent", 1)):
        consumer = client.subscribe(name, "s", schema=schema)
        client.create_producer(name, schema=schema).send("text")
        assert consumer.receive(5_000).value() == "text"


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_a_lookup_names_the_bridge(bridge: BridgeProcess, topic: str, domain: str) -> None:
    name = rest_path(topic.replace("persistent", domain, 1))
    for query in ("", "?authoritative=true", "?listenerName="):
        status, text, _ = ask(f"{bridge.web_url}/lookup/v2/topic/{name}{query}")
        told = {"brokerUrl": bridge.service_url, "nativeUrl": bridge.service_url, "httpUrl": bridge.web_url}
        assert (status, json.loads(text)) == (200, told | {"brokerUrlSsl": ""})


def test_what_the_broker_refuses_is_refused(bridge: BridgeProcess, pulsar: Broker) -> None:
    """A listener that there is not, a namespace that there is not."""
    lookup = "/lookup/v2/topic/persistent/public"
    for path in (f"{lookup}/default/t?listenerName=odd", f"{lookup}/odd/t"):
        status, text, _ = ask(bridge.web_url + path)
        assert (status, text) == ask(pulsar.web_url + path)[:2]
        assert status >= 400
    with_header = ask(f"{bridge.web_url}{lookup}/default/t", X_Pulsar_ListenerName="odd")
    assert with_header[:2] == ask(f"{pulsar.web_url}{lookup}/default/t", X_Pulsar_ListenerName="odd")[:2]
    assert with_header[0] >= 400


def test_by_default_there_is_no_more(bridge: BridgeProcess) -> None:
    assert ask(f"{bridge.web_url}/admin/v2/tenants")[0] == 404


# -- the admin interface


def test_pulsar_admin(door: BridgeProcess, pulsar: Broker, tools: Tools, topic: str) -> None:
    """Creates, lists and sets at the bridge as at the broker."""
    namespace = f"public/n-{uuid.uuid4().hex[:8]}"
    mine = topic.replace("public/default", namespace)
    assert ask(f"{door.web_url}/admin/v2/namespaces/{namespace}", "PUT")[0] == 204
    pulsar_admin(tools, door.web_url, "topics", "create-partitioned-topic", "-p", "2", mine)
    listed = pulsar_admin(tools, door.web_url, "topics", "list", namespace).split()
    assert sorted(listed) == [f"{mine}-partition-{number}" for number in range(2)]
    pulsar_admin(tools, door.web_url, "namespaces", "set-message-ttl", "-ttl", "77", namespace)
    assert admin(pulsar, "GET", f"namespaces/{namespace}/messageTTL") == 77


@pytest.mark.parametrize("name", ["a%3Fb%20c", "a%25c7b", "a%C3%A4b", "a%2Fb"])
def test_names_that_are_escaped(door: BridgeProcess, pulsar: Broker, name: str) -> None:
    """The broker leaves names with slashes out of its lists."""
    name = f"{name}-{uuid.uuid4().hex[:8]}"
    path = f"/admin/v2/persistent/public/default/{name}"
    assert ask(door.web_url + path, "PUT")[0] == 204
    assert ask(f"{pulsar.web_url}{path}/stats")[0] == ask(f"{door.web_url}{path}/stats")[0] == 200
    everything = "/admin/v2/persistent/public/default"
    for where in (pulsar.web_url, door.web_url):
        listed = json.loads(ask(where + everything)[1])
        assert (f"persistent://public/default/{urllib.parse.unquote(name)}" in listed) == ("%2F" not in name)
    assert ask(f"{door.web_url}{path}", "DELETE")[0] == 204


CALLS = (
    ("GET", "/admin/v2/tenants", None),
    ("GET", f"/admin/v2/tenants/{TENANT}", None),
    ("PUT", f"/admin/v2/tenants/{TENANT}-other", {"adminRoles": [], "allowedClusters": ["standalone"]}),
    ("GET", "/admin/v2/brokers/version", None),
    ("GET", "/admin/v2/brokers/configuration/runtime", None),
    ("GET", f"/admin/v2/namespaces/{NAMESPACE}", None),
    ("GET", f"/admin/v2/namespaces/{NAMESPACE}/permissions", None),
    ("POST", f"/admin/v2/namespaces/{NAMESPACE}/messageTTL", 1_000),
    ("GET", f"/admin/v2/namespaces/{NAMESPACE}/topics", None),
    ("GET", "/admin/v2/persistent/{topic}/stats", None),
    ("GET", "/admin/v2/persistent/{topic}/internalStats", None),
    ("GET", "/admin/v2/persistent/{topic}/subscriptions", None),
    ("GET", "/admin/v2/persistent/{topic}/partitions", None),
    ("PUT", "/admin/v2/persistent/{topic}/subscription/made", None),
    ("POST", "/admin/v2/persistent/{topic}/subscription/made/skip_all", None),
    ("GET", "/admin/v2/persistent/{topic}/subscription/made/position/1", None),
    ("DELETE", "/admin/v2/persistent/{topic}/subscription/made", None),
    ("GET", "/admin/v2/schemas/{topic}/schema", None),
    ("GET", "/lookup/v2/topic/persistent/{topic}", None),
    ("DELETE", "/admin/v2/persistent/{topic}", None),
)


def test_everybody_may_what_he_may_at_the_broker(secured: PulsarCluster, tmp_path: Path) -> None:
    """Though the bridge's own token is a super user's. Each role has a topic of its own in front and one behind."""
    bridge = BridgeProcess(secured, tmp_path, broker_token=token_of("admin"), front_door="all").start()
    try:
        tokens = {**{role: token_of(role) for role in ROLES}, "nobody's": None, "forged": forged_token_of("admin")}
        for who, token in tokens.items():
            found = {}
            for where in (secured.web_url, bridge.web_url):
                topic = some_topic_of(NAMESPACE).removeprefix("persistent://")
                assert ask(f"{secured.web_url}/admin/v2/persistent/{topic}", "PUT", token_of("admin"))[0] == 204
                found[where] = [
                    (method, path, ask(where + path.format(topic=topic), method, token, body)[0])
                    for method, path, body in CALLS
                ]
                ask(f"{secured.web_url}/admin/v2/tenants/{TENANT}-other", "DELETE", token_of("admin"))
            assert found[bridge.web_url] == found[secured.web_url], who
        assert token_of("admin") not in bridge.log()
    finally:
        bridge.stop()
        ask(f"{secured.web_url}/admin/v2/namespaces/{NAMESPACE}/messageTTL", "DELETE", token_of("admin"))


def test_clients_by_http_with_tokens(secured: PulsarCluster, tmp_path: Path, clients: Clients) -> None:
    """The lookup is asked with the client's token."""
    bridge = BridgeProcess(secured, tmp_path, broker_token=token_of("bridge")).start()
    try:
        topic = some_topic_of(NAMESPACE)

        def connected(role: str) -> Any:
            token = official.AuthenticationToken(token_of(role))
            return clients.connect(bridge.web_url, authentication=token, operation_timeout_seconds=5)

        consumer = shared(connected("consumer"), topic)
        publish(connected("producer").create_producer(topic), ["a"])
        assert receive(consumer).text == "a"
        with pytest.raises(official.PulsarException):
            shared(connected("nobody"), topic, "other")
    finally:
        bridge.stop()


# -- two brokers


def test_topics_of_both_brokers(two_brokers: TwoBrokers, tmp_path: Path, clients: Clients) -> None:
    """The bridge knows the first one only, and the caller sees neither."""
    bridge = BridgeProcess(two_brokers, tmp_path, front_door="all").start()
    try:
        client = clients.connect(bridge.web_url)
        for number, broker in enumerate(two_brokers.brokers):
            topic = two_brokers.topic_on(broker, f"door-{number}")
            consumer = shared(client, topic)
            publish(client.create_producer(topic), ["a"], deliver_at=now_ms() + 300)
            assert receive(consumer).text == "a"
            path = rest_path(topic)
            status, text, headers = ask(f"{bridge.web_url}/lookup/v2/topic/{path}")
            assert (status, json.loads(text)["brokerUrl"]) == (200, bridge.service_url)
            status, text, headers = ask(f"{bridge.web_url}/admin/v2/{path}/stats")
            assert (status, "Location" in headers) == (200, False)
            assert json.loads(text)["ownerBroker"] == broker.web_url.removeprefix("http://")
            ttl = f"{bridge.web_url}/admin/v2/{path}/subscription/made"
            assert ask(ttl, "PUT", body={"ledgerId": -1, "entryId": -1})[0] == 204
            assert "made" in admin(broker, "GET", f"{path}/subscriptions")
    finally:
        bridge.stop()


# -- statistics


OUT = ("msgOutCounter", "bytesOutCounter")
LATER_MS = 600_000


def stats_at(web_url: str, topic: str, what: str = "stats", query: str = "") -> tuple[dict[str, Any], str]:
    """The answer, and the remark on it."""
    status, text, headers = ask(f"{web_url}/admin/v2/{rest_path(topic)}/{what}{query}")
    assert status == 200, text
    return dict(json.loads(text)), headers.get("X-Delay-Bridge-Stats", "")


def consumed_in_part(door: BridgeProcess, clients: Clients, topic: str) -> Any:
    """Five messages for later, six for now, two of these acked by one of two consumers that hold three each."""
    client = clients.connect(door.service_url)
    first, second = (shared(client, topic, receiver_queue_size=3, consumer_name=name) for name in ("one", "two"))
    producer = client.create_producer(topic)
    publish(producer, [f"later {number}" for number in range(5)], deliver_at=now_ms() + LATER_MS)
    publish(producer, [f"now {number}" for number in range(6)])
    drain(first, 2)
    return first, second


def assert_true(told: dict[str, Any]) -> dict[str, Any]:
    """What holds after `consumed_in_part`; returns the subscription."""
    assert set(told["subscriptions"]) == {"s"}
    s: dict[str, Any] = told["subscriptions"]["s"]
    assert s["type"] == "Shared"
    assert (s["msgBacklog"], s["msgDelayed"], s["msgBacklogNoDelayed"], s["unackedMessages"]) == (9, 5, 4, 4)
    assert s["msgOutCounter"] == sum(each["msgOutCounter"] for each in s["consumers"]) == 6
    assert [told[name] for name in OUT] == [s[name] for name in OUT]
    assert 0 <= now_ms() - s["lastConsumedTimestamp"] < 60_000
    assert sum(each["unackedMessages"] for each in s["consumers"]) == 4
    assert {each["consumerName"] for each in s["consumers"]} == {"one", "two"}
    return s


def filled_once_acked(door: BridgeProcess, topic: str, what: str = "stats") -> dict[str, Any]:
    """The statistics once all acks are in them, and what was published before a bridge was there has been read."""

    def told() -> dict[str, Any] | None:
        found, remark = stats_at(door.web_url, topic, what)
        return found if remark == "filled" and found["subscriptions"]["s"]["msgBacklog"] == 9 else None

    found = wait_until(told, "the acks are there")
    assert found is not None
    return found


def test_statistics_are_true(door: BridgeProcess, pulsar: Broker, clients: Clients, topic: str) -> None:
    """What the broker says of the same: nothing delayed, out, unacked; and the bridge's own subscriptions."""
    consumed_in_part(door, clients, topic)

    s = assert_true(filled_once_acked(door, topic))
    one, two = sorted(s["consumers"], key=lambda each: str(each["consumerName"]))
    # A client gives permits back by halves of what it holds.
    assert (one["msgOutCounter"] + two["msgOutCounter"], two["availablePermits"]) == (6, 3 - two["msgOutCounter"])
    for each in (one, two):
        assert each["clientVersion"].startswith("Pulsar-CPP")
        assert re.fullmatch(r"/127\.0\.0\.1:\d+", each["address"])
        assert each["metadata"] == {}
        assert each["connectedSince"].startswith("20")
    behind = stats_at(pulsar.web_url, topic)[0]
    assert behind["subscriptions"]["s"]["msgOutCounter"] == 0
    assert {one["address"], two["address"]}.isdisjoint(
        each["address"] for each in behind["subscriptions"]["s"]["consumers"]
    )
    for where in (door.web_url, pulsar.web_url):
        shown, _ = stats_at(where, topic, query="?showDelayBridge=true")
        assert "__delay-bridge" in shown["subscriptions"]
    listed = json.loads(ask(f"{door.web_url}/admin/v2/{rest_path(topic)}/subscriptions")[1])
    assert listed == ["s"]


def test_statistics_of_partitions(door: BridgeProcess, pulsar: Broker, clients: Clients, topic: str) -> None:
    """As the sum of two partitions, with them or without."""
    admin(pulsar, "PUT", f"{rest_path(topic)}/partitions", 2)
    consumed_in_part(door, clients, topic)
    told = filled_once_acked(door, topic, "partitioned-stats")
    assert_true(told)
    parts = told["partitions"].values()
    assert len(parts) == 2
    for name in ("msgDelayed", "msgBacklogNoDelayed", "unackedMessages", "msgOutCounter"):
        assert sum(part["subscriptions"]["s"][name] for part in parts) == told["subscriptions"]["s"][name]
    without, remark = stats_at(door.web_url, topic, "partitioned-stats", "?perPartition=false")
    assert (without["partitions"], remark) == ({}, "filled")
    assert_true(without)


def test_statistics_at_another_bridge(door: BridgeProcess, private_bridge: Any, clients: Clients, topic: str) -> None:
    """It asks the owner, knows it by the broker's word, and says so where it cannot."""
    other = private_bridge(front_door="all")
    consumed_in_part(door, clients, topic)
    wait_until(lambda: stats_at(door.web_url, topic)[0]["subscriptions"]["s"]["msgBacklog"] == 9, "the acks are there")
    assert other.topic(topic) == {}
    told, remark = stats_at(other.web_url, topic)
    assert remark == "filled"
    assert_true(told)
    status, _, headers = ask(f"{other.web_url}/admin/v2/{rest_path(topic)}/stats", X_Delay_Bridge_Asked_By="x")
    assert (status, headers["X-Delay-Bridge-Stats"]) == (200, "broker; the bridge that was asked does not own it")


def test_statistics_while_the_owner_is_closed(private_bridge: Any, clients: Clients, topic: str) -> None:
    """The broker's own are told for what they are, without the bridge's subscriptions."""
    owner, other = private_bridge(), private_bridge(front_door="all")
    consumed_in_part(owner, clients, topic)
    told, remark = stats_at(other.web_url, topic)
    assert remark.startswith("broker; the bridge that owns it did not say: 404")
    assert set(told["subscriptions"]) == {"s"}
    assert told["msgOutCounter"] == 0


def test_statistics_of_topics_that_nobody_dispatches(
    door: BridgeProcess, pulsar: Broker, clients: Clients, topic: str
) -> None:
    client = clients.connect(door.service_url)
    consumer = client.subscribe(topic, "x")
    publish(client.create_producer(topic), ["a"])
    receive(consumer)

    def counted(url: str) -> list[Any]:
        told, remark = stats_at(url, topic)
        assert remark == ("broker; no bridge dispatches it" if url == door.web_url else "")
        return [*(told[name] for name in OUT), told["subscriptions"]["x"]["msgOutCounter"]]

    # The broker adds them up now and then.
    wait_until(lambda: counted(pulsar.web_url)[-1] == 1 and counted(door.web_url) == counted(pulsar.web_url))


def test_statistics_that_are_too_large(private_bridge: Any, clients: Clients, topic: str) -> None:
    bridge = private_bridge(front_door="all", limits={"relay_filled_bytes": 1_000})
    shared(clients.connect(bridge.service_url), topic)
    told, remark = stats_at(bridge.web_url, topic)
    assert remark == "broker; the answer is larger than 1000 bytes"
    assert "s" in told["subscriptions"]


def test_pulsar_admin_tells_true_statistics(door: BridgeProcess, clients: Clients, tools: Tools, topic: str) -> None:
    consumed_in_part(door, clients, topic)
    wait_until(lambda: stats_at(door.web_url, topic)[0]["subscriptions"]["s"]["msgBacklog"] == 9, "the acks are there")
    assert_true(json.loads(pulsar_admin(tools, door.web_url, "topics", "stats", topic)))
