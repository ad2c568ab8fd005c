"""The bridge's wall clock is set: never early by it, and no longer than a second until a step is noticed."""

import asyncio

import pytest

from bridge.app import Bridge
from bridge.clock import wall_clock_ms
from tests.broker.conftest import InProcessFactory
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
