"""What a subscription still has to get of the immediate entries: each once, in order, whoever reads them."""

import asyncio
import itertools
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bridge.broker.connection import BrokerError
from bridge.broker.reader import EntryReader
from bridge.intake.feed import Feed
from bridge.intake.tail_buffer import TailBuffer
from bridge.limits import DispatchLimits, IntakeLimits
from bridge.net.tasks import Tasks
from bridge.protocol.entries import StoredEntry
from bridge.protocol.permits import Permits
from tests.helpers import wait_until_async
from tracker import AckSet, Position

START = Position(1, -1)
USUAL = IntakeLimits()
SMALL = IntakeLimits(feed_permits=10, feed_queue_entries=20)
SLICE_BYTES = DispatchLimits().dispatch_slice_bytes


class Log:
    """A topic partition: entry n is delayed when n is in `delayed`."""

    def __init__(self) -> None:
        self.entries: list[StoredEntry] = []

    def publish(self, *, delayed: bool = False, marker: bool = False, size: int = 10, batch: int = 1) -> None:
        deliver_at = 1 if delayed else None
        self.entries.append(StoredEntry(1, len(self.entries), deliver_at, batch, marker, bytes(size)))


class FakeReader:
    """Gives entries as a broker does, when told to: as many at once as there are permits, whatever their batches."""

    def __init__(self, log: Log, after: Position, on_entries: Callable[[list[StoredEntry]], None]) -> None:
        self.closed = False
        self._permits = Permits()
        self._log = log
        self._next = after.entry + 1
        self._on_entries = on_entries

    @property
    def permits(self) -> int:
        return self._permits.count

    def top_up(self, permits: int) -> None:
        assert not self.closed
        assert self._permits.top_up(permits), "nothing to grant"

    def read(self, count: int) -> None:
        count = min(count, max(self.permits, 0))
        entries = self._log.entries[self._next : self._next + count]
        if entries and not self.closed:
            self._next += len(entries)
            for entry in entries:
                self._permits.use(entry.batch_size)
            self._on_entries(entries)

    def close(self) -> None:
        self.closed = True


class Scene:
    """A feed between a log, a tail buffer with a harvester, and its own reader."""

    def __init__(
        self,
        start: Position = START,
        tail_start: Position = START,
        max_entries: int = 100,
        limits: IntakeLimits = USUAL,
    ) -> None:
        self.log = Log()
        self.acks = AckSet(start)
        self.tail = TailBuffer(tail_start, USUAL.tail_buffer_bytes, max_entries)
        self.readers: list[FakeReader] = []
        self.closers: list[Callable[[Exception], None]] = []
        self.refuse = 0
        self.woken = 0
        self.failed: list[Exception] = []
        self._harvested = tail_start.entry + 1
        self.feed = Feed(start, self.acks, self.tail, self.open, self.wake, Tasks(self.failed.append), limits)

    async def open(
        self, after: Position, on_entries: Callable[[list[StoredEntry]], None], on_closed: Callable[[Exception], None]
    ) -> EntryReader:
        await asyncio.sleep(0)
        if self.refuse:
            self.refuse -= 1
            raise BrokerError("refused")
        assert not self.readers or self.readers[-1].closed
        self.readers.append(FakeReader(self.log, after, on_entries))
        self.closers.append(on_closed)
        return cast(EntryReader, self.readers[-1])

    def wake(self) -> None:
        self.woken += 1

    def publish(self, count: int = 1, *, delayed: bool = False, batch: int = 1) -> None:
        for _ in range(count):
            self.log.publish(delayed=delayed, batch=batch)

    def harvest(self, count: int = 1 << 30) -> None:
        new = self.log.entries[self._harvested : self._harvested + count]
        self._harvested += len(new)
        self.tail.push([entry for entry in new if entry.deliver_at_ms is None and not entry.marker])

    def read(self, count: int = 1 << 30) -> None:
        if self.readers and not self.readers[-1].closed:
            self.readers[-1].read(count)

    def take(self, limit: int = 1_000) -> list[int]:
        return [entry.entry for entry in self.feed.take(limit, SLICE_BYTES)]


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


# -- at the tail


async def test_at_the_tail_nothing_is_read_from_the_broker() -> None:
    scene = Scene()
    scene.publish(3)
    scene.harvest()
    assert scene.feed.at_tail
    assert scene.take() == [0, 1, 2]
    assert scene.take() == []
    await settle()
    assert not scene.readers


