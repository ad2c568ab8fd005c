"""Key_Shared, dispatched by the broker itself and by the bridge: the same tests against both."""

import asyncio
import base64
import itertools
import os
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pulsar as pulsar_client
import pytest
import pytest_asyncio

from bridge.dispatch.keyed.key_selector import HashRing
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe, KeySharedMeta, KeySharedMode, ServerError
from bridge.protocol.sticky_keys import HASHES, hashed, ring_hash
from tests.bridge_process import BridgeProcess, now_ms
from tests.clients import Clients, admin, assert_quiet, drain, drain_all, publish, receive, rest_path, texts
from tests.cluster import PulsarCluster
from tests.helpers import wait_until, wait_until_async
from tests.raw_client import RawClient, RawMessage, raw_client
from tests.steady_producer import text_of

LONG = os.environ.get("DELAY_BRIDGE_LONG") == "1"
QUIET_S = 0.4
"""How long nothing may arrive when nothing should."""


@pytest.fixture(params=["broker", "bridge"])
def url(request: pytest.FixtureRequest, pulsar: PulsarCluster) -> str:
    """Where clients connect to: what passes at the one must pass at the other."""
    bridge: PulsarCluster | BridgeProcess = pulsar
    if request.param == "bridge":
        bridge = request.getfixturevalue("bridge")
    return bridge.service_url


Connect = Callable[[], Awaitable[RawClient]]


@pytest_asyncio.fixture
async def connect(url: str) -> AsyncIterator[Connect]:
    yield lambda: raw_client(url)


def key_shared(client: Any, topic: str, subscription: str = "s", **arguments: Any) -> Any:
    arguments.setdefault("initial_position", pulsar_client.InitialPosition.Earliest)
    arguments.setdefault("negative_ack_redelivery_delay_ms", 100)
    return client.subscribe(topic, subscription, consumer_type=pulsar_client.ConsumerType.KeyShared, **arguments)


def sharing(*ranges: tuple[int, int], out_of_order: bool = False) -> KeySharedMeta:
    """Sticky, if there are ranges."""
    meta = KeySharedMeta(keySharedMode=KeySharedMode.STICKY if ranges else KeySharedMode.AUTO_SPLIT)
    meta.allowOutOfOrderDelivery = out_of_order
    for start, end in ranges:
        meta.hashRanges.add(start=start, end=end)
    return meta


async def join(
    client: RawClient, topic: str, name: str, meta: KeySharedMeta | None = None, permits: int = 1_000
) -> None:
    """A consumer on a connection of its own."""
    meta = sharing() if meta is None else meta
    await client.consume(topic, subType=CommandSubscribe.Key_Shared, consumer_name=name, keySharedMeta=meta)
    client.flow(permits)


def key_of(names: Sequence[str], owner: str, among: Sequence[str] = ()) -> str:
    """A key that is `owner`'s on a ring of these consumers, in this order; and one of `names`' own without the last."""
    ring: HashRing[str] = HashRing()
    for name in names:
        ring.add(name, name)
    return next(str(n) for n in range(1 << 16) if ring.select(ring_hash(hashed(str(n).encode()))) == owner)


def sticky_hash(key: str) -> int:
    return hashed(key.encode()) % HASHES or 1


async def payloads(client: RawClient, count: int) -> list[str]:
    return [(await client.message()).payload.decode() for _ in range(count)]


async def assert_silent(*clients: RawClient) -> None:
    await asyncio.sleep(QUIET_S)
    assert [client.messages.qsize() for client in clients] == [0] * len(clients)


# -- who gets what


