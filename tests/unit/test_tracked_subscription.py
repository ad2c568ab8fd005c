"""What a tracked subscription sends, in what order, of what is due, given back, held and acked: without a broker."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from bridge.broker.fetch import Fetched
from bridge.dispatch.dispatcher import PositionKey
from bridge.dispatch.outlet import Source
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.intake.feed import Feed
from bridge.intake.tail_buffer import TailBuffer
from bridge.ledgers.cursor_history import UNKNOWN, CursorReading
from bridge.limits import Limits
from bridge.net.tasks import Tasks
from bridge.protocol.entries import StoredEntry
from bridge.protocol.frames import FrameDecoder, encode_frame
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandAck, CommandMessage
from tracker import AckSet, NewEntry, Position, Store, SubscriptionView, TopicIndex
from tracker.search import Standing

TOPIC = "persistent://public/default/t"
START = Position(1, -1)
BATCH = 5


class Writer:
    """A client's connection that takes everything; also what the bridge sends to the broker on its behalf."""

    writable = True
    peer = "test"
    knows_broker_metadata = False

    def __init__(self) -> None:
        self.sent: list[CommandMessage] = []
        self.acked: list[PositionKey] = []
        self._decoder = FrameDecoder()

    def write_client(self, data: bytes) -> None:
        self.sent += [frame.command().message for frame in self._decoder.feed(data)]

    def send_upstream(self, consumer_id: int, command: BaseCommand) -> None:
        self.acked += [(each.ledgerId, each.entryId) for each in command.ack.message_id]

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None

    def taken(self) -> list[int]:
        """The entries sent since it was asked last."""
        sent, self.sent = self.sent, []
        return [message.message_id.entryId for message in sent]


LIMITS = Limits()


def fail(error: Exception) -> None:
    raise AssertionError("nothing fails") from error


class Scene:
    """A topic of batches in one ledger, some delayed, all harvested; a subscription with one consumer."""

    def __init__(self, store: Store, delays: Sequence[int | None], history: int = UNKNOWN) -> None:
        index = TopicIndex(store, TOPIC, partition_width_ms=60_000)
        index.start_at(START)
        tail = TailBuffer(START, LIMITS.intake.tail_buffer_bytes, LIMITS.intake.tail_buffer_entries)
        for entry, deliver_at in enumerate(delays):
            raw = encode_frame(BaseCommand(type=BaseCommand.PING, ping={}))[4:]  # no metadata: in one piece
            new = [] if deliver_at is None else [NewEntry(deliver_at, 1, entry, BATCH, raw)]
            index.add(new, Position(1, entry))
            if deliver_at is None:
                tail.push([StoredEntry(1, entry, None, BATCH, False, raw)])
        self.subscription = TrackedSubscription("s", TOPIC, lambda: None, LIMITS.dispatch)
        self.writer = Writer()
        self.consumer = self.joined()
        self._index, self._tail = index, tail
        self.start(history)

    def joined(self) -> TrackedConsumer:
        """A consumer that has just come."""
        consumer = TrackedConsumer(cast(Any, self.writer), TOPIC, "s", 1, "c", 0, "mark")
        self.subscription.add_consumer(consumer)
        return consumer

    def start(self, history: int = UNKNOWN) -> None:
        """With a cursor that stands before all, of a history."""
        tasks = Tasks(fail)

        def make_feed(view: SubscriptionView) -> Feed:
            return Feed(START, view.acks, self._tail, cast(Any, None), lambda: None, tasks, LIMITS.intake)

        async def fetch(positions: Sequence[PositionKey]) -> Fetched:
            raise AssertionError(f"everything is at hand, {positions} too")

        source = Source(self._index, self._tail, fetch, tasks)
        self.subscription.start(source, CursorReading(AckSet(START), history, False), make_feed, 0)

    def pump(self, now_ms: int, permits: int = 0) -> list[int]:
        self.subscription.flow(self.consumer, permits)
        self.subscription.pump(now_ms)
        return self.writer.taken()

    def ack(self, entry: int, *ack_set: int) -> None:
        ack = CommandAck(consumer_id=1, ack_type=CommandAck.Individual)
        ack.message_id.add(ledgerId=1, entryId=entry, ack_set=ack_set)
        self.subscription.acked(self.consumer, ack)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data") as opened:
        yield opened


async def test_what_is_given_back_goes_ahead_of_what_was_ready(store: Store) -> None:
    scene = Scene(store, [None] * 6)
    assert scene.pump(0, permits=3) == [0]  # the batches behind it were ready too
    scene.subscription.redeliver(scene.consumer, [(1, 0)])
    assert scene.pump(0, permits=7) == [0]
    assert scene.pump(0, permits=11) == [1, 2, 3]


