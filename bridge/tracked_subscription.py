"""One tracked subscription: its view of the delayed index, its feed, its dispatcher, and the consumers served."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import structlog

from bridge import limits
from bridge.broker.connection import BrokerError
from bridge.dispatcher import Dispatcher, Offer, PositionKey, Redelivery
from bridge.feed import Feed
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.protocol.entries import StoredEntry, chunk_of
from bridge.protocol.pulsar_pb2 import CommandAck
from bridge.subscription_stats import SubscriptionStats
from bridge.tail_buffer import TailBuffer
from tracker import EARLIEST, AckSet, Position, SubscriptionView, TopicIndex, decode_key

log = structlog.get_logger(__name__)

Fetch = Callable[[Sequence[PositionKey]], Awaitable[dict[PositionKey, StoredEntry]]]


class TrackedSubscription:
    """Dispatches between `start` and `stop`; consumers come and go at any time."""

    def __init__(self, name: str, topic: str, wake: Callable[[], None]) -> None:
        """`wake`: asks the topic to pump soon."""
        self.name = name
        self.topic = topic
        self.stats = SubscriptionStats()
        self.dispatcher: Dispatcher[TrackedConsumer] = Dispatcher()
        self.loading: asyncio.Task[None] | None = None
        self.seeking = False
        self.repairing = False
        self.interrupted = False
        """The broker closed a consumer while the topic partition stayed: the cursor was set anew, or deleted."""
        self.view: SubscriptionView | None = None
        self.feed: Feed | None = None
        self._wake = wake
        self._index: TopicIndex | None = None
        self._tail: TailBuffer | None = None
        self._fetch: Fetch | None = None
        self._ready: deque[Offer] = deque()
        self._refetching: dict[PositionKey, Redelivery] = {}
        self._refetch_task: asyncio.Task[None] | None = None
        self._drained = asyncio.Event()
        self._last_now_ms = 0
        self._left_at = 0.0
        self._polled = EARLIEST  # the broker's mark-delete position as last heard of
        self._unplaced_acks: set[PositionKey] = set()  # acks that came while there was no view to note them in

    # -- life cycle

    @property
    def waiting(self) -> int:
        """Entries that are to be delivered and wait for permits."""
        return len(self._ready) + len(self.dispatcher.replay)

    @property
    def dispatching(self) -> bool:
        """Whether index, tail and cursor are in place."""
        return self.feed is not None and not self.seeking

    @property
    def has_consumers(self) -> bool:
        """Whether anybody is attached."""
        return bool(self.dispatcher.consumers)

    def start(
        self,
        index: TopicIndex,
        tail: TailBuffer,
        acks: AckSet,
        make_feed: Callable[["TrackedSubscription", Position], Feed],
        fetch: Fetch,
        moved: bool,
    ) -> None:
        """Begin (or go on) with what the broker's cursor has acked.

        `moved`: the cursor was set anew, as by a seek; what is known here is void.
        """
        self._index, self._tail, self._fetch = index, tail, fetch
        view = index.view(self.name)
        if moved:
            self._forget_deliveries()
            view.reset(acks)
            view.covered = False
        else:
            view.merge(acks)
        for position in self._unplaced_acks:
            view.ack(*position)
        self._unplaced_acks.clear()
        self.view = view
        view.active = self.has_consumers
        if self.feed is None or moved:
            if self.feed is not None:
                self.feed.close()
            self.feed = make_feed(self, view.acks.mark_delete_position)
        self.seeking = self.interrupted = False
        self._polled = EARLIEST
        self._wake()

    def moved_by(self, acks: AckSet, view: SubscriptionView) -> bool:
        """Whether the broker's cursor was set anew since this bridge last read it.

        A broker that reloads a topic may have forgotten single acks; behind a mark-delete position that it persisted
        it never falls back by itself, see `_on_mark_delete`.
        """
        if self.seeking or self.interrupted or acks.mark_delete_position < view.mark_delete_position:
            return True
        if self.view is None or self.feed is None:
            return False
        if asyncio.get_running_loop().time() - self._left_at < limits.ACK_SETTLE_S:
            return False
        # Set back while nobody was here: all single acks above the new position are gone at once.
        return not len(acks) and view.acks.highest > acks.mark_delete_position

    def acknowledge_again(self, positions: Sequence[PositionKey]) -> bool:
        """Repair the broker's cursor; False when no consumer is there to do it."""
        state = next(iter(self.dispatcher.consumers), None)
        if state is None:
            return False
        state.consumer.acknowledge(positions)
        self.stats.repaired += len(positions)
        return True

    def stop(self) -> None:
        """Dispatch no more; what was handed out counts as never delivered, until the broker says otherwise."""
        if self.loading is not None:
            self.loading.cancel()
            self.loading = None
        self.interrupted = False
        self._forget_deliveries()
        if self.feed is not None:
            self.feed.close()
            self.feed = None
        if self.view is not None:
            self.view.release_all()
            self.view.active = False
            self.view = None

    def suspend(self) -> None:
        """A seek is under way: nothing goes out until the cursor is known."""
        self.seeking = True
        self._forget_deliveries()

    def _forget_deliveries(self) -> None:
        self.dispatcher.clear()
        self._ready.clear()
        self._refetching.clear()
        if self._refetch_task is not None:
            self._refetch_task.cancel()
            self._refetch_task = None

    # -- consumers

    def add_consumer(self, consumer: TrackedConsumer) -> None:
        """With 0 permits."""
        self.dispatcher.add_consumer(consumer, consumer.priority_level)
        if self.view is not None:
            self.view.active = True

    def remove_consumer(self, consumer: TrackedConsumer) -> None:
        """What it has not acked goes to the others."""
        self.dispatcher.remove_consumer(consumer)
        if self.view is not None and not self.has_consumers:
            self.view.active = False
        self._left_at = asyncio.get_running_loop().time()
        self._wake()

    def flow(self, consumer: TrackedConsumer, permits: int) -> None:
        """More permits, or (0) room in the connection again."""
        self.dispatcher.flow(consumer, permits, consumer.writable)
        self._wake()

    def redeliver(self, consumer: TrackedConsumer, positions: list[PositionKey] | None) -> None:
        """Deliver again what the client asks for."""
        self.dispatcher.redeliver(consumer, positions)
        self._wake()

    def acked(self, ack: CommandAck) -> None:
        """Note what was acked; the ack itself is on its way to the broker already."""
        # Cumulative acks mean nothing on Shared; those of a transaction count only when it is committed.
        if ack.ack_type != CommandAck.Individual or ack.HasField("txnid_most_bits"):
            return
        view, dispatcher = self.view, self.dispatcher
        known = None if self._index is None else self._index.harvested_position
        blocked = dispatcher.capacity() == 0
        for message_id in ack.message_id:
            ledger, entry = message_id.ledgerId, message_id.entryId
            ack_set = message_id.ack_set
            if ack_set and any(ack_set):
                dispatcher.ack_partly(ledger, entry, tuple(ack_set))
                continue
            if dispatcher.ack(ledger, entry) or self._refetching.pop((ledger, entry), None) is not None:
                self.stats.acked += 1
            if known is not None and (ledger, entry) > known:
                continue  # it may not exist: the broker decides
            if view is not None:
                view.ack(ledger, entry)
            elif len(self._unplaced_acks) < limits.MAX_UNACKED_PER_SUBSCRIPTION:
                self._unplaced_acks.add((ledger, entry))
        if blocked:
            self._wake()

    def poll_cursor(self) -> None:
        """Have the broker's mark-delete position follow the acks; to be called every CURSOR_POLL_S."""
        state = next(iter(self.dispatcher.consumers), None)
        if state is not None and self.dispatching:
            asked_for = self.feed
            state.consumer.request_mark_delete(lambda position: self._on_mark_delete(position, asked_for))

    def _on_mark_delete(self, position: Position, asked_for: Feed | None) -> None:
        """Take over what the broker said one poll ago: it persists once a second, so that is not forgotten any more.

        Hence a cursor that ever stands behind the view's was set back, and did not just lose acks in a crash. What
        was skipped past the bridge is not sent from now on all the same.
        """
        if not self.dispatching or self.feed is not asked_for:
            return  # the cursor was set anew since: what it said before must not hold anything back
        self.advance(self._polled)
        self._polled = position

    def advance(self, position: Position) -> None:
        """The broker's mark-delete position."""
        if self.view is not None and position > self.view.acks.mark_delete_position:
            self.view.advance(position)
            self.dispatcher.advance(*position)

    # -- dispatch

    def wants(self) -> bool:
        """Whether a consumer could take something."""
        return self.dispatching and self.dispatcher.capacity() > 0

    def pump(self, now_ms: int) -> int:
        """Send at most a slice of what is due; returns how many entries went out."""
        if not self.wants():
            return 0
        budget = min(self.dispatcher.capacity(), limits.DISPATCH_SLICE)
        if now_ms < self._last_now_ms and self._ready:
            self._hold_back()
        self._last_now_ms = now_ms
        ready = self._ready
        if len(ready) < budget:
            self._add_replays(budget - len(ready), now_ms)
        if len(ready) < budget:
            self._add_due(budget - len(ready), now_ms)
        if len(ready) < budget:
            self._add_immediate(budget - len(ready))
        return self._send() if ready else 0

    def _add_due(self, limit: int, now_ms: int) -> None:
        assert self._index is not None
        assert self.view is not None
        due = self._index.due(self.view, now_ms, limit)
        self._ready.extend([Offer(e.ledger, e.entry, e.message_count, e.key, e.raw) for e in due])
        self.stats.first_delivery([entry.deliver_at_ms for entry in due], now_ms)

    def _add_immediate(self, limit: int) -> None:
        assert self.feed is not None
        self._ready.extend(
            Offer(entry.ledger, entry.entry, entry.message_count, None, entry.raw) for entry in self.feed.take(limit)
        )

    def _add_replays(self, limit: int, now_ms: int) -> None:
        later: list[tuple[PositionKey, Redelivery]] = []
        size = 0
        for position, redelivery in self.dispatcher.take_replay(limit):
            early = redelivery.key is not None and decode_key(redelivery.key)[0] > now_ms
            if early or size >= limits.DISPATCH_SLICE_BYTES:
                later.append((position, redelivery))  # early: the clock was set back since it was delivered first
                continue
            raw = self._raw_of(position, redelivery)
            if raw is None:
                self._refetching[position] = redelivery
            else:
                size += len(raw)
                self._replay(position, redelivery, raw)
        for position, redelivery in later:
            self.dispatcher.put_back(position, redelivery)
        if self._refetching and self._refetch_task is None:
            self._refetch_task = asyncio.get_running_loop().create_task(self._refetch())

    def _raw_of(self, position: PositionKey, redelivery: Redelivery) -> bytes | None:
        assert self._index is not None
        assert self._tail is not None
        if redelivery.key is None:
            kept = self._tail.get(*position)
            return None if kept is None else kept.raw
        indexed = self._index.get(redelivery.key)
        return None if indexed is None else indexed.raw

    def _replay(self, position: PositionKey, again: Redelivery, raw: bytes) -> None:
        self._ready.append(Offer(*position, again.message_count, again.key, raw, again.redelivery_count, again.ack_set))
        self.stats.redelivered += again.message_count

    def _hold_back(self) -> None:
        """The clock was set back: what is delayed among the leftovers may not be due any more."""
        kept = [offer for offer in self._ready if offer.key is None]
        for offer in self._ready:
            if offer.key is not None:
                again = Redelivery(offer.key, offer.message_count, offer.redelivery_count, offer.ack_set)
                self.dispatcher.put_back((offer.ledger, offer.entry), again)
        self._ready = deque(kept)

    def _send(self) -> int:
        assert self.view is not None
        contains = self.view.acks.contains
        skipped = self._polled
        offers = [
            offer
            for offer in self._ready
            if not contains(offer.ledger, offer.entry) and (offer.ledger, offer.entry) > skipped
        ]
        if len(self.dispatcher.consumers) > 1:  # with one consumer all parts of a message meet anyway
            offers = [_with_chunk(offer) for offer in offers]
        assigned, left = self.dispatcher.assign(offers)
        self._ready = deque(left)
        self._drained.set()
        sent = 0
        for consumer, batch in assigned:
            consumer.send((o.ledger, o.entry, o.redelivery_count, o.ack_set, o.raw) for o in batch)
            self.dispatcher.flow(consumer, 0, consumer.writable)
            sent += len(batch)
            self.stats.delivered += sum([offer.message_count for offer in batch])
        return sent

    async def _refetch(self) -> None:
        """Read again from the broker what is not kept here."""
        assert self._fetch is not None
        while self._refetching:
            while len(self._ready) >= limits.REFETCH_BATCH:
                self._drained.clear()
                await self._drained.wait()
            positions = sorted(self._refetching)[: limits.REFETCH_BATCH]
            try:
                found = await self._fetch(positions)
            except BrokerError as error:
                log.warning("cannot read entries again", topic=self.topic, subscription=self.name, reason=str(error))
                await asyncio.sleep(limits.RETRY_BACKOFF_S[-2])
                continue
            for position in positions:
                redelivery = self._refetching.pop(position, None)
                if redelivery is None:
                    continue  # acked meanwhile
                if position in found:
                    self._replay(position, redelivery, found[position].raw)
                else:
                    self.stats.unfetched += 1
                    log.warning("entry to deliver again is gone from the broker", topic=self.topic, position=position)
            self._wake()
            await asyncio.sleep(0)
        self._refetch_task = None


def _with_chunk(offer: Offer) -> Offer:
    chunk = chunk_of(offer.raw)
    return offer if chunk is None else offer._replace(chunk=chunk)