def test_keys_spread_and_keep_their_order(url: str, clients: Clients, topic: str) -> None:
    client = clients.connect(url)
    consumers = [key_shared(client, topic, receiver_queue_size=20) for _ in range(3)]
    producer = client.create_producer(topic)
    for number in range(900):
        producer.send_async(str(number).encode(), lambda *_: None, partition_key=f"k{number % 60}")
    producer.flush()
    found: list[list[int]] = [[], [], []]

    def all_there() -> bool:
        for part, consumer in zip(found, consumers, strict=True):
            part += map(int, texts(drain_all(consumer, 50)))
        return sum(map(len, found)) >= 900

    wait_until(all_there, "all messages", timeout=30)
    assert sorted(found[0] + found[1] + found[2]) == list(range(900))
    keys = [{number % 60 for number in part} for part in found]
    assert all(keys), "each consumer has some"
    assert sum(map(len, keys)) == 60, "no key has two consumers"
    for part in found:
        for key in range(60):
            of_key = [number for number in part if number % 60 == key]
            assert of_key == sorted(of_key)
    assert backlog_is_empty(url, clients, topic)


def backlog_is_empty(url: str, clients: Clients, topic: str) -> bool:
    """Nothing comes to a consumer that comes later."""
    again = clients.connect(url).subscribe(topic, "s", consumer_type=pulsar_client.ConsumerType.KeyShared)
    assert_quiet(again)
    return True


async def test_shares_are_those_that_the_broker_tells(connect: Connect, pulsar: PulsarCluster, topic: str) -> None:
    """Of consumers that it dispatches to itself, and of those that the bridge does."""
    members = {name: await connect() for name in ("one", "two", "three")}
    for name, client in members.items():
        await join(client, topic, name)
    told = {
        consumer["consumerName"]: consumer["keyHashRangeArrays"]
        for consumer in admin(pulsar, "GET", f"{rest_path(topic)}/stats")["subscriptions"]["s"]["consumers"]
    }
    producer = await connect()
    await producer.produce(topic)
    for number in range(300):
        await producer.publish(str(number).encode(), partition_key=str(number), sequence_id=number)
    await wait_until_async(lambda: sum(each.messages.qsize() for each in members.values()) == 300, "all messages")
    for name, client in members.items():
        for key in await payloads(client, client.messages.qsize()):
            at = ring_hash(hashed(key.encode()))
            assert any(start <= at <= end for start, end in told[name]), (name, key)


async def test_messages_without_a_key_spread(connect: Connect, topic: str) -> None:
    members = [await connect() for _ in range(2)]
    for number, client in enumerate(members):
        await join(client, topic, f"c{number}")
    producer = await connect()
    await producer.produce(topic)
    for number in range(60):
        await producer.publish(str(number).encode(), sequence_id=number)
    await wait_until_async(lambda: sum(each.messages.qsize() for each in members) == 60, "all messages")
    assert min(each.messages.qsize() for each in members) > 5


