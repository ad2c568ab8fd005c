"""Clients that are gone without a word: a connection that nobody reads and nobody closes."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from bridge.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe
from tests.bridge_process import BridgeProcess
from tests.cluster import PulsarCluster
from tests.helpers import wait_until_async
from tests.raw_client import RawClient, raw_client

INTERVAL_S = 1.0
LIMITS = {"keep_alive_interval_s": INTERVAL_S, "cursor_poll_s": 0.2}


@pytest.fixture(scope="module")
def short(pulsar: PulsarCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeProcess]:
    """A bridge with short intervals."""
    process = BridgeProcess(pulsar, tmp_path_factory.mktemp("short"), LIMITS).start()
    yield process
    process.stop()


async def test_what_a_vanished_client_holds_goes_to_others(short: BridgeProcess, topic: str) -> None:
    """In about two intervals, though the bridge asks for the cursor on the client's own connection all the time."""
    gone, other = [await raw_client(short.service_url) for _ in range(2)]
    await gone.consume(topic)
    await other.produce(topic)
    gone.flow(100)
    sent = [await other.publish(b"x", sequence_id=number) for number in range(10)]
    await wait_until_async(lambda: gone.messages.qsize() == 10, "delivered")
    gone.transport.pause_reading()
    since = time.monotonic()
    await other.consume(topic, consumer_id=2, consumer_name="other")
    other.flow(100, consumer_id=2)
    received = [await other.message(10) for _ in sent]
    taken = time.monotonic() - since
    assert sorted(each.position for each in received) == sent
    assert 1.5 * INTERVAL_S < taken < 4 * INTERVAL_S
    assert "nothing came from the client" in short.log()
    await other.close()


async def test_a_client_that_answers_pings_stays(short: BridgeProcess, topic: str) -> None:
    """Quiet for many intervals, also one whose only sign of life is the answer."""
    client = await raw_client(short.service_url)
    await client.consume(topic)
    client.flow(1)
    await until_pinged(client, 3)
    await client.produce(topic)
    position = await client.publish(b"x")
    assert (await client.message()).position == position
    await client.close()


async def test_a_client_that_vanishes_before_it_asks_for_anything(short: BridgeProcess) -> None:
    client = await raw_client(short.service_url)
    peer = client.address
    client.transport.pause_reading()

    def ended() -> bool:
        return any(peer in line and "nothing came from the client" in line for line in short.log().splitlines())

    await wait_until_async(lambda: asyncio.to_thread(ended), "ended", timeout=5 * INTERVAL_S)
    await client.close()


async def test_a_client_that_does_not_read_for_a_while_is_no_broker_that_is_silent(
    short: BridgeProcess, pulsar: PulsarCluster, topic: str
) -> None:
    """The bridge reads nothing from the broker then, and must not take that for the broker's end."""
    client, direct = await raw_client(short.service_url), await raw_client(pulsar.service_url)
    await client.consume(topic, subType=CommandSubscribe.Exclusive)
    await direct.produce(topic)
    for number in range(30):
        await direct.publish(b"x" * 1_000_000, sequence_id=number)
    client.transport.pause_reading()
    client.flow(30)
    until = time.monotonic() + 4.5 * INTERVAL_S
    while time.monotonic() < until:
        client.send(BaseCommand(type=BaseCommand.PING, ping={}))
        await asyncio.sleep(INTERVAL_S / 4)
    client.transport.resume_reading()
    received = [await client.message() for _ in range(30)]
    assert len({each.position for each in received}) == 30
    await client.close()
    await direct.close()


async def until_pinged(client: RawClient, times: int) -> None:
    await wait_until_async(lambda: client.pings >= times, "pings", timeout=4 * times * INTERVAL_S)
