"""Who stands beside a bridge for a topic is believed only when it is a bridge too."""

from collections.abc import Mapping
from typing import Any

import aiohttp

from bridge.app import Bridge
from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe, ServerError
from tests.broker.conftest import InProcessFactory
from tests.clients import rest_path
from tests.cluster import PulsarCluster
from tests.helpers import wait_until_async
from tests.raw_client import RawClient, raw_client
from tests.secured import NAMESPACE, TENANT, allow, done, token_of

EVIL, EVIL_WEB = "pulsar://evil.example:6650", "http://evil.example:8081"
SECRET = "a-secret-of-the-tests"


async def stand(client: RawClient, topic: str, name: str, metadata: Mapping[str, str]) -> BaseCommand:
    """Be a candidate with a better priority than any bridge, straight at the broker; returns its answer."""
    await client.lookup(topic)
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    subscribe = command.subscribe
    subscribe.topic, subscribe.subscription, subscribe.subType = topic, HIDDEN_SUBSCRIPTION, CommandSubscribe.Failover
    subscribe.consumer_id, subscribe.request_id, subscribe.consumer_name = 1, client.next_request_id(), name
    subscribe.priority_level = -1
    subscribe.initialPosition = CommandSubscribe.Earliest
    for key, value in metadata.items():
        subscribe.metadata.add(key=key, value=value)
    return await client.request(command, subscribe.request_id)


async def client_of_role(role: str, url: str) -> RawClient:
    client = await raw_client(url, handshake=False)
    answer = await client.handshake(auth_method_name="token", auth_data=token_of(role).encode())
    assert answer.type == BaseCommand.CONNECTED, answer
    return client


async def told(here: Bridge, topic: str) -> tuple[int, dict[str, Any]]:
    """The topic as REST tells it, and without following to anywhere else."""
    url = f"http://127.0.0.1:{here.web_port}/admin/v2/delayed/{rest_path(topic)}/stats"
    async with aiohttp.ClientSession() as session, session.get(url, allow_redirects=False) as answer:
        return answer.status, await answer.json() if answer.status == 200 else {}


async def test_a_candidate_that_proves_nothing_is_not_followed(
    pulsar: PulsarCluster, bridge_here: InProcessFactory, topic: str
) -> None:
    """Elected by the broker, it gets neither clients nor callers; and is served again when it goes."""
    impostor = await raw_client(pulsar.service_url)
    assert (await stand(impostor, topic, EVIL, {"web-url": EVIL_WEB})).type == BaseCommand.SUCCESS
    here = await bridge_here(cluster_secret=SECRET)
    client = await raw_client(here.advertised_url)
    await client.consume(topic)

    async def refused() -> dict[str, Any] | None:
        status, found = await told(here, topic)
        assert status != 307, "led to the impostor"
        return found if "no known bridge" in (found.get("reason") or "") else None

    found = await wait_until_async(refused, "it says what is wrong", timeout=20)
    assert found is not None
    assert (found["role"], found["owner"], found["ownerWebUrl"]) == ("standby", None, None)
    assert EVIL in found["reason"]
    assert [(each["code"], each["severity"]) for each in found["warnings"]] == [("not-served", "critical")]
    answer = (await client.lookup(topic)).lookupTopicResponse
    assert answer.brokerServiceUrl == here.advertised_url
    assert BaseCommand.CLOSE_CONSUMER not in [each.type for each in client.events]
    await impostor.close()
    producer = await raw_client(pulsar.service_url)
    await producer.produce(topic)
    await producer.publish(b"after")
    client.flow(1)
    assert (await client.message()).payload == b"after"


async def test_bridges_with_one_secret_follow_each_other_and_no_other(
    bridge_here: InProcessFactory, topic: str
) -> None:
    peers = [await bridge_here(cluster_secret=SECRET) for _ in range(2)]
    stranger = await bridge_here(cluster_secret="another-secret-of-the-tests")
    for number, each in enumerate((*peers, stranger)):
        await (await raw_client(each.advertised_url)).consume(topic, f"s{number}")
    urls = {each.advertised_url for each in peers}

    async def believed(here: Bridge) -> Any:
        return (await told(here, topic))[1]

    async def settled() -> bool:
        ours, theirs = [await believed(each) for each in peers], await believed(stranger)
        if theirs.get("role") == "owner":
            return all(each.get("owner") is None and "not signed with" in (each.get("reason") or "") for each in ours)
        # One that leads to its peer answers with a redirect: no body.
        roles = sorted(each.get("role", "led on") for each in ours)
        return roles == ["led on", "owner"] and "not signed with" in (theirs.get("reason") or "")

    await wait_until_async(settled, "each follows its own", timeout=20, interval=0.2)
    for each in peers:
        client = await raw_client(each.advertised_url)
        assert (await client.lookup(topic)).lookupTopicResponse.brokerServiceUrl in urls


async def test_the_role_that_the_broker_knows_is_proof_without_a_secret(
    secured: PulsarCluster, bridge_here: InProcessFactory
) -> None:
    """Bridges of one role follow each other out of the box; who may only consume is not followed."""
    topic = f"persistent://{NAMESPACE}/roles"
    done(secured, "PUT", rest_path(topic))
    peers = [await bridge_here(secured, broker_token=token_of("bridge")) for _ in range(2)]
    for number, each in enumerate(peers):
        await (await client_of_role("consumer", each.advertised_url)).consume(topic, f"s{number}")

    async def one_leads() -> bool:
        return sorted([(await told(each, topic))[0] for each in peers]) == [200, 307]

    await wait_until_async(one_leads, "the standby leads to the owner", timeout=20)
    impostor = await client_of_role("consumer", secured.service_url)
    assert (await stand(impostor, topic, EVIL, {"web-url": EVIL_WEB})).type == BaseCommand.SUCCESS

    async def refused() -> bool:
        found = [await told(each, topic) for each in peers]
        return all("'consumer' that is no known bridge" in (body.get("reason") or "") for _, body in found)

    await wait_until_async(refused, "none follows it", timeout=20)


async def test_the_broker_itself_can_be_told_who_may_stand(
    secured: PulsarCluster, bridge_here: InProcessFactory
) -> None:
    """As the documentation recommends: then nobody else gets as far as to be elected."""
    namespace = f"{TENANT}/granted"
    done(secured, "PUT", f"namespaces/{namespace}", {})
    for role in ("bridge", "consumer"):
        allow(secured, role, "consume", where=f"namespaces/{namespace}")
    done(secured, "POST", f"namespaces/{namespace}/permissions/subscription/{HIDDEN_SUBSCRIPTION}", ["bridge"])
    topic = f"persistent://{namespace}/orders"
    done(secured, "PUT", rest_path(topic))
    impostor = await client_of_role("consumer", secured.service_url)
    answer = await stand(impostor, topic, EVIL, {})
    assert answer.type == BaseCommand.ERROR
    assert answer.error.error == ServerError.AuthorizationError
    here = await bridge_here(secured, broker_token=token_of("bridge"))
    await (await client_of_role("consumer", here.advertised_url)).consume(topic)

    async def owner() -> bool:
        return (await told(here, topic))[1].get("role") == "owner"

    await wait_until_async(owner, "the bridge may stand", timeout=20)
