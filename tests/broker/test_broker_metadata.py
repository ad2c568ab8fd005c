"""What a broker notes of each entry, an index and a time: shown to those who know of it, as by the broker itself."""

import asyncio

import pytest

from bridge.protocol.frames import BROKER_ENTRY_METADATA_MAGIC
from tests.bridge_process import BridgeProcess, now_ms
from tests.cluster import PulsarCluster
from tests.raw_client import RawClient, raw_client

COUNT = 5


async def consumer(url: str, topic: str, subscription: str, *, knows: bool) -> RawClient:
    client = await raw_client(url, handshake=False)
    await client.handshake(broker_metadata=knows)
    await client.consume(topic, subscription)
    client.flow(100)
    return client


async def entries(client: RawClient, count: int) -> dict[tuple[int, int], bytes]:
    """By positions, so many of them."""
    found: dict[tuple[int, int], bytes] = {}
    async with asyncio.timeout(30):
        while len(found) < count:
            message = await client.messages.get()
            found[message.position] = message.entry
    return found


@pytest.mark.parametrize("knows", [True, False], ids=["knows of it", "does not"])
async def test_shown_as_by_the_broker(
    configured_broker: PulsarCluster, configured_bridge: BridgeProcess, topic: str, knows: bool
) -> None:
    """Immediate entries, delayed ones, and both once more, when they are read again."""
    url = configured_bridge.service_url
    through = await consumer(url, topic, "through", knows=knows)
    direct = await consumer(configured_broker.service_url, topic, "direct", knows=knows)
    producer = await raw_client(url)
    await producer.produce(topic)
    for number in range(COUNT):
        await producer.publish(b"at once", sequence_id=2 * number)
        await producer.publish(b"later", now_ms() + 300, sequence_id=2 * number + 1)
    expected = await entries(direct, 2 * COUNT)
    assert all(entry.startswith(BROKER_ENTRY_METADATA_MAGIC) is knows for entry in expected.values())
    assert await entries(through, 2 * COUNT) == expected
    through.redeliver()
    assert await entries(through, 2 * COUNT) == expected
    await through.close()
    late = await consumer(url, topic, "late", knows=not knows)
    assert {entry.startswith(BROKER_ENTRY_METADATA_MAGIC) for entry in (await entries(late, COUNT)).values()} == {
        not knows
    }
    for client in (direct, late, producer):
        await client.close()
