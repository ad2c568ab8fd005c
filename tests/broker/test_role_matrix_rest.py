"""Each role gets at the web port what it gets at the broker; the calls of the bridge's own go by what that says."""

import asyncio
import json
import time
from collections.abc import Iterator

import pytest

from tests.bridge_process import BridgeProcess
from tests.clients import rest_path
from tests.cluster import PulsarCluster
from tests.helpers import wait_until_async
from tests.role_probes import LATER, NOW, Holder, plain
from tests.roles import TOKENS, new_topic, with_roles
from tests.secured import NAMESPACE, TENANT, ask, disallow, token_of

Call = tuple[str, str, object]

SOME_ID = {"ledgerId": -1, "entryId": -1}
CALLS: tuple[Call, ...] = (
    # What is there
    ("GET", "/admin/v2/{T}/stats", None),
    ("GET", "/admin/v2/{T}/stats?getPreciseBacklog=true&subscriptionBacklogSize=true", None),
    ("GET", "/admin/v2/{T}/partitioned-stats", None),
    ("GET", "/admin/v2/{T}/internalStats", None),
    ("GET", "/admin/v2/{T}/internal-info", None),
    ("GET", "/admin/v2/{T}/subscriptions", None),
    ("GET", "/admin/v2/{T}/partitions", None),
    ("GET", "/admin/v2/{T}/permissions", None),
    ("GET", "/admin/v2/{T}/properties", None),
    ("GET", "/admin/v2/{T}/lastMessageId", None),
    ("GET", "/admin/v2/{T}/retention", None),
    ("GET", "/admin/v2/{T}/delayedDelivery", None),
    ("GET", "/lookup/v2/topic/{T}", None),
    ("GET", "/lookup/v2/topic/{T}/bundle", None),
    ("GET", "/admin/v2/schemas/{N}/schema", None),
    ("GET", "/admin/v2/schemas/{N}/schemas", None),
    # Messages
    ("GET", "/admin/v2/{T}/subscription/s/position/1", None),
    ("GET", "/admin/v2/{T}/examinemessage?initialPosition=earliest&messagePosition=1", None),
    ("GET", "/admin/v2/{T}/messageid/1", None),
    # Subscriptions
    ("PUT", "/admin/v2/{T}/subscription/made", None),
    ("GET", "/admin/v2/{T}/subscription/made/properties", None),
    ("PUT", "/admin/v2/{T}/subscription/made/properties", {"a": "b"}),
    ("POST", "/admin/v2/{T}/subscription/made/skip/1", None),
    ("POST", "/admin/v2/{T}/subscription/made/skip_all", None),
    ("POST", "/admin/v2/{T}/subscription/made/expireMessages/1", None),
    ("POST", "/admin/v2/{T}/subscription/made/resetcursor/1", None),
    ("POST", "/admin/v2/{T}/subscription/made/resetcursor", SOME_ID),
    ("POST", "/admin/v2/{T}/subscription/s/skip/1", None),
    ("DELETE", "/admin/v2/{T}/subscription/made", None),
    ("DELETE", "/admin/v2/{T}/subscription/s", None),
    # Policies
    ("POST", "/admin/v2/{T}/permissions/somebody", ["consume"]),
    ("DELETE", "/admin/v2/{T}/permissions/somebody", None),
    ("POST", "/admin/v2/{T}/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}),
    ("POST", f"/admin/v2/namespaces/{NAMESPACE}/maxTopicsPerNamespace", 100_000),
    ("DELETE", f"/admin/v2/namespaces/{NAMESPACE}/maxTopicsPerNamespace", None),
    ("GET", f"/admin/v2/namespaces/{NAMESPACE}", None),
    ("GET", f"/admin/v2/namespaces/{NAMESPACE}/permissions", None),
    ("GET", f"/admin/v2/namespaces/{NAMESPACE}/permissions/subscription", None),
    ("GET", f"/admin/v2/namespaces/{NAMESPACE}/topics", None),
    ("GET", f"/admin/v2/persistent/{NAMESPACE}", None),
    ("GET", f"/admin/v2/namespaces/{TENANT}", None),
    ("GET", f"/admin/v2/namespaces/{TENANT}/other/topics", None),
    ("GET", "/admin/v2/namespaces/nobody/nowhere", None),
    # The cluster
    ("GET", "/admin/v2/tenants", None),
    ("GET", f"/admin/v2/tenants/{TENANT}", None),
    ("GET", "/admin/v2/clusters", None),
    ("GET", "/admin/v2/clusters/standalone", None),
    ("GET", "/admin/v2/brokers/version", None),
    ("GET", "/admin/v2/brokers/health", None),
    ("GET", "/admin/v2/brokers/configuration/runtime", None),
    ("GET", "/admin/v2/broker-stats/topics", None),
    ("GET", "/admin/v2/resourcegroups", None),
    ("GET", "/admin/v3/transactions/coordinatorStats", None),
    ("GET", "/admin/v2/worker/cluster", None),
    # What is there no more then
    ("POST", "/admin/v2/schemas/{N}/schema", {"type": "STRING", "schema": "", "properties": {}}),
    ("DELETE", "/admin/v2/schemas/{N}/schema", None),
    ("PUT", "/admin/v2/{T}/unload", None),
    ("PUT", "/admin/v2/{T}-parts/partitions", 2),
    ("POST", "/admin/v2/{T}-parts/partitions", 3),
    ("DELETE", "/admin/v2/{T}-parts/partitions", None),
    ("GET", "/admin/v2/{T}/compaction", None),
    ("DELETE", "/admin/v2/{T}/truncate", None),
    ("POST", "/admin/v2/{T}/terminate", None),
    ("DELETE", "/admin/v2/{T}?force=true", None),
)


KNOWN = TOKENS.keys() - {"no token", "forged", "expired", "nonsense"}


@pytest.fixture(scope="module")
def broker(secured: PulsarCluster) -> PulsarCluster:
    return with_roles(secured)


@pytest.fixture(scope="module")
def door(broker: PulsarCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeProcess]:
    """A bridge whose own role may do all: whatever it gives away by mistake, it has."""
    folder, token = tmp_path_factory.mktemp("roles"), token_of("admin")
    process = BridgeProcess(broker, folder, broker_token=token, front_door="all", access="pulsar").start()
    yield process
    process.stop()


async def told(web_url: str, topic: str, token: str | None) -> list[tuple[str, str, int, str]]:
    """Of each call its status, and why it is refused."""

    def one(method: str, path: str, body: object) -> tuple[str, str, int, str]:
        where = path.format(T=rest_path(topic), N=rest_path(topic).removeprefix("persistent/"))
        status, said = ask(web_url + where, method, token, body)
        return method, path, status, plain(said, topic) if status >= 400 else ""

    return [await asyncio.to_thread(one, *each) for each in CALLS]


@pytest.mark.parametrize("role", TOKENS)
async def test_every_call(broker: PulsarCluster, door: BridgeProcess, role: str) -> None:
    """At a topic that another role is consuming."""

    async def at(service_url: str, web_url: str) -> list[tuple[str, str, int, str]]:
        topic, holder = await asyncio.to_thread(new_topic, broker), Holder("held")
        await holder.prepare(service_url, topic)
        found = await told(web_url, topic, TOKENS[role])
        await holder.close()
        return found

    # One after the other: a broker answers 409 to one of two that change the policies of a namespace.
    at_broker, at_bridge = [await at(each.service_url, each.web_url) for each in (broker, door)]
    different = [(one, other) for one, other in zip(at_broker, at_bridge, strict=True) if one != other]
    assert not different
    assert any(status < 300 for _, _, status, _ in at_broker) == (role in KNOWN), "the case is what it is meant to be"


# -- what the bridge itself knows

S = "/admin/v2/delayed/{T}/subscription/s"
SEEN: tuple[Call, ...] = (
    ("GET", "/admin/v2/delayed/{T}/stats", None),
    ("GET", "/admin/v2/delayed/{T}/ready", None),
    ("GET", "/admin/v2/delayed/{T}/partitions", None),
    ("GET", "/admin/v2/delayed/{T}/partitions/chart", None),
    ("GET", f"{S}/histogram?step=1m", None),
    ("GET", f"{S}/pending?payload=true", None),
    ("GET", "/admin/v2/delayed/{T}/audit", None),
    ("GET", "/admin/v2/delayed/{T}/rebuild", None),
    ("GET", "/topic/{N}", None),
)
"""For who may consume from the topic."""
STEERED: tuple[Call, ...] = (
    ("POST", f"{S}/deliver-now", {"messageIds": ["POSITION"]}),
    ("POST", f"{S}/pending/POSITION/deliver-now", None),
    ("POST", f"{S}/cancel", {"messageIds": ["POSITION"]}),
    ("DELETE", f"{S}/pending/POSITION", None),
    ("PUT", "/admin/v2/delayed/{T}/audit", None),
    ("DELETE", "/admin/v2/delayed/{T}/rebuild", None),
)
"""For an admin of the tenant."""
ABOUT_ALL = ("/admin/v2/delayed/overview", "/admin/v2/delayed/topics", "/admin/v2/delayed/actions", "/", "/metrics")
"""For who is known; tells of what he may see."""
PUBLIC = ("/healthz", "/readyz", "/status.html", "/login")


async def test_what_the_bridge_itself_knows(broker: PulsarCluster, door: BridgeProcess) -> None:
    """Who may do least comes first: what is refused to him is there for the next."""
    topic, holder = await asyncio.to_thread(new_topic, broker), Holder("held")
    await holder.prepare(door.service_url, topic)

    def at_the_broker(path: str, token: str | None) -> bool:
        return ask(f"{broker.web_url}/admin/v2/{path}", "GET", token)[0] == 200

    def here(method: str, path: str, token: str | None, body: object = None) -> tuple[int, str]:
        status, said = ask(
            door.web_url + path.format(T=path_of, N=path_of.removeprefix("persistent/")), method, token, body
        )
        return status, str(said)

    def pending() -> list[str]:
        found = ask(f"{door.web_url}{S.format(T=path_of)}/pending", "GET", token_of("admin"))[1]
        return [each["position"] for each in found["entries"] if each["deliverAt"]] if "entries" in found else []

    path_of = rest_path(topic)
    later = await wait_until_async(lambda: asyncio.to_thread(pending), "what is pending")

    def check(role: str, token: str | None) -> None:
        knows = at_the_broker("brokers/version", token)
        sees = at_the_broker(f"{path_of}/subscriptions", token)
        steers = at_the_broker(f"namespaces/{NAMESPACE}/permissions", token)
        lacks = 403 if knows else 401
        for method, path, _ in SEEN:
            status, said = here(method, path, token)
            assert status == lacks if not sees else status in (200, 404), (role, method, path, status, said)
            assert sees or not any(text in said for text in (*LATER, *NOW)), (role, path)
        for method, path, body in STEERED:
            position = json.dumps(body).replace("POSITION", later[-1])
            status, said = here(method, path.replace("POSITION", later[-1]), token, json.loads(position))
            assert status == lacks if not steers else status in (200, 202, 409), (role, method, path, status, said)
        for path in ABOUT_ALL:
            status, said = here("GET", path, token)
            assert (status == 200) == knows, (role, path, status)
            assert path == "/metrics" or (topic in said) <= sees, (role, path)
        assert all(here("GET", path, token)[0] == 200 for path in PUBLIC)
        if not steers:
            assert pending() == later, role

    for role in sorted(TOKENS, key=["tenant-admin", "admin"].count):
        await asyncio.to_thread(check, role, TOKENS[role])
    await holder.close()


@pytest.mark.parametrize("what", ["a permission", "a token"])
async def test_who_may_no_more_reads_no_payload(broker: PulsarCluster, door: BridgeProcess, what: str) -> None:
    """Some seconds later, with the limits as they are."""
    topic, holder = await asyncio.to_thread(new_topic, broker), Holder("held")
    await holder.prepare(door.service_url, topic)
    url = f"{door.web_url}{S.format(T=rest_path(topic))}/pending?payload=true"
    token = token_of("one-topic") if what == "a permission" else token_of("consumer", exp=int(time.time()) + 4)

    async def status() -> int:
        return (await asyncio.to_thread(ask, url, "GET", token))[0]

    async def is_refused() -> bool:
        return await status() in (401, 403)

    assert await status() == 200
    if what == "a permission":
        await asyncio.to_thread(disallow, broker, "one-topic", rest_path(topic))
    await wait_until_async(is_refused, "refused", timeout=15)
    await holder.close()
