"""Random histories of Exclusive and Failover subscriptions: what comes is known beforehand, on the broker as well.

With delays it is not, but for this: everything comes that was not acked, not before its time, and what is acked was
delivered before.
"""

import random
from collections.abc import Iterator

import pytest

from bridge.protocol.pulsar_pb2 import CommandSubscribe
from tests.bridge_process import BridgeProcess, now_ms
from tests.cluster import PulsarCluster
from tests.helpers import wait_until_async
from tests.raw_client import RawClient, raw_client
from tests.single_active import EVERYTHING, NAMES, TYPES, ack_up_to, cursor, join, places, silent
from tests.transactions import Place

STEPS = 25
ACTIONS = ["publish", "publish", "ack", "ack up to", "ack up to", "again", "leave", "take over"]


@pytest.fixture(scope="module")
def delaying(pulsar: PulsarCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeProcess]:
    folder = tmp_path_factory.mktemp("delaying")
    process = BridgeProcess(pulsar, folder, delays_on_exclusive="public/default").start()
    yield process
    process.stop()


@pytest.fixture(params=["broker", "bridge"])
def url(request: pytest.FixtureRequest, pulsar: PulsarCluster) -> str:
    """Where clients connect to: what passes at the one must pass at the other."""
    return str(pulsar.service_url if request.param == "broker" else request.getfixturevalue("delaying").service_url)


@pytest.fixture(params=TYPES, ids=NAMES)
def kind(request: pytest.FixtureRequest) -> CommandSubscribe.SubType:
    return request.param  # type: ignore[no-any-return]


class History:
    """One consumer that is active, sometimes a better one that comes; `stored` are times, 0 for those without."""

    def __init__(self, seed: int, url: str, kind: CommandSubscribe.SubType, topic: str) -> None:
        self.chance = random.Random(seed)
        self.url, self.kind, self.topic = url, kind, topic
        self.stored: dict[Place, int] = {}
        self.acked: set[Place] = set()
        self.consumer: RawClient | None = None
        self._priority = 100

    async def begin(self) -> None:
        self.producer = await raw_client(self.url)
        await self.producer.produce(self.topic)
        await self.come()

    async def come(self) -> None:
        """Another consumer; on a Failover subscription it is better than the one that is there."""
        former, self._priority = self.consumer, self._priority - 1
        if former is not None and self.kind == CommandSubscribe.Exclusive:
            await former.close()
        self.consumer = await raw_client(self.url)
        name = f"c{self._priority}"
        await join(self.consumer, self.topic, self.kind, name, permits=0, priority_level=self._priority)
        self.consumer.flow(EVERYTHING)
        self.former = former

    async def leave(self) -> None:
        """The only one goes, and comes again."""
        assert self.consumer is not None
        await self.consumer.close_consumer()
        while not self.consumer.messages.empty():
            self.consumer.messages.get_nowait()
        await join(self.consumer, self.topic, self.kind, f"c{self._priority}", priority_level=self._priority)

    async def publish(self, count: int, delays: bool) -> list[Place]:
        found = []
        for _ in range(count):
            at = now_ms() + self.chance.randrange(1, 1_500) if delays and self.chance.random() < 0.4 else 0
            place = await self.producer.publish(b"x", at or None, sequence_id=len(self.stored))
            self.stored[place] = at
            found.append(place)
        return found

    @property
    def left(self) -> list[Place]:
        return [place for place in self.stored if place not in self.acked]

    async def end(self) -> None:
        for client in (self.producer, self.consumer, self.former):
            if client is not None:
                await client.close()


