"""The bridge's wall clock is set: never early by it, and no longer than a second until a step is noticed."""

import asyncio
from typing import Any, NamedTuple

import pytest

from bridge.app import Bridge
from bridge.clock import wall_clock_ms
from tests.admin_proxy import AdminProxy
from tests.broker.conftest import InProcessFactory
from tests.cluster import PulsarCluster
from tests.helpers import wait_until_async
from tests.raw_client import RawClient, raw_client

HOUR_MS = 3_600_000


YEAR_2038_MS = 2**31 * 1_000
YEAR_MS = 365 * 24 * HOUR_MS


class Clock:
    """The real one, with an offset, or one that stands still."""

    def __init__(self) -> None:
        self.offset_ms = 0
        self.frozen_at_ms: int | None = None

    def now_ms(self) -> int:
        return wall_clock_ms() + self.offset_ms if self.frozen_at_ms is None else self.frozen_at_ms

    def install(self, bridge: Bridge, patch: pytest.MonkeyPatch) -> None:
        topics = bridge.topics
        assert topics is not None
        patch.setattr(topics, "_context", topics._context._replace(now_ms=self.now_ms))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def client(bridge_here: InProcessFactory, clock: Clock, topic: str, monkeypatch: pytest.MonkeyPatch) -> RawClient:
    """Subscribed to and producing for `topic`, with permits."""
    bridge = await bridge_here()
    clock.install(bridge, monkeypatch)
    client = await raw_client(bridge.advertised_url)
    await client.consume(topic)
    await client.produce(topic)
    client.flow(100)
    return client


async def nothing_comes(client: RawClient, for_s: float) -> None:
    await asyncio.sleep(for_s)
    assert client.messages.empty()


async def test_set_forward(client: RawClient, clock: Clock) -> None:
    position = await client.publish(b"x", clock.now_ms() + HOUR_MS)
    await nothing_comes(client, 0.2)
    clock.offset_ms = HOUR_MS
    assert (await client.message(1.5)).position == position


async def test_set_back_before_it_is_due(client: RawClient, clock: Clock) -> None:
    at = clock.now_ms() + 300
    position = await client.publish(b"x", at)
    clock.offset_ms = -HOUR_MS
    await nothing_comes(client, 0.6)
    immediate = await client.publish(b"now", sequence_id=1)
    assert (await client.message()).position == immediate
    clock.offset_ms = 0
    assert (await client.message(1.5)).position == position
    assert clock.now_ms() >= at


async def test_set_back_before_it_is_delivered_again(client: RawClient, clock: Clock) -> None:
    position = await client.publish(b"x", clock.now_ms() + 100)
    assert (await client.message()).position == position
    clock.offset_ms = -HOUR_MS
    client.redeliver(position)
    await nothing_comes(client, 0.3)
    clock.offset_ms = 0
    again = await client.message(1.5)
    assert (again.position, again.redelivery_count) == (position, 1)


async def test_set_back_while_consumers_are_full(client: RawClient, clock: Clock, topic: str) -> None:
    """Due, read, waiting for permits: and then not due any more."""
    await client.close_consumer()
    await client.consume(topic, consumer_id=2)
    at = clock.now_ms() + 200
    sent = [await client.publish(b"x", at, sequence_id=number) for number in range(5)]
    client.flow(2, consumer_id=2)
    first = [(await client.message()).position for _ in range(2)]
    clock.offset_ms = -HOUR_MS
    client.flow(10, consumer_id=2)
    await nothing_comes(client, 0.3)
    clock.offset_ms = 0
    rest = [(await client.message(1.5)).position for _ in range(3)]
    assert sorted(first + rest) == sent


async def test_frozen(client: RawClient, clock: Clock) -> None:
    """What is not due by a clock that stands still stays; the rest flows."""
    clock.frozen_at_ms = clock.now_ms()
    held = await client.publish(b"held", clock.frozen_at_ms + 100)
    due = await client.publish(b"due", clock.frozen_at_ms, sequence_id=1)
    assert (await client.message()).position == due
    immediate = await client.publish(b"now", sequence_id=2)
    assert (await client.message()).position == immediate
    await nothing_comes(client, 0.4)
    clock.frozen_at_ms = None
    assert (await client.message(1.5)).position == held


async def test_across_the_year_2038(client: RawClient, clock: Clock) -> None:
    """Seconds since 1970 leave 32 bits; milliseconds in 64 do not mind."""
    clock.offset_ms = YEAR_2038_MS - 300 - clock.now_ms()
    positions = [await client.publish(b"x", YEAR_2038_MS + step, sequence_id=at) for at, step in enumerate((-100, 100))]
    for position, due in zip(positions, (-100, 100), strict=True):
        assert (await client.message(1.5)).position == position
        assert clock.now_ms() >= YEAR_2038_MS + due


async def test_due_times_nobody_means(client: RawClient, clock: Clock) -> None:
    """Anything up to now is due at once, anything later waits, however far off."""
    past = [0, -1, -(2**63), 1, clock.now_ms() - 10 * YEAR_MS, clock.now_ms()]
    future = [2**63 - 1, clock.now_ms() + 10 * YEAR_MS, clock.now_ms() + HOUR_MS]
    held = [await client.publish(b"later", at, sequence_id=number) for number, at in enumerate(future)]
    due = [await client.publish(b"due", at, sequence_id=10 + number) for number, at in enumerate(past)]
    assert sorted([(await client.message()).position for _ in due]) == due
    await nothing_comes(client, 0.2)
    clock.offset_ms = 11 * YEAR_MS
    assert sorted([(await client.message(1.5)).position for _ in held[1:]]) == held[1:]
    await nothing_comes(client, 0.2)


class Reached(NamedTuple):
    """A broker by other URLs than its own."""

    service_url: str
    web_url: str


async def test_a_bridge_whose_clock_is_off_leaves_topics_to_others(
    bridge_here: InProcessFactory, pulsar: PulsarCluster, topic: str
) -> None:
    """It owns a topic when its clock goes wrong: another bridge takes it, and its clients are sent there."""
    quick = {"broker_check_s": 0.2, "broker_check_retry_s": 0.2}
    async with AdminProxy(pulsar.web_url) as proxy:
        wrong = await bridge_here(Reached(pulsar.service_url, proxy.url), quick, max_clock_offset_ms=2_000)
        client = await raw_client(wrong.advertised_url)
        await client.produce(topic)
        await client.consume(topic)
        client.flow(10)
        position = await client.publish(b"before", sequence_id=1)
        assert (await client.message()).position == position
        client.ack(position)
        assert wrong.topics is not None
        tracked: Any = wrong.topics.get(topic)
        proxy.ahead_s = 60.0
        await wait_until_async(lambda: tracked.role != "owner", "it gives the topic up", timeout=20)
        await wait_until_async(lambda: wrong.not_ready is not None, "it is not ready")
        assert "max_clock_offset_ms, 2000 ms" in str(wrong.not_ready)
        await wait_until_async(lambda: "clocks of this machine" in str(tracked.warnings()), "operators are told")

        right = await bridge_here()
        other = await raw_client(right.advertised_url)
        await other.consume(topic)
        other.flow(10)
        position = await client.publish(b"meanwhile", sequence_id=2)
        assert (await other.message()).position == position
        await wait_until_async(lambda: tracked.owner == right.advertised_url, "it knows the owner")

        proxy.ahead_s = 0.0
        await wait_until_async(lambda: wrong.not_ready is None, "it is ready again")
        await wait_until_async(lambda: tracked.role == "standby", "it stands behind the owner")