async def test_what_an_operator_holds_does_not_go_out_by_another_way(store: Store) -> None:
    """The clock was set back while it was ready: it waits with what is delivered again."""
    scene = Scene(store, [100, 100])
    assert scene.pump(100, permits=2) == [0]
    assert scene.pump(50, permits=5) == []
    assert scene.subscription.standing((1, 1), 100) is Standing.PENDING
    scene.subscription.hold((1, 1))
    assert scene.pump(200, permits=5) == []
    scene.subscription.let_go((1, 1))
    assert scene.pump(200) == [1]


async def test_the_last_acks_of_a_batch_are_an_ack_of_the_whole(store: Store) -> None:
    scene = Scene(store, [100, None])
    assert scene.pump(100, permits=10) == [0, 1]
    for entry in (0, 1):
        scene.ack(entry, 0b11000)
        assert scene.subscription.dispatcher.unacked[1, entry].ack_set == (0b11000,)
        scene.ack(entry, 0b00111)
    assert scene.writer.acked == [(1, 0), (1, 1)]
    assert not scene.subscription.dispatcher.unacked
    assert scene.subscription.stats.acked == 2
    assert scene.subscription.view is not None
    assert scene.subscription.view.acks.contains(1, 1)


async def test_no_ack_is_made_of_an_entry_that_may_not_exist_or_while_the_cursor_is_moved(store: Store) -> None:
    scene = Scene(store, [None])
    assert scene.pump(0, permits=5) == [0]
    scene.ack(7, 0)
    scene.subscription.suspend()
    scene.ack(0, 0)
    assert scene.writer.acked == []


async def test_acks_of_what_was_handed_out_count_though_the_harvester_is_behind(store: Store) -> None:
    """A feed reads by itself, and may be ahead of it: the harvester's reader is stuck."""
    scene = Scene(store, [None])
    for entry in (1, 2):
        raw = encode_frame(BaseCommand(type=BaseCommand.PING, ping={}))[4:]
        scene._tail.push([StoredEntry(1, entry, None, BATCH, False, raw)])
    assert scene.pump(0, permits=15) == [0, 1, 2]
    scene.ack(1)
    scene.ack(2, 0b11100)
    scene.ack(2, 0b00011)
    scene.ack(77)
    view = scene.subscription.view
    assert view is not None
    assert [view.acks.contains(1, entry) for entry in (0, 1, 2, 77)] == [False, True, True, False]
    assert scene.writer.acked == [(1, 2)]


async def test_whom_a_seek_has_closed_gets_nothing_though_nobody_has_said_so(store: Store) -> None:
    """The broker tells each on its own connection: what it got in between, the next consumer would get again."""
    scene = Scene(store, [100, None])
    assert scene.pump(100, permits=100) == [0, 1]
    scene.subscription.suspend()
    scene.subscription.sought([scene.consumer])
    scene.start()
    assert scene.pump(100, permits=100) == []
    scene.subscription.remove_consumer(scene.consumer)  # now it is said
    scene.consumer = scene.joined()
    assert scene.pump(100, permits=100) == [0, 1]


async def test_a_seek_that_began_before_the_topic_was_opened_anew_here(store: Store) -> None:
    """Nobody was told of it when it began, and entries went out since: none of them is with two consumers."""
    scene = Scene(store, [100, 100])
    other = scene.joined()
    assert scene.pump(100, permits=5) == [0]
    scene.subscription.sought(())
    scene.start()
    scene.subscription.flow(other, 100)
    assert scene.pump(100) == [0, 1]
    dispatcher = scene.subscription.dispatcher
    assert {position for state in dispatcher.consumers for position in state.positions} == {*dispatcher.unacked}
    assert sum(len(state.positions) for state in dispatcher.consumers) == len(dispatcher.unacked)
    scene.subscription.remove_consumer(other)
    scene.subscription.remove_consumer(scene.consumer)


async def test_acks_of_whom_a_seek_has_closed_are_of_the_cursor_s_history_before(store: Store) -> None:
    scene = Scene(store, [None], history=7)
    assert scene.pump(100, permits=100) == [0]
    scene.subscription.suspend()
    scene.subscription.sought([scene.consumer])
    scene.start(history=8)
    scene.joined()
    scene.subscription.remove_consumer(scene.consumer)
    scene.ack(0)
    assert scene.subscription.view is not None
    assert not scene.subscription.view.acks.contains(1, 0)