async def test_delayed_entries_and_markers_are_not_its_own() -> None:
    scene = Scene(tail_start=Position(1, 2))
    scene.publish()
    scene.publish(delayed=True)
    scene.log.publish(marker=True)
    scene.publish()
    assert scene.take() == []
    await settle()
    scene.read()
    scene.harvest()
    assert scene.take() == [0, 3]
    scene.feed.close()


async def test_acked_entries_are_skipped() -> None:
    scene = Scene()
    scene.publish(4)
    scene.harvest()
    scene.acks.add(1, 1)
    assert scene.take(2) == [0, 2]
    assert scene.take(2) == [3]


async def test_a_limit() -> None:
    scene = Scene()
    scene.publish(4)
    scene.harvest()
    assert [scene.take(1), scene.take(2), scene.take(0), scene.take(9)] == [[0], [1, 2], [], [3]]


# -- behind the tail


async def test_behind_the_tail_it_reads_for_itself_and_joins() -> None:
    scene = Scene(tail_start=Position(1, 5))
    scene.publish(6)
    assert not scene.feed.at_tail
    assert scene.take() == []
    await settle()
    assert len(scene.readers) == 1
    scene.read(3)
    assert not scene.feed.at_tail
    assert scene.woken
    assert scene.take() == [0, 1, 2]
    scene.read()
    assert scene.readers[0].closed
    scene.publish(2)
    scene.harvest()
    assert scene.take() == [3, 4, 5, 6, 7]
    assert len(scene.readers) == 1


async def test_too_slow_for_the_buffer() -> None:
    scene = Scene(max_entries=4)
    scene.publish(2)
    scene.harvest()
    assert scene.take() == [0, 1]
    scene.publish(10)
    scene.harvest()
    assert scene.take() == []
    await settle()
    scene.read()
    assert scene.take() == list(range(2, 12))
    assert scene.feed.at_tail


async def test_ahead_of_the_harvester() -> None:
    scene = Scene(tail_start=Position(1, 2))
    scene.publish(8)
    scene.take()
    await settle()
    scene.read()
    assert scene.take() == list(range(8))
    scene.harvest()
    assert scene.take() == []
    scene.publish()
    scene.harvest()
    assert scene.take() == [8]


async def test_permits_follow_what_is_taken() -> None:
    """A subscription whose consumers take nothing holds its reader back."""
    scene = Scene(tail_start=Position(1, 99), limits=SMALL)
    scene.publish(100)
    scene.take()
    await settle()
    for _ in range(20):
        scene.read()
    assert scene.readers[0].permits == 0
    first = scene.take()
    assert len(first) == 20
    assert scene.readers[0].permits > 0
    found = first
    while len(found) < 100:
        scene.read()
        found += scene.take(7)
    assert found == list(range(100))
    scene.feed.close()


async def test_bytes_hold_the_reader_back() -> None:
    scene = Scene(tail_start=Position(1, 99), limits=IntakeLimits(feed_permits=10, feed_queue_bytes=1_000))
    for _ in range(100):
        scene.log.publish(size=200)
    scene.take()
    await settle()
    for _ in range(20):
        scene.read(1)
    assert len(scene.take()) <= 20
    scene.feed.close()


@pytest.mark.parametrize("batch", [0, 1, 7, 1_000, 2**27])
async def test_batches_do_not_use_up_the_permits_for_good(batch: int) -> None:
    """However far a batch takes the broker's count below zero, the reader goes on as soon as there is room."""
    scene = Scene(tail_start=Position(1, 99), limits=SMALL)
    scene.publish(100, batch=batch)
    found: list[int] = []
    for _ in range(100):
        found += scene.take(2)
        await settle()
        scene.read()
    assert found == list(range(100))
    assert len(scene.readers) == 1
    scene.feed.close()


async def test_a_batch_of_less_than_nothing_does_not_open_the_gates() -> None:
    """The broker adds it to the permits, and would send what no queue holds: the reader is opened anew."""
    scene = Scene(tail_start=Position(1, 99), limits=SMALL)
    scene.publish(1)
    scene.publish(1, batch=-(2**30))
    scene.publish(98)
    found: list[int] = []
    for _ in range(100):
        found += scene.take(2)
        await settle()
        scene.read()
        assert len(scene.feed._queue) <= 30
    assert found == list(range(100))
    assert len(scene.readers) == 2
    scene.feed.close()


