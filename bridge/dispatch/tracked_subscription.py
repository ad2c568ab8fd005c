"""One tracked subscription: its view of the delayed index, its feed, its dispatcher, and the consumers served."""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import structlog

from bridge import limits
from bridge.broker.fetch import Fetched
from bridge.clock import RandBits, system_randbits
from bridge.dispatch.ack_notes import AckNotes
from bridge.dispatch.dispatcher import Dispatcher, Offer, PositionKey, Redelivery
from bridge.dispatch.lateness_causes import LatenessCauses
from bridge.dispatch.refetch import Fetch, Refetch
from bridge.dispatch.subscription_stats import LATE_MS, TOO_LATE_MS, SubscriptionStats
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.intake.feed import Feed
from bridge.intake.tail_buffer import TailBuffer
from bridge.ledgers.cursor_history import UNKNOWN
from bridge.protocol.entries import chunk_of
from bridge.protocol.pulsar_pb2 import CommandAck
from tracker import EARLIEST, AckSet, DueEntry, Position, StoreError, SubscriptionView, TopicIndex, decode_key
from tracker.keys import time_bound
from tracker.search import Standing

log = structlog.get_logger(__name__)


class CursorReading(NamedTuple):
    """What the broker says of a subscription's cursor; `takes_back`: what is known here of acks is void."""

    acks: AckSet
    history: int
    takes_back: bool


