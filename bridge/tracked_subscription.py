"""One tracked subscription: its view of the delayed index, its feed, its dispatcher, and the consumers served."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import structlog

from bridge import limits
from bridge.broker.connection import BrokerError
from bridge.dispatcher import Dispatcher, Offer, PositionKey, Redelivery
from bridge.feed import Feed
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.lateness import Promptness
from bridge.protocol.entries import StoredEntry, chunk_of
from bridge.protocol.pulsar_pb2 import CommandAck
from bridge.subscription_stats import LATE_MS, SubscriptionStats
from bridge.tail_buffer import TailBuffer
from tracker import EARLIEST, AckSet, DueEntry, Position, StoreError, SubscriptionView, TopicIndex, decode_key
from tracker.search import Standing

log = structlog.get_logger(__name__)

Fetch = Callable[[Sequence[PositionKey]], Awaitable[dict[PositionKey, StoredEntry]]]


class TrackedSubscription:
    """Dispatches between `start` and `stop`; consumers come and go at any time."""

    def __init__(self, name: str, topic: str, wake: Callable[[], None]) -> None:
        """`wake`: asks the topic to pump soon."""
        self.name = name
        self.topic = topic
        self.stats = SubscriptionStats()
        self.promptness = Promptness()
        self.dispatcher: Dispatcher[TrackedConsumer] = Dispatcher()
        self.loading: asyncio.Task[None] | None = None
        self.seeking = False
        self.repairing = False
        self.interrupted = False
        """The broker closed a consumer while the topic partition stayed: the cursor was set anew, or deleted."""
        self.generation = 0
        """Changes whenever what was handed out is forgotten: the cursor is set anew, or dispatch ends here."""
        self.view: SubscriptionView | None = None
        self.feed: Feed | None = None
        self._wake = wake
        self._index: TopicIndex | None = None
        self._tail: TailBuffer | None = None
        self._fetch: Fetch | None = None
        self._ready: deque[Offer] = deque()
        self._held: dict[PositionKey, Offer | None] = {}  # not to go out for now, and what would have
        self._known_from_ms = 0  # what was due before may have been delivered by whoever was the owner then
        self._expedited_before: set[PositionKey] = set()
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
        now_ms: int,
    ) -> None:
        """Begin (or go on) with what the broker's cursor has acked.

        `moved`: the cursor was set anew, as by a seek; what is known here is void.
        """
        self._index, self._tail, self._fetch = index, tail, fetch
        view = index.view(self.name)
        if self.view is None:
            until = view.dispatched_until_ms
            self._known_from_ms = now_ms if until < 0 else min(until, now_ms)
            self._expedited_before = {position_of(key) for key in view.expedited}
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
        self.generation += 1
        self.dispatcher.clear()
        self._ready.clear()
        self._held.clear()
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

    # -- what operators want

    def standing(self, position: PositionKey, deliver_at_ms: int | None) -> Standing:
        """How an entry stands that is due at a time; None: when is not known. Must be dispatching.

        An entry that may have been delivered before this bridge took over counts as dispatched.
        """
        assert self.view is not None
        if self.view.acks.contains(*position) or position <= self._polled:
            return Standing.ACKED
        dispatcher = self.dispatcher
        if position in dispatcher.unacked or position in self._refetching:
            return Standing.DISPATCHED
        waiting = dispatcher.replay.get(position) or next((o for o in self._ready if o[:2] == position), None)
        if waiting is not None:
            return Standing.PENDING if waiting.again is None else Standing.DISPATCHED
        if deliver_at_ms is None:
            return Standing.UNKNOWN
        before = deliver_at_ms <= self._known_from_ms or position in self._expedited_before
        return Standing.DISPATCHED if before else Standing.PENDING

    def redelivery_count(self, position: PositionKey) -> int:
        """How often consumers have asked for an entry again."""
        known = self.dispatcher.unacked.get(position) or self.dispatcher.replay.get(position)
        return 0 if known is None else known.redelivery_count

    def hold(self, position: PositionKey) -> None:
        """Keep an entry that is pending from going out, until `let_go` or `cancelled`."""
        self._held[position] = None

    def let_go(self, position: PositionKey) -> None:
        """Let it go out as if nothing had been."""
        offer = self._held.pop(position, None)
        if offer is not None:
            self._ready.appendleft(offer)
        self._wake()

    def cancelled(self, position: PositionKey) -> None:
        """The broker has the ack of a held entry."""
        self._held.pop(position, None)
        self.dispatcher.ack(*position)
        if self.view is not None:
            self.view.ack(*position)
        self.stats.cancelled += 1

    # -- dispatch

    def wants(self) -> bool:
        """Whether a consumer could take something."""
        return self.dispatching and self.dispatcher.capacity() > 0

    def pump(self, now_ms: int) -> int:
        """Send at most a slice of what is due; returns how many entries went out."""
        wants = self.wants()
        self.promptness.note_permits(now_ms, wants)
        if not wants:
            return 0
        budget = min(self.dispatcher.capacity(), limits.DISPATCH_SLICE)
        if now_ms < self._last_now_ms and self._ready:
            self._hold_back(now_ms)
        self._last_now_ms = now_ms
        ready = self._ready
        if len(ready) < budget:
            self._add_replays(budget - len(ready), now_ms)
        if len(ready) < budget:
            self._add_due(budget - len(ready), now_ms)
        if len(ready) < budget:
            self._add_immediate(budget - len(ready))
        sent = self._send() if ready else 0
        self.promptness.note_permits(now_ms, self.dispatcher.capacity() > 0)
        return sent

    def _add_due(self, limit: int, now_ms: int) -> None:
        assert self._index is not None
        view = self.view
        assert view is not None
        cursor = view.cursor
        due = self._index.due(view, now_ms, limit)
        if not due:
            return
        if now_ms > view.dispatched_until_ms:
            with contextlib.suppress(StoreError):  # with a full disk deliveries go on
                self._index.note_dispatching(view, now_ms + limits.DISPATCH_LEASE_MS)
        self._ready.extend([Offer(e.ledger, e.entry, e.message_count, e.key, e.raw) for e in due])
        self._note_lateness(due, cursor, now_ms)

    def _note_lateness(self, due: list[DueEntry], cursor: bytes, now_ms: int) -> None:
        """Note first deliveries; `cursor`: what lies before it was stored when others of its time were out."""
        assert self.view is not None
        on_time = []
        for entry in due:
            if entry.deliver_at_ms > now_ms and self.view.is_expedited((entry.ledger, entry.entry)):
                self.stats.expedited += 1
                continue
            on_time.append(entry.deliver_at_ms)
            if now_ms - entry.deliver_at_ms > LATE_MS:
                stored_late = entry.key < cursor
                cause = self.promptness.cause(entry.deliver_at_ms, covered=self.view.covered, stored_late=stored_late)
                self.stats.causes[cause] += 1
        self.stats.first_delivery(on_time, now_ms)

    def _add_immediate(self, limit: int) -> None:
        assert self.feed is not None
        self._ready.extend(
            Offer(entry.ledger, entry.entry, entry.message_count, None, entry.raw) for entry in self.feed.take(limit)
        )

    def _add_replays(self, limit: int, now_ms: int) -> None:
        later: list[tuple[PositionKey, Redelivery]] = []
        size = 0
        for position, redelivery in self.dispatcher.take_replay(limit):
            if self._is_early(position, redelivery.key, now_ms) or size >= limits.DISPATCH_SLICE_BYTES:
                later.append((position, redelivery))
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

    def _is_early(self, position: PositionKey, key: bytes | None, now_ms: int) -> bool:
        """Whether an entry that was handed out is not due: the clock was set back since."""
        if key is None or decode_key(key)[0] <= now_ms:
            return False
        return self.view is None or not self.view.is_expedited(position)

    def _raw_of(self, position: PositionKey, redelivery: Redelivery) -> bytes | None:
        assert self._index is not None
        assert self._tail is not None
        if redelivery.key is None:
            kept = self._tail.get(*position)
            return None if kept is None else kept.raw
        indexed = self._index.get(redelivery.key)
        return None if indexed is None else indexed.raw

    def _replay(self, position: PositionKey, again: Redelivery, raw: bytes) -> None:
        self._ready.append(
            Offer(
                *position,
                again.message_count,
                again.key,
                raw,
                again.redelivery_count,
                again.ack_set,
                again=again.again,
            )
        )
        if again.again is not None:
            self.stats.delivered_again(again.again, again.message_count)

    def _hold_back(self, now_ms: int) -> None:
        """The clock was set back: what is delayed among the leftovers may not be due any more."""
        kept = []
        for offer in self._ready:
            position = (offer.ledger, offer.entry)
            if self._is_early(position, offer.key, now_ms):
                self.dispatcher.put_back(position, Redelivery.of(offer))
            else:
                kept.append(offer)
        self._ready = deque(kept)

    def _send(self) -> int:
        assert self.view is not None
        contains = self.view.acks.contains
        skipped = self._polled
        if self._held:
            self._set_aside()
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

    def _set_aside(self) -> None:
        """Take what is held out of what is to be sent."""
        for offer in self._ready:
            if offer[:2] in self._held:
                self._held[offer.ledger, offer.entry] = offer
        self._ready = deque(offer for offer in self._ready if offer[:2] not in self._held)

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


def position_of(key: bytes) -> PositionKey:
    """Return the position in a key of the index."""
    _, ledger, entry = decode_key(key)
    return ledger, entry


def _with_chunk(offer: Offer) -> Offer:
    chunk = chunk_of(offer.raw)
    return offer if chunk is None else offer._replace(chunk=chunk)