async def test_a_reader_that_is_lost_is_replaced() -> None:
    scene = Scene(tail_start=Position(1, 9))
    scene.publish(10)
    scene.take()
    await settle()
    scene.read(4)
    scene.readers[0].closed = True
    scene.closers[0](BrokerError("unloaded"))
    assert scene.take() == [0, 1, 2, 3]
    assert scene.take() == []
    await settle()
    assert len(scene.readers) == 2
    scene.read()
    assert scene.take() == [4, 5, 6, 7, 8, 9]


async def test_a_broker_that_refuses_is_asked_again() -> None:
    scene = Scene(tail_start=Position(1, 1), limits=IntakeLimits(feed_retry_s=0.0))
    scene.refuse = 2
    scene.publish(2)

    def readers() -> list[FakeReader]:
        scene.take()
        return scene.readers

    await wait_until_async(readers, "a reader", interval=0)
    scene.read()
    assert scene.take() == [0, 1]
    assert scene.woken >= 2


async def test_closing() -> None:
    scene = Scene(tail_start=Position(1, 1))
    scene.publish(2)
    scene.take()
    scene.feed.close()  # while the reader is being opened
    await settle()
    assert all(reader.closed for reader in scene.readers)
    scene = Scene(tail_start=Position(1, 1))
    scene.publish(2)
    scene.take()
    await settle()
    scene.feed.close()
    assert scene.readers[0].closed


# -- checkpoints


async def test_the_checkpoint_is_before_the_first_unacked() -> None:
    scene = Scene()
    scene.publish(5)
    scene.harvest()
    assert scene.feed.checkpoint() == START
    scene.take(4)
    assert scene.feed.checkpoint() == START
    scene.acks.add(1, 0)
    scene.acks.add(1, 2)
    assert scene.feed.checkpoint() == Position(1, 0)
    scene.acks.add(1, 1)
    assert scene.feed.checkpoint() == Position(1, 2)
    scene.acks.add(1, 3)
    assert scene.feed.checkpoint() == Position(1, 3)


async def test_delayed_entries_do_not_hold_the_checkpoint() -> None:
    """They are the index's; a checkpoint that waited for them would have the immediate ones read again."""
    scene = Scene()
    scene.publish(delayed=True)
    scene.publish(5)
    scene.harvest()
    for number in scene.take():
        scene.acks.add(1, number)
    assert scene.feed.checkpoint() == Position(1, 5)


# -- any order of events

STEPS = st.lists(
    st.sampled_from(["publish", "delayed", "harvest", "read", "take", "ack", "settle", "lose"]), max_size=80
)


@hypothesis_settings(max_examples=150, deadline=None)
@given(steps=STEPS, amounts=st.lists(st.integers(1, 6), min_size=1, max_size=10), behind=st.integers(0, 8))
def test_each_entry_once_and_in_order(steps: list[str], amounts: list[int], behind: int) -> None:
    asyncio.run(_any_order(steps, amounts, behind))


async def _any_order(steps: list[str], amounts: list[int], behind: int) -> None:
    limits = IntakeLimits(feed_permits=4, feed_queue_entries=6)
    scene = Scene(tail_start=Position(1, behind - 1), max_entries=4, limits=limits)
    scene.publish(behind)
    taken: list[int] = []
    acked: set[int] = set()
    checkpoint = START
    for step, amount in zip(steps, itertools.cycle(amounts), strict=False):
        if step in ("publish", "delayed"):
            scene.publish(amount, delayed=step == "delayed", batch=1 if amount % 2 else 9 * amount)
        elif step == "harvest":
            scene.harvest(amount)
        elif step == "read":
            scene.read(amount)
        elif step == "take":
            taken += scene.take(amount)
        elif step == "ack" and scene.log.entries:
            number = (amount * 7) % len(scene.log.entries)
            scene.acks.add(1, number)
            acked.add(number)
        elif step == "settle":
            await settle()
        elif step == "lose" and scene.readers and not scene.readers[-1].closed:
            scene.readers[-1].closed = True
            scene.closers[-1](BrokerError("lost"))
        before, checkpoint = checkpoint, scene.feed.checkpoint()
        assert checkpoint >= before
        assert not [n for n in wanted(scene) if n <= checkpoint.entry and n not in acked]
    for _ in range(200):
        scene.harvest()
        taken += scene.take(5)
        await settle()
        scene.read()
    assert taken == sorted(set(taken))
    assert not set(wanted(scene)) - acked - set(taken)
    scene.feed.close()
    await settle()


def wanted(scene: Scene) -> list[int]:
    return [entry.entry for entry in scene.log.entries if entry.deliver_at_ms is None]