async def test_the_key_is_the_ordering_key_or_decoded(connect: Connect, topic: str) -> None:
    low, high = await connect(), await connect()
    await join(low, topic, "low", sharing((0, HASHES // 2 - 1)))
    await join(high, topic, "high", sharing((HASHES // 2, HASHES - 1)))
    in_low = next(str(n) for n in range(1_000) if sticky_hash(str(n)) < HASHES // 2)
    in_high = next(str(n) for n in range(1_000) if sticky_hash(str(n)) >= HASHES // 2)
    encoded = next(
        base64.b64encode(str(n).encode()).decode()
        for n in range(1_000)
        if sticky_hash(str(n)) < HASHES // 2 <= sticky_hash(base64.b64encode(str(n).encode()).decode())
    )
    producer = await connect()
    await producer.produce(topic)
    await producer.publish(b"plain", partition_key=in_high, sequence_id=1)
    await producer.publish(b"ordering", partition_key=in_high, ordering_key=in_low.encode(), sequence_id=2)
    await producer.publish(b"text", partition_key=encoded, sequence_id=3)
    await producer.publish(b"decoded", partition_key=encoded, partition_key_b64_encoded=True, sequence_id=4)
    assert await payloads(high, 2) == ["plain", "text"]
    assert await payloads(low, 2) == ["ordering", "decoded"]


async def test_keys_that_are_no_text(connect: Connect, topic: str) -> None:
    """Keys of any bytes, as clients in C++ and Go can give; delayed ones through the bridge, too."""
    low, high = await connect(), await connect()
    await join(low, topic, "low", sharing((0, HASHES // 2 - 1)))
    await join(high, topic, "high", sharing((HASHES // 2, HASHES - 1)))
    producer = await connect()
    await producer.produce(topic)
    keys = [bytes((255 - number, 0xC3, 0x28, number)) for number in range(12)]
    for number, key in enumerate(keys):
        deliver_at = now_ms() + 200 if number % 2 else None
        await producer.publish(str(number).encode(), deliver_at, key="kkkk", changed=(b"kkkk", key), sequence_id=number)
    expected = {str(number): sticky_hash(key.decode(errors="replace")) < HASHES // 2 for number, key in enumerate(keys)}
    for client, is_low in ((low, True), (high, False)):
        own = sorted(text for text, owner in expected.items() if owner is is_low)
        assert sorted(await payloads(client, len(own))) == own


def test_batches_by_key(url: str, clients: Clients, topic: str) -> None:
    client = clients.connect(url)
    consumers = [key_shared(client, topic) for _ in range(2)]
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_publish_delay_ms=50,
        batching_type=pulsar_client.BatchingType.KeyBased,
    )
    for number in range(200):
        producer.send_async(str(number).encode(), lambda *_: None, partition_key=f"k{number % 20}")
    producer.flush()
    found = [[int(each) for each in texts(drain_all(consumer, 1_000))] for consumer in consumers]
    assert sorted(found[0] + found[1]) == list(range(200))
    assert not {number % 20 for number in found[0]} & {number % 20 for number in found[1]}
    for part in found:
        for key in range(20):
            of_key = [number for number in part if number % 20 == key]
            assert of_key == sorted(of_key)


# -- ranges


async def test_ranges(connect: Connect, topic: str) -> None:
    """What is nobody's waits, and the rest goes on, until somebody comes for it."""
    low, high = await connect(), await connect()
    await join(low, topic, "low", sharing((0, 19_999)))
    await join(high, topic, "high", sharing((40_000, 49_999), (60_000, 65_535)))
    producer = await connect()
    await producer.produce(topic)
    keys = [str(number) for number in range(60)]
    for number, key in enumerate(keys):
        await producer.publish(key.encode(), partition_key=key, sequence_id=number)
    of_low = [key for key in keys if sticky_hash(key) < 20_000]
    of_high = [key for key in keys if 40_000 <= sticky_hash(key) < 50_000 or sticky_hash(key) >= 60_000]
    assert sorted(await payloads(low, len(of_low))) == sorted(of_low)
    assert sorted(await payloads(high, len(of_high))) == sorted(of_high)
    await assert_silent(low, high)
    rest = await connect()
    await join(rest, topic, "rest", sharing((20_000, 39_999), (50_000, 59_999)))
    left = [key for key in keys if key not in of_low and key not in of_high]
    assert sorted(await payloads(rest, len(left))) == sorted(left)
    await assert_silent(low, high, rest)


REFUSALS: dict[str, tuple[dict[str, Any], int, str]] = {
    "a range that is taken": (
        {"keySharedMeta": sharing((5_000, 30_000))},
        ServerError.ConsumerAssignError,
        "Range conflict with consumer",
    ),
    "a range upside down": (
        {"keySharedMeta": sharing((40_000, 30_000))},
        ServerError.ConsumerAssignError,
        "start > end|Fixed hash range",
    ),
    "ranges that overlap each other": (
        {"keySharedMeta": sharing((30_000, 40_000), (35_000, 50_000))},
        ServerError.ConsumerAssignError,
        "overlap",
    ),
    "no range": (
        {"keySharedMeta": KeySharedMeta(keySharedMode=KeySharedMode.STICKY)},
        ServerError.ConsumerAssignError,
        "must not be empty",
    ),
}


@pytest.mark.parametrize(("fields", "code", "reason"), REFUSALS.values(), ids=REFUSALS)
async def test_refused_ranges(connect: Connect, topic: str, fields: dict[str, Any], code: int, reason: str) -> None:
    await join(await connect(), topic, "first", sharing((0, 19_999)))
    second = await connect()
    await second.lookup(topic)
    answer = await second.subscribe(topic, subType=CommandSubscribe.Key_Shared, consumer_name="second", **fields)
    assert answer.type == BaseCommand.ERROR
    assert answer.error.error == code
    assert re.search(reason, answer.error.message), answer.error.message


OTHERS: dict[str, dict[str, Any]] = {
    "shared": {"subType": CommandSubscribe.Shared},
    "exclusive": {"subType": CommandSubscribe.Exclusive},
}


@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS)
async def test_another_type_is_refused(connect: Connect, topic: str, fields: dict[str, Any]) -> None:
    await join(await connect(), topic, "first")
    second = await connect()
    await second.lookup(topic)
    answer = await second.subscribe(topic, consumer_name="second", **fields)
    assert answer.type == BaseCommand.ERROR
    assert answer.error.error == ServerError.ConsumerBusy
    assert "different type" in answer.error.message


async def test_a_subscription_changes_its_type_when_nobody_is_there(connect: Connect, topic: str) -> None:
    first, producer = await connect(), await connect()
    await producer.produce(topic)
    await first.consume(topic)
    for number in range(6):
        await producer.publish(str(number).encode(), partition_key="k", sequence_id=number)
    first.flow(3)
    received = [await first.message() for _ in range(3)]
    first.ack(received[0].position)
    await first.close_consumer()
    await join(first, topic, "c")
    assert await payloads(first, 5) == ["1", "2", "3", "4", "5"]
    await first.close_consumer()
    await first.consume(topic)
    first.flow(10)
    assert sorted(await payloads(first, 5)) == ["1", "2", "3", "4", "5"]


# -- the order of a key


async def moved_key(
    connect: Connect, topic: str, *, out_of_order: bool = False
) -> tuple[RawClient, RawClient, RawClient, str]:
    """A key with two unacked messages at `a` that is `b`'s since `b` came, and a producer of more."""
    a, b, producer = await connect(), await connect(), await connect()
    key = key_of(["a", "b"], "b")
    await producer.produce(topic)
    await join(a, topic, "a", sharing(out_of_order=out_of_order))
    for number in range(2):
        await producer.publish(str(number).encode(), partition_key=key, sequence_id=number)
    assert a.messages.qsize() == 2 or await wait_until_async(lambda: a.messages.qsize() == 2, "both messages")
    await join(b, topic, "b", sharing(out_of_order=out_of_order))
    await has_its_keys(b, a, producer, next(f"probe{n}" for n in range(50) if key_of_owner(f"probe{n}") == "b"))
    return a, b, producer, key


async def has_its_keys(consumer: RawClient, former: RawClient, producer: RawClient, key: str) -> None:
    """A bridge lets a consumer in once the broker lists it, a moment later: until then its keys are others'."""
    numbers = itertools.count(1_000)
    kept = [await former.message() for _ in range(former.messages.qsize())]

    async def is_its_own() -> bool:
        await producer.publish(b"probe", partition_key=key, sequence_id=next(numbers))
        await wait_until_async(lambda: consumer.messages.qsize() + former.messages.qsize(), "the probe")
        taker = former if consumer.messages.empty() else consumer
        taker.ack((await taker.message()).position)
        return taker is consumer

    await wait_until_async(is_its_own, "its keys are its own", interval=0.01)
    for message in kept:
        former.messages.put_nowait(message)


async def test_a_key_moves_when_it_is_acked(connect: Connect, topic: str) -> None:
    a, b, producer, key = await moved_key(connect, topic)
    other = key_of(["a", "b"], "b") + "x"
    others = [k for k in (f"{other}{n}" for n in range(50)) if key_of_owner(k) == "b"][:5]
    await producer.publish(b"2", partition_key=key, sequence_id=2)
    for number, each in enumerate(others):
        await producer.publish(each.encode(), partition_key=each, sequence_id=10 + number)
    assert await payloads(b, len(others)) == others, "other keys are not held up"
    await producer.publish(b"3", partition_key=key, sequence_id=3)
    await assert_silent(b)
    first, second = await a.message(), await a.message()
    a.ack(first.position)
    await assert_silent(a, b)
    a.ack(second.position)
    assert await payloads(b, 2) == ["2", "3"]
    await assert_silent(a)


def key_of_owner(key: str) -> str | None:
    """Whose a key is among `a` and `b`."""
    ring: HashRing[str] = HashRing()
    for name in "ab":
        ring.add(name, name)
    return ring.select(ring_hash(hashed(key.encode())))


async def test_a_key_moves_when_its_consumer_leaves(connect: Connect, topic: str) -> None:
    a, b, producer, key = await moved_key(connect, topic)
    await producer.publish(b"2", partition_key=key, sequence_id=2)
    await assert_silent(b)
    a.ack((await a.message()).position)
    await a.close_consumer()
    assert await payloads(b, 2) == ["1", "2"]


async def test_a_key_moves_when_it_is_given_back(connect: Connect, topic: str) -> None:
    a, b, producer, key = await moved_key(connect, topic)
    await producer.publish(b"2", partition_key=key, sequence_id=2)
    await assert_silent(b)  # a broker may send what it has just read before what is given back meanwhile
    a.redeliver()
    received = [await b.message() for _ in range(3)]
    assert [(each.payload, each.redelivery_count) for each in received] == [(b"0", 1), (b"1", 1), (b"2", 0)]


async def test_where_any_order_is_allowed_a_key_moves_at_once(connect: Connect, topic: str) -> None:
    a, b, producer, key = await moved_key(connect, topic, out_of_order=True)
    await producer.publish(b"2", partition_key=key, sequence_id=2)
    assert await payloads(b, 1) == ["2"]
    assert await payloads(a, 2) == ["0", "1"]


async def test_what_comes_again_goes_before_what_is_later(connect: Connect, topic: str) -> None:
    consumer, producer = await connect(), await connect()
    await producer.produce(topic)
    await join(consumer, topic, "c", permits=3)
    for number in range(6):
        await producer.publish(str(number).encode(), partition_key="k", sequence_id=number)
    received = [await consumer.message() for _ in range(3)]
    consumer.redeliver(received[1].position)
    await assert_silent(consumer)
    consumer.flow(2)
    again = [await consumer.message() for _ in range(2)]
    assert [(each.payload, each.redelivery_count) for each in again] == [(b"1", 1), (b"3", 0)]


async def test_a_consumer_that_takes_nothing_holds_up_its_own_keys_only(connect: Connect, topic: str) -> None:
    slow, quick, producer = await connect(), await connect(), await connect()
    await producer.produce(topic)
    await join(slow, topic, "a", permits=1)
    await join(quick, topic, "b")
    keys = [str(number) for number in range(1_000)]
    for number, key in enumerate(keys):
        await producer.publish(key.encode(), partition_key=key, sequence_id=number)
    of_quick = [key for key in keys if key_of_owner(key) == "b"]
    of_slow = [key for key in keys if key_of_owner(key) == "a"]
    assert sorted(await payloads(quick, len(of_quick))) == sorted(of_quick)
    slow.flow(len(of_slow))
    assert sorted(await payloads(slow, len(of_slow))) == sorted(of_slow)


# -- delays, redelivery, dead letters


def test_delays(bridge: BridgeProcess, clients: Clients, topic: str) -> None:
    """Never early; what is due at one time comes in the order of its key."""
    client = clients.connect(bridge.service_url)
    consumers = [key_shared(client, topic) for _ in range(3)]
    producer = client.create_producer(topic)
    at = now_ms() + 1_500
    due = {number: at + number % 3 * 400 for number in range(600)}
    for number, deliver_at in due.items():
        producer.send_async(
            str(number).encode(), lambda *_: None, partition_key=f"k{number % 30}", deliver_at=deliver_at
        )
    producer.flush()
    found = [received for consumer in consumers for received in drain_all(consumer, 3_500)]
    assert sorted(int(each.text) for each in found) == list(range(600))
    order: dict[tuple[int, int], list[int]] = defaultdict(list)
    for each in found:
        number = int(each.text)
        assert each.at_ms >= due[number]
        order[number % 30, due[number]].append(number)
    assert all(numbers == sorted(numbers) for numbers in order.values())


async def test_what_is_due_waits_for_its_key(bridge: BridgeProcess, topic: str) -> None:
    """Delayed and immediate messages of a key that another consumer has not acked."""
    a, b, producer, key = await moved_key(lambda: raw_client(bridge.service_url), topic)
    at = now_ms() + 300
    await producer.publish(b"due", at, partition_key=key, sequence_id=2)
    await producer.publish(b"also due", at, partition_key=key, sequence_id=3)
    other = next(each for each in map(str, range(1_000)) if key_of_owner(each) == "b" and each != key)
    await producer.publish(b"other", at, partition_key=other, sequence_id=4)
    assert await payloads(b, 1) == ["other"]
    await assert_silent(b)
    a.ack(*[(await a.message()).position for _ in range(2)])
    assert await payloads(b, 2) == ["due", "also due"]


def test_dead_letters(url: str, clients: Clients, topic: str) -> None:
    client = clients.connect(url)
    dead_topic = f"{topic}-dead"
    dead = client.subscribe(dead_topic, "d", initial_position=pulsar_client.InitialPosition.Earliest)
    consumer = key_shared(
        client,
        topic,
        dead_letter_policy=pulsar_client.ConsumerDeadLetterPolicy(2, dead_topic, "i"),
    )
    publish(client.create_producer(topic), ["bad"], partition_key="k")
    counts = []
    for _ in range(3):
        received = receive(consumer, ack=False)
        counts.append(received.redelivery_count)
        consumer.negative_acknowledge(received.message)
    assert counts == [0, 1, 2]
    assert texts(drain(dead, 1)) == ["bad"]
    assert_quiet(consumer)


# -- joins and leaves


class Group:
    """Members of a subscription that come and go; what is wrong is in `faults`."""

    def __init__(self, connect: Connect, topic: str) -> None:
        self.received: Counter[str] = Counter()
        self.acked: set[str] = set()
        self.faults: list[str] = []
        self.members: list[RawClient] = []
        self._connect = connect
        self._topic = topic
        self._names = 0
        self._in_hand: dict[RawClient, dict[str, set[int]]] = {}  # by key, not acked
        self._closed: set[RawClient] = set()  # in order
        self._newest: dict[str, int] = defaultdict(lambda: -1)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def has_any(self) -> bool:
        """Whether any member has messages that it did not ack."""
        return any(any(in_hand.values()) for in_hand in self._in_hand.values())

    async def join(self) -> None:
        self._names += 1
        client = await self._connect()
        self._in_hand[client] = defaultdict(set)
        await join(client, self._topic, f"member-{self._names}", permits=100)
        self.members.append(client)
        task = asyncio.create_task(self._work(client))
        self._tasks.add(task)

    async def leave(self, *, cut: bool) -> None:
        """What some member has in hand comes to others from now on."""
        client = self.members.pop(random.Random(self._names).randrange(len(self.members)))
        del self._in_hand[client]
        if not cut:
            await client.close_consumer()
            self._closed.add(client)
        await client.close()

    async def _work(self, client: RawClient) -> None:
        """Take, and ack after a while, not in order; until it leaves."""
        chance = random.Random(self._names)
        while client in self._in_hand:
            taken = [await client.message()] if client.messages.empty() else []
            while not client.messages.empty() and len(taken) < 30:
                taken.append(client.messages.get_nowait())
            if client not in self._in_hand:
                return
            for message in taken:
                self._take(client, message)
            await asyncio.sleep(chance.choice((0, 0.002, 0.02)))
            if client in self._in_hand:
                chance.shuffle(taken)
                self._ack(client, taken)
                client.flow(len(taken))

    def _take(self, client: RawClient, message: RawMessage) -> None:
        text = message.payload.decode()
        key, number = text.split(":")[0], int(text.split(":")[1])
        for other, in_hand in self._in_hand.items():
            if other is not client and in_hand[key]:
                self.faults.append(f"{text} while another consumer has {in_hand[key]}")
        if number > self._newest[key] + 1:
            self.faults.append(f"{text} overtakes {self._newest[key] + 1}")
        self._newest[key] = max(self._newest[key], number)
        if text in self.acked:
            self.faults.append(f"{text} again, though acked a while ago")
        self.received[text] += 1
        self._in_hand[client][key].add(number)

    def _ack(self, client: RawClient, messages: list[RawMessage]) -> None:
        client.ack(*(message.position for message in messages))
        for message in messages:
            text = message.payload.decode()
            self._in_hand[client][text.split(":")[0]].discard(int(text.split(":")[1]))
            asyncio.get_running_loop().call_later(0.5, self._was_kept, client, text)

    def _was_kept(self, client: RawClient, text: str) -> None:
        """An ack that is on its way when its consumer is cut off may be lost with it."""
        if client in self._in_hand or client in self._closed:
            self.acked.add(text)

    async def end(self) -> None:
        while self.members:
            await self.leave(cut=True)
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        failed = [e for e in ended if isinstance(e, Exception) and not isinstance(e, TimeoutError)]
        assert not failed, failed[:3]


RATE, SECONDS = (5_000, 30) if LONG else (1_000, 8)


async def published_to(url: str, topic: str, lead_ms: int) -> int:
    """How many, once all are stored."""
    command = ["-m", "tests.steady_producer", url, topic, str(SECONDS), str(RATE), str(lead_ms)]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=subprocess.PIPE)
    said, _ = await process.communicate()
    assert process.returncode == 0
    stored, seconds = said.split()
    assert int(stored) / float(seconds) > RATE * 0.9, "the rate that the test is of"
    return int(stored)


@pytest.mark.parametrize("delayed", [False, True], ids=["immediate", "delayed"])
async def test_joins_and_leaves_under_load(
    bridge: BridgeProcess, pulsar: PulsarCluster, topic: str, delayed: bool
) -> None:
    """Ten of each a second: nothing is lost, each key keeps its order and is never with two consumers."""

    async def connect() -> RawClient:
        return await raw_client(bridge.service_url)

    group = Group(connect, topic)
    for _ in range(4):
        await group.join()
    producing = asyncio.create_task(published_to(pulsar.service_url, topic, 1_000 if delayed else 0))
    moves: list[asyncio.Task[None]] = []
    while not producing.done():
        moves.append(asyncio.create_task(group.join()))
        if len(group.members) > 3:
            moves.append(asyncio.create_task(group.leave(cut=len(moves) % 4 < 2)))
        await asyncio.sleep(0.1)
    await asyncio.gather(*moves)
    published = await producing
    await wait_until_async(lambda: len(group.received) == published, "every message", timeout=60)
    await wait_until_async(lambda: not group.has_any, "every ack", timeout=60)
    await group.end()
    assert not group.faults, (len(group.faults), group.faults[:5])
    assert set(group.received) == {text_of(number) for number in range(published)}