class TrackedSubscription:
    """Dispatches between `start` and `stop`; consumers come and go at any time."""

    def __init__(self, name: str, topic: str, wake: Callable[[], None], randbits: RandBits = system_randbits) -> None:
        """`wake`: asks the topic to pump soon."""
        self.name = name
        self.topic = topic
        self.stats = SubscriptionStats()
        self.lateness_causes = LatenessCauses()
        self.dispatcher: Dispatcher[TrackedConsumer] = Dispatcher()
        self.loading: asyncio.Task[None] | None = None
        self.seeking = False
        self.repairing = False
        self.stale = False
        """Nobody was attached for a while: the cursor may have been moved past the bridge."""
        self.in_doubt = False
        """The broker closed a consumer: it may have moved the cursor, though others still seem to be attached."""
        self.delays = True
        """Off by a policy of the broker: whatever is in the index is due."""
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
        self._refetch = Refetch(
            self.dispatcher.replay, self._read_again, wake, self._on_gone, self._on_unread, randbits
        )
        self._last_now_ms = 0
        self._acked_at = -math.inf
        self._polled = EARLIEST  # the broker's mark-delete position as last heard of
        self._ack_notes: AckNotes[TrackedConsumer] = AckNotes()
        self._attached: set[TrackedConsumer] = set()
        self._history = UNKNOWN  # of the cursor when dispatch began last

    # -- life cycle

    @property
    def waiting(self) -> int:
        """Entries that are to be delivered and wait for permits."""
        return len(self._ready) + self.to_redeliver

    @property
    def to_redeliver(self) -> int:
        """Of these, entries that are to be delivered again."""
        return len(self.dispatcher.replay) + len(self._refetch.aside)

    @property
    def dispatching(self) -> bool:
        """Whether index, tail and cursor are in place."""
        return self.feed is not None and not self.seeking and not self.stale

    @property
    def has_consumers(self) -> bool:
        """Whether anybody is attached."""
        return bool(self.dispatcher.consumers)

    def start(
        self,
        index: TopicIndex,
        tail: TailBuffer,
        cursor: "CursorReading",
        make_feed: Callable[["TrackedSubscription"], Feed],
        fetch: Fetch,
        now_ms: int,
    ) -> None:
        """Begin (or go on) with what the broker says of the cursor."""
        self._index, self._tail, self._fetch = index, tail, fetch
        view = index.view(self.name)
        if self.view is None:
            until = view.dispatched_until_ms
            self._known_from_ms = now_ms if until < 0 else min(until, now_ms)
            self._expedited_before = {position_of(key) for key in view.expedited}
        anew = self.seeking or cursor.takes_back or self.feed is None
        if cursor.takes_back:
            self._forget_deliveries()
            view.reset(cursor.acks)
            view.covered = False
        else:
            if self.seeking:
                view.release_all()
            view.merge(cursor.acks)
        view.history = self._history = cursor.history
        for position in self._ack_notes.judge(cursor.history, self._attached):
            view.ack(*position)
        self.view = view
        view.active = self.has_consumers
        if anew:
            if self.feed is not None:
                self.feed.close()
            self.feed = make_feed(self)
        self.seeking = self.stale = False
        self._polled = EARLIEST
        self._wake()

    @property
    def unsettled_s(self) -> float:
        """How long acks may still be on their way in the broker, those of consumers that left too, in seconds."""
        return max(self._acked_at + limits.ACK_SETTLE_S - asyncio.get_running_loop().time(), 0.0)

    def acknowledge_again(self, positions: Sequence[PositionKey]) -> bool:
        """Repair the broker's cursor; False when no consumer is there to do it, or the cursor may be another by now."""
        state = next(iter(self.dispatcher.consumers), None)
        if state is None or not self.dispatching:
            return False
        state.consumer.acknowledge(positions)
        self.stats.repaired += len(positions)
        return True

    def stop(self) -> None:
        """Dispatch no more; what was handed out counts as never delivered, until the broker says otherwise."""
        self.stop_loading()
        self._forget_deliveries()
        if self.feed is not None:
            self.feed.close()
            self.feed = None
        if self.view is not None:
            self.view.release_all()
            self.view.active = False
            self.view = None

    def stop_loading(self) -> None:
        """Forget what is being read of the cursor: it may be of before it was moved."""
        if self.loading is not None:
            self.loading.cancel()
            self.loading = None

    def distrust(self) -> None:
        """The cursor is to be read anew; what is being read of it may be of before."""
        self.stale, self.in_doubt = True, False
        self.stop_loading()

    def suspend(self) -> None:
        """A seek is under way: nothing goes out until the cursor is known."""
        self.seeking = True
        self._forget_deliveries()

    def _forget_deliveries(self) -> None:
        self.generation += 1
        self.dispatcher.clear()
        self._ready.clear()
        self._held.clear()
        self._refetch.clear()

    # -- consumers

    def add_consumer(self, consumer: TrackedConsumer) -> None:
        """With 0 permits."""
        self._attached.add(consumer)
        self.dispatcher.add_consumer(consumer, consumer.priority_level)
        if self.view is not None:
            self.view.active = True

    def remove_consumer(self, consumer: TrackedConsumer) -> None:
        """What it has not acked goes to the others."""
        self._attached.discard(consumer)
        self.in_doubt |= consumer.closed_by_broker
        consumer.left_history = self._history
        self._ack_notes.left(consumer, self._history)
        self.dispatcher.remove_consumer(consumer)
        if self.view is not None and not self.has_consumers:
            self.view.active = False
        self._wake()

    def flow(self, consumer: TrackedConsumer, permits: int) -> None:
        """More permits, or (0) room in the connection again."""
        self.dispatcher.flow(consumer, permits, consumer.writable)
        self._wake()

    def redeliver(self, consumer: TrackedConsumer, positions: list[PositionKey] | None) -> None:
        """Deliver again what the client asks for."""
        self.dispatcher.redeliver(consumer, positions)
        self._wake()

    def acked(self, consumer: TrackedConsumer, ack: CommandAck) -> None:
        """Note what was acked; the ack itself is on its way to the broker already."""
        # Cumulative acks mean nothing on Shared; those of a transaction count only when it is committed.
        if ack.ack_type != CommandAck.Individual or ack.HasField("txnid_most_bits"):
            return
        self._acked_at = asyncio.get_running_loop().time()
        blocked = self.dispatcher.capacity() == 0
        whole: list[PositionKey] = []
        completed: list[PositionKey] = []
        for message_id in ack.message_id:
            position = (message_id.ledgerId, message_id.entryId)
            if not message_id.ack_set:
                whole.append(position)
            elif self._completes(consumer, position, message_id.ack_set):
                completed.append(position)
        if completed:
            # By default the broker takes acks of whole entries only, and no client sends one for a batch of which it
            # was told that messages are acked.
            consumer.acknowledge(completed)
            whole += completed
        if consumer in self._attached:
            self._note_acks(consumer, whole)
        else:
            self._note_late_acks(consumer, whole)
        if blocked:
            self._wake()

    def _completes(self, consumer: TrackedConsumer, position: PositionKey, ack_set: Sequence[int]) -> bool:
        """Note which messages of a batch are acked; whether none is left that is not, and the broker may be told so."""
        if not self.dispatching or consumer not in self._attached:
            return False
        left = self.dispatcher.ack_partly(*position, ack_set)
        if left is None:
            left = self._refetch.ack_partly(position, ack_set)
        assert self._index is not None
        known = self._index.harvested_position
        # The broker drops the rest of a list behind an entry that does not exist.
        return not any(ack_set if left is None else left) and known is not None and position <= known

    def _note_acks(self, consumer: TrackedConsumer, positions: list[PositionKey]) -> None:
        view, dispatcher = self.view, self.dispatcher
        known = None if self._index is None else self._index.harvested_position
        for position in positions:
            if self._refetch.discard(position) or dispatcher.ack(*position):
                self.stats.acked += 1
            if known is not None and position > known:
                continue  # it may not exist: the broker decides
            if view is not None:
                view.ack(*position)
            if not self.dispatching or self.loading is not None:
                self._ack_notes.note_early(consumer, position)

    def _note_late_acks(self, consumer: TrackedConsumer, positions: list[PositionKey]) -> None:
        """Of a consumer that the broker closed meanwhile, and whose acks it drops."""
        if not self.dispatching or self.view is None:
            for position in positions:
                self._ack_notes.note_late(consumer.left_history, position)
        elif consumer.left_history != UNKNOWN and consumer.left_history == self.view.history:
            deputy = next(iter(self._attached), None)
            if deputy is not None:
                self._note_acks(deputy, positions)
                self.acknowledge_again(positions)

    def poll_cursor(self) -> None:
        """Have the broker's mark-delete position follow the acks; to be called every CURSOR_POLL_S."""
        state = next(iter(self.dispatcher.consumers), None)
        if state is not None and self.dispatching:
            asked_for = self.feed
            state.consumer.request_mark_delete(lambda position: self._on_mark_delete(position, asked_for))

    def _on_mark_delete(self, position: Position, asked_for: Feed | None) -> None:
        """Take it over: what was skipped past the bridge, or expired, is not sent from now on."""
        if not self.dispatching or self.feed is not asked_for:
            return  # the cursor was set anew since: what it said before must not hold anything back
        self._polled = position
        self.advance(position)

    def advance(self, position: Position) -> None:
        """The broker's mark-delete position."""
        if self.view is not None and position > self.view.acks.mark_delete_position:
            self.view.advance(position)
            self.dispatcher.advance(*position)
            self._refetch.advance(position)

    # -- what operators want

    def standing(self, position: PositionKey, deliver_at_ms: int | None) -> Standing:
        """How an entry stands that is due at a time; None: of no delayed entry. Must be dispatching.

        What is acked is so only if there was something to ack: a wrong id is below the mark-delete position too.
        An entry that may have been delivered before this bridge took over counts as dispatched.
        """
        assert self.view is not None
        if self.view.acks.contains(*position) or position <= self._polled:
            return Standing.UNKNOWN if deliver_at_ms is None else Standing.ACKED
        dispatcher = self.dispatcher
        if position in dispatcher.unacked or position in self._refetch.aside:
            return Standing.DISPATCHED
        waiting = dispatcher.replay.get(position) or next((o for o in self._ready if o[:2] == position), None)
        if waiting is not None:
            return Standing.PENDING if waiting.again is None else Standing.DISPATCHED
        if deliver_at_ms is None:
            return Standing.UNKNOWN
        before = deliver_at_ms <= self._known_from_ms or position in self._expedited_before or not self.delays
        return Standing.DISPATCHED if before else Standing.PENDING

    def oldest_ready_ms(self) -> int | None:
        """When the delayed entry was due that waits longest for permits, of those taken out of the index."""
        return min((decode_key(offer.key)[0] for offer in self._ready if offer.key is not None), default=None)

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
        self._refetch.discard(position)
        self.dispatcher.ack(*position)
        if self.view is not None:
            self.view.ack(*position)
        self.stats.cancelled += 1

    # -- dispatch

    def set_delays(self, delays: bool, now_ms: int) -> None:
        """Switch delays off, or on again: what was not handed out by then waits for its time."""
        if delays and not self.delays and self.view is not None:
            self.view.rewind_to(time_bound(now_ms))
        if delays != self.delays:
            self.delays = delays
            self._wake()

    def horizon_ms(self, now_ms: int) -> int:
        """Until when entries are due."""
        if self.delays or self._index is None:
            return now_ms
        span = self._index.table.span()
        return now_ms if span is None else max(now_ms, (span[1] + 1) * self._index.partition_width_ms)

    def wants(self) -> bool:
        """Whether a consumer could take something."""
        return self.dispatching and self.dispatcher.capacity() > 0

    def pump(self, now_ms: int) -> int:
        """Send at most a slice of what is due; returns how many entries went out."""
        wants = self.wants()
        self.lateness_causes.note_permits(now_ms, wants)
        if not wants:
            return 0
        budget = min(self.dispatcher.capacity(), limits.DISPATCH_SLICE)
        if now_ms < self._last_now_ms and self._ready:
            self._hold_back(now_ms)
        self._last_now_ms = now_ms
        again = self._refetch.take_next(budget, self._at_hand, partial(self._is_early, now_ms=now_ms))
        budget -= len(again)
        if len(self._ready) < budget:
            self._add_due(budget - len(self._ready), now_ms)
        if len(self._ready) < budget and not self._refetch.holding:
            self._add_immediate(budget - len(self._ready))
        sent = self._send(again, budget) if again or self._ready else 0
        self.lateness_causes.note_permits(now_ms, self.dispatcher.capacity() > 0)
        return sent

    def _add_due(self, limit: int, now_ms: int) -> None:
        assert self._index is not None
        view = self.view
        assert view is not None
        cursor = view.cursor
        due = self._index.due(view, self.horizon_ms(now_ms), limit)
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
            if entry.deliver_at_ms > now_ms and self._may_be_early((entry.ledger, entry.entry)):
                self.stats.expedited += 1
                continue
            on_time.append(entry.deliver_at_ms)
            if now_ms - entry.deliver_at_ms > LATE_MS:
                stored_late = entry.key < cursor
                covered = self.view.covered
                cause = self.lateness_causes.cause(entry.deliver_at_ms, covered=covered, stored_late=stored_late)
                self.stats.causes[cause] += 1
                self.stats.too_late[cause] += now_ms - entry.deliver_at_ms > TOO_LATE_MS
        self.stats.first_delivery(on_time, now_ms)

    def _add_immediate(self, limit: int) -> None:
        assert self.feed is not None
        self._ready.extend(
            Offer(entry.ledger, entry.entry, entry.message_count, None, entry.raw) for entry in self.feed.take(limit)
        )

    def _is_early(self, position: PositionKey, key: bytes | None, now_ms: int) -> bool:
        """Whether an entry that was handed out is not due: the clock was set back since."""
        if key is None or decode_key(key)[0] <= now_ms:
            return False
        return not self._may_be_early(position)

    def _may_be_early(self, position: PositionKey) -> bool:
        return not self.delays or (self.view is not None and self.view.is_expedited(position))

    def _at_hand(self, position: PositionKey, key: bytes | None) -> bytes | None:
        """The bytes of an entry, if they are kept here."""
        assert self._index is not None
        assert self._tail is not None
        if key is None:
            kept = self._tail.get(*position)
            return None if kept is None else kept.raw
        indexed = self._index.get(key)
        return None if indexed is None else indexed.raw

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

    def _send(self, again: list[Offer], fresh: int) -> int:
        """Send what is delivered again, then up to `fresh` entries of what is ready, as far as permits go."""
        ready, self._ready = self._ready, deque()
        new = self._sendable(islice(ready, fresh))
        again = self._sendable(again)
        if self._refetch.holding:  # immediate entries would overtake what is being read
            self._ready.extend(offer for offer in new if offer.key is None)
            new = [offer for offer in new if offer.key is not None]
        assigned, left = self.dispatcher.assign(again + new)
        left_again = max(len(left) - len(new), 0)
        self._give_back(again, left[:left_again])
        self._ready.extendleft(reversed(left[left_again:]))
        self._ready.extend(islice(ready, fresh, None))
        return sum([self._send_to(consumer, batch) for consumer, batch in assigned])

    def _send_to(self, consumer: TrackedConsumer, batch: Sequence[Offer]) -> int:
        consumer.send((o.ledger, o.entry, o.redelivery_count, o.ack_set, o.raw) for o in batch)
        self.dispatcher.flow(consumer, 0, consumer.writable)
        for offer in batch:
            self.stats.delivered += offer.message_count
            if offer.again is not None:
                self.stats.delivered_again(offer.again, offer.message_count)
        return len(batch)

    def _sendable(self, offers: Iterable[Offer]) -> list[Offer]:
        """Those that are not acked, and that nobody holds."""
        assert self.view is not None
        contains, skipped = self.view.acks.contains, self._polled
        found = [each for each in offers if not contains(each.ledger, each.entry) and each[:2] > skipped]
        if self._held:
            found = self._set_aside(found)
        if len(self.dispatcher.consumers) > 1:  # with one consumer all parts of a message meet anyway
            found = [_with_chunk(offer) for offer in found]
        return found

    def _give_back(self, again: Sequence[Offer], left: Sequence[Offer]) -> None:
        """What could not be delivered again after all: for want of permits, or because its consumer had none."""
        for offer in left:
            self.dispatcher.put_back(offer[:2], Redelivery.of(offer))
        replay = self.dispatcher.replay
        for offer in again:
            if offer[:2] in replay:
                self._refetch.keep(offer[:2], offer.raw)

    def _set_aside(self, offers: list[Offer]) -> list[Offer]:
        """Take what is held out of what is to be sent."""
        for offer in offers:
            if offer[:2] in self._held:
                self._held[offer.ledger, offer.entry] = offer
        return [offer for offer in offers if offer[:2] not in self._held]

    async def _read_again(self, positions: Sequence[PositionKey]) -> Fetched:
        assert self._fetch is not None
        return await self._fetch(positions)

    def _on_gone(self, position: PositionKey) -> None:
        self.stats.unfetched += 1
        log.warning("entry to deliver again is gone from the broker", topic=self.topic, position=position)

    def _on_unread(self, reason: str) -> None:
        log.warning("cannot read entries again", topic=self.topic, subscription=self.name, reason=reason)


def position_of(key: bytes) -> PositionKey:
    """Return the position in a key of the index."""
    _, ledger, entry = decode_key(key)
    return ledger, entry


def _with_chunk(offer: Offer) -> Offer:
    chunk = chunk_of(offer.raw)
    return offer if chunk is None else offer._replace(chunk=chunk)