@pytest.mark.parametrize("seed", range(1, 3))
async def test_without_delays_all_is_known_beforehand(
    seed: int, url: str, kind: CommandSubscribe.SubType, pulsar: PulsarCluster, topic: str
) -> None:
    history = History(seed, url, kind, topic)
    await history.begin()
    taken_over = 0
    for _ in range(STEPS):
        action = history.chance.choice(ACTIONS)
        consumer, left = history.consumer, history.left
        assert consumer is not None
        if action == "publish":
            stored = await history.publish(history.chance.randrange(1, 6), delays=False)
            assert await places(consumer, len(stored)) == stored
            continue
        if action == "ack" and left:
            some = history.chance.sample(left, min(3, len(left)))
            consumer.ack(*some)
            history.acked.update(some)
        elif action == "ack up to" and left:
            upto = history.chance.choice(left[: len(left) // 2 + 1])
            await ack_up_to(consumer, upto)
            history.acked.update(place for place in left if place <= upto)
        elif action == "again":
            consumer.redeliver()
            assert await places(consumer, len(history.left)) == history.left
        elif action == "leave":
            await acked(pulsar, history)
            await history.leave()
            assert await places(consumer, len(history.left)) == history.left
        elif action == "take over" and taken_over < 3:
            taken_over += 1
            await acked(pulsar, history)
            await history.come()
            assert history.consumer is not None
            assert await places(history.consumer, len(history.left)) == history.left
            if history.former is not None:
                await history.former.close()
    assert history.consumer is not None
    await silent(history.consumer)
    await acked(pulsar, history)
    await history.end()


async def acked(pulsar: PulsarCluster, history: History) -> None:
    """The broker has the acks: what it has not by then comes again."""
    first = next((place for place in history.stored if place not in history.acked), None)
    below = [place for place in history.stored if first is None or place < first]
    expected = f"{below[-1][0]}:{below[-1][1]}" if below else None
    if expected is not None:
        await wait_until_async(lambda: cursor(pulsar, history.topic)[0] == expected, f"the cursor at {expected}")


class Delayed(History):
    """What comes is known only when it is there. `passed`: what the consumer has acked up to, and ignores from then on
    as official clients do; a new one does not, and one that only connects anew does."""

    def __init__(self, seed: int, url: str, kind: CommandSubscribe.SubType, topic: str) -> None:
        super().__init__(seed, url, kind, topic)
        self.received: set[Place] = set()
        self.passed: Place = (-1, -1)
        self._taken_over = 0

    async def take(self, quiet_s: float) -> list[Place]:
        """What the application sees until nothing comes for a while."""
        found: list[Place] = []
        assert self.consumer is not None
        try:
            while True:
                place = (await self.consumer.message(quiet_s)).position
                assert now_ms() >= self.stored[place], "early"
                if place > self.passed:
                    found.append(place)
        except TimeoutError:
            self.received.update(found)
            return found

    async def step(self, action: str) -> None:
        """Cumulative acks name the message that came last: as of a client that does not look at positions."""
        assert self.consumer is not None
        if action == "publish":
            await self.publish(self.chance.randrange(1, 6), delays=True)
        elif action == "ack" and self.received:
            self.consumer.ack(*self.chance.sample(sorted(self.received), min(3, len(self.received))))
        elif action == "ack up to" and (found := await self.take(0.05)):
            self.passed = found[-1]
            await ack_up_to(self.consumer, self.passed)
        elif action == "again":
            self.consumer.redeliver()
        elif action == "leave":
            await self.leave()
        elif action == "take over" and self._taken_over < 3:
            self._taken_over += 1
            await self.come_new()

    async def come_new(self) -> None:
        await self.come()
        self.passed = (-1, -1)
        if self.former is not None and self.chance.random() < 0.5:
            await self.former.close()

    async def all_is_acked(self, pulsar: PulsarCluster) -> bool:
        """One by one."""
        assert self.consumer is not None
        found = await self.take(0.3)
        if found:
            self.consumer.ack(*found)
        else:
            self.consumer.redeliver()
        last = max(self.stored)
        return cursor(pulsar, self.topic)[0] == f"{last[0]}:{last[1]}"


@pytest.mark.parametrize("seed", range(11, 15))
async def test_with_delays_nothing_is_lost_or_early(
    seed: int, delaying: BridgeProcess, kind: CommandSubscribe.SubType, pulsar: PulsarCluster, topic: str
) -> None:
    history = Delayed(seed, delaying.service_url, kind, topic)
    await history.begin()
    await history.step("publish")
    for _ in range(STEPS):
        await history.step(history.chance.choice(ACTIONS))
    await history.come_new()
    await wait_until_async(lambda: history.all_is_acked(pulsar), "everything acked", timeout=20)
    assert history.received == set(history.stored)
    assert delaying.stats(topic)["subscriptions"]["s"]["early"] == 0
    await history.end()
