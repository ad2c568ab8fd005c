"""What a bridge tells of a topic that another one owns, and at a takeover."""

import asyncio
from typing import Any

import aiohttp

from bridge.app import Bridge
from bridge.protocol.pulsar_pb2 import BaseCommand
from bridge.web.pages.display import topic_page
from tests.bridge_process import now_ms
from tests.broker.conftest import InProcessFactory
from tests.broker.test_candidates import stand
from tests.clients import rest_path
from tests.cluster import PulsarCluster
from tests.helpers import wait_until_async
from tests.raw_client import raw_client

OTHER, OTHER_WEB = "pulsar://other.example:6650", "http://other.example:8081"
HOUR_MS = 3_600_000


async def text_of(here: Bridge, path: str) -> str:
    url = f"http://127.0.0.1:{here.web_port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url, allow_redirects=False) as answer:
        return await answer.text()


async def row_of(here: Bridge, topic: str) -> dict[str, Any]:
    url = f"http://127.0.0.1:{here.web_port}/admin/v2/delayed/topics?filter={topic.rpartition('/')[2]}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        found = await answer.json()
    return dict(found[0]) if found else {}


async def test_a_former_owner_tells_its_role_and_the_owner_and_no_figures(
    pulsar: PulsarCluster, bridge_here: InProcessFactory, topic: str
) -> None:
    """Metrics, REST and pages: what it knew is not so any more."""
    here = await bridge_here()
    client = await raw_client(here.advertised_url)
    await client.consume(topic)
    await client.produce(topic)
    for number in range(3):
        await client.publish(b"later", now_ms() + HOUR_MS, sequence_id=number)

    async def owns() -> bool:
        return (await row_of(here, topic)).get("pending") == 3

    await wait_until_async(owns, "3 pending")
    assert "pulsar_delay_bridge_pending_entries" in await metrics_of(here, topic)
    other = await raw_client(pulsar.service_url)
    assert (await stand(other, topic, OTHER, {"web-url": OTHER_WEB})).type == BaseCommand.SUCCESS

    async def stands_by() -> bool:
        return (await row_of(here, topic)).get("owner") == OTHER

    await wait_until_async(stands_by, "deposed", timeout=20)
    row = await row_of(here, topic)
    row.pop("standbyPosition")  # of its index it only tells how far that is
    told = {name: value for name, value in row.items() if value not in (None, 0)}
    assert told == {"topic": topic, "role": "standby", "owner": OTHER, "ownerWebUrl": OTHER_WEB}
    assert (row["pending"], row["entries"], row["early"]) == (None, None, None)
    assert set((await metrics_of(here, topic)).split()) == {
        "pulsar_delay_bridge_ownership",
        "pulsar_delay_bridge_not_served",
        "pulsar_delay_bridge_standby_ready",
    }
    page = await text_of(here, topic_page(topic))
    assert OTHER in page
    assert "Pending" not in page
    overview = await text_of(here, "/admin/v2/delayed/overview")
    assert '"pending": 0' in overview


async def metrics_of(here: Bridge, topic: str) -> str:
    """The names of the metrics that tell of a topic."""
    lines = (await text_of(here, "/metrics")).splitlines()
    return " ".join(line.partition("{")[0] for line in lines if f'topic="{topic}"' in line)


async def test_a_takeover_does_not_warn_of_consumers_on_their_way(
    pulsar: PulsarCluster, bridge_here: InProcessFactory, topic: str
) -> None:
    """Those of the former owner's are at the broker until it has closed them: nothing comes twice for that."""
    other = await raw_client(pulsar.service_url)
    assert (await stand(other, topic, OTHER, {"web-url": OTHER_WEB})).type == BaseCommand.SUCCESS
    theirs = await raw_client(pulsar.service_url)
    await theirs.consume(topic)
    here = await bridge_here()
    client = await raw_client(here.advertised_url)
    await client.consume(topic, consumer_id=2)
    await wait_until_async(lambda: owner_of(here, topic) == OTHER, "stands by", timeout=20)
    await other.close()
    await wait_until_async(lambda: owner_of(here, topic) != OTHER, "the other one is gone", timeout=20)
    await client.consume(topic, consumer_id=3)
    tracked = here.topics.get(topic) if here.topics is not None else None
    assert tracked is not None
    await wait_until_async(lambda: "s" in tracked.outlook.unbridged(), "a look at the broker's consumers", timeout=20)
    await wait_until_async(lambda: tracked.index is not None and "s" in tracked.index.views(), "its cursor")
    assert [each.code for each in tracked.warnings()] == []
    status = await text_of(here, f"/admin/v2/delayed/{rest_path(topic)}/ready")
    assert '"role": "owner"' in status
    await theirs.close()


async def test_who_comes_to_a_bridge_that_stands_by_is_led_to_the_owner(
    pulsar: PulsarCluster, bridge_here: InProcessFactory, topic: str
) -> None:
    """At once, though nobody looks up and the broker has no news; clients of today go there without a lookup."""
    other = await raw_client(pulsar.service_url)
    stated = {"web-url": OTHER_WEB, "tls-url": "pulsar+ssl://other.example:6651"}
    assert (await stand(other, topic, OTHER, stated)).type == BaseCommand.SUCCESS
    here = await bridge_here()
    client = await raw_client(here.advertised_url)
    await client.consume(topic)
    await wait_until_async(lambda: owner_of(here, topic) == OTHER, "stands by", timeout=20)
    await client.event(BaseCommand.CLOSE_CONSUMER)
    await asyncio.sleep(0.5)  # the pauses between two looks are longer by now
    await client.consume(topic, consumer_id=7)
    closed = (await client.event(BaseCommand.CLOSE_CONSUMER, timeout_s=1)).close_consumer
    assert closed.consumer_id == 7
    assert (closed.assignedBrokerServiceUrl, closed.assignedBrokerServiceUrlTls) == (OTHER, stated["tls-url"])
    await other.close()


def owner_of(here: Bridge, topic: str) -> str | None:
    tracked = None if here.topics is None else here.topics.get(topic)
    return None if tracked is None else tracked.owner
