"""All that a subscription has while it is dispatched here: what is due, what is immediate, what is delivered again."""

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

import structlog

from bridge.clock import RandBits
from bridge.dispatch.acks.pending_acks import PendingAcks
from bridge.dispatch.dispatcher import Dispatcher, Offer, PositionKey, Redelivery
from bridge.dispatch.entry_notes import GivenBefore, GoneUnacked
from bridge.dispatch.keyed.keyed_dispatcher import KeyedDispatcher
from bridge.dispatch.keyed.keyed_queues import KeyedReadyQueue, KeyedRefetch
from bridge.dispatch.lateness_causes import LatenessCauses
from bridge.dispatch.rate_limit import Throttle
from bridge.dispatch.ready_queue import ReadyQueue
from bridge.dispatch.refetch import Fetch, Refetch
from bridge.dispatch.single.single_dispatcher import SingleDispatcher
from bridge.dispatch.single.single_queues import OrderedReadyQueue, OrderedRefetch
from bridge.dispatch.subscription_stats import LATE_MS, TOO_LATE_MS, SubscriptionStats
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.intake.feed import Feed
from bridge.intake.tail_buffer import TailBuffer
from bridge.limits import DispatchLimits
from bridge.net.tasks import Tasks
from bridge.protocol.entries import chunk_of
from tracker import EARLIEST, DueEntry, Position, StoreError, SubscriptionView, TopicIndex, decode_key
from tracker.keys import time_bound
from tracker.search import Standing

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """Where the entries of an owned topic partition come from: `fetch` reads those again that are in neither other.

    `tasks`: of the time as owner, which ends by their failures.
    """

    index: TopicIndex
    tail: TailBuffer
    fetch: Fetch
    tasks: Tasks


class Parts(NamedTuple):
    """What a subscription has all the time; `wake` asks for a look whether something can go out."""

    name: str
    topic: str
    dispatcher: Dispatcher[TrackedConsumer]
    stats: SubscriptionStats
    lateness_causes: LatenessCauses
    wake: Callable[[], None]
    limits: DispatchLimits
    randbits: RandBits
    pending: PendingAcks[TrackedConsumer]
    throttle: Throttle
    given_before: GivenBefore
    gone: GoneUnacked


class Hands(NamedTuple):
    """Where the entries are that were taken from index and feed and are not acked, as far as the parts know by now."""

    in_flight: list[PositionKey]
    to_redeliver: list[PositionKey]
    ready: list[PositionKey]
    held: list[PositionKey]
    in_transactions: list[PositionKey]
    handed_out: list[PositionKey]
    """By the index: each is in one of the others."""


class Outlet:
    """From when a subscription's cursor is known until this bridge dispatches it no more."""

    def __init__(
        self, parts: Parts, source: Source, view: SubscriptionView, feed: Feed, before: "Before", delays: bool
    ) -> None:
        """`before`: what may have gone out by then; `delays`: off by a policy, whatever is in the index is due."""
        self.view = view
        self.feed = feed
        self.polled = EARLIEST
        """The broker's mark-delete position as last heard of."""
        told = (source.fetch, parts.wake, self._on_gone, self._on_unread, source.tasks, parts.limits, parts.randbits)
        dispatcher = parts.dispatcher
        self.refetch: Refetch
        self._ready: ReadyQueue
        self._sharing = dispatcher.sharing if isinstance(dispatcher, KeyedDispatcher) else None
        self._single = dispatcher if isinstance(dispatcher, SingleDispatcher) else None
        self._has_order = self._sharing is not None or self._single is not None
        if isinstance(dispatcher, KeyedDispatcher):
            self.refetch, self._ready = KeyedRefetch(dispatcher, *told), KeyedReadyQueue(dispatcher)
        elif self._single is not None:
            self.refetch = OrderedRefetch(dispatcher.replay, *told)
            self._ready = OrderedReadyQueue(lambda position: self.feed.is_past(position), parts.limits)
        else:
            self.refetch, self._ready = Refetch(dispatcher.replay, *told), ReadyQueue()
        self.ack_ranges_max: int | None = None
        """Nothing new goes out while there are more ranges of acks than that, of which the broker stores no more
        (source: `PersistentDispatcherMultipleConsumers.shouldPauseOnAckStatePersist`)."""
        self._parts = parts
        self._limits = parts.limits
        self._source = source
        self._before = before
        self._delays = delays
        self._kept_back = 0  # of what is ready: immediate entries that must not go out yet
        self._last_now_ms = 0

    def guarded(self, callback: Callable[[Position], None]) -> Callable[[Position], None]:
        """A callback whose failure ends the time as owner, and nothing of whoever calls it."""
        return self._source.tasks.guarded(callback)

    def forget(self) -> None:
        """Of what was handed out, or was about to be, nothing is known any more."""
        self._ready.clear()
        self._kept_back = 0
        self.refetch.clear()

    def end(self) -> None:
        """Dispatch no more; what was handed out counts as never delivered."""
        self.forget()
        self._parts.pending.clear()
        self.feed.close()
        self.view.release_all()
        self.view.active = False

    def begin_anew(self, feed: Feed) -> None:
        """The cursor was set anew: immediate entries come from another place."""
        self.feed.close()
        self.feed = feed

    def advance(self, position: Position) -> None:
        """The broker's mark-delete position."""
        if position > self.view.acks.mark_delete_position:
            self._parts.gone.note_jump(self.view.acks, position, self._parts.pending.positions)
            self._parts.given_before.advance(position)
            self.view.advance(position)
            self._parts.dispatcher.advance(*position)
            self._parts.pending.advance(position)
            self.refetch.advance(position)
            # What clients ack one by one was handed out, and waits no more: only what is skipped, or expired, does.
            contains = self.view.acks.contains
            self._ready.drop_all(lambda offer: contains(*offer[:2]))

    # -- what operators want

    @property
    def waiting(self) -> int:
        """Entries that wait for permits, those to be delivered again aside."""
        return len(self._ready)

    def hands(self) -> Hands:
        """Where what was taken is, in this moment."""
        dispatcher = self._parts.dispatcher
        return Hands(
            list(dispatcher.unacked),
            [*dispatcher.replay, *self.refetch.aside],
            self._ready.positions(),
            self._ready.held(),
            self._parts.pending.parked,
            list(self.view.outstanding),
        )

    def hands_with(self, positions: Sequence[PositionKey]) -> list[int]:
        """In how many hands each position is."""
        dispatcher, pending = self._parts.dispatcher, self._parts.pending.parked
        hands = (dispatcher.unacked, dispatcher.replay, self.refetch.aside, {*self._ready.positions()})
        return [sum(each in hand for hand in (*hands, self._ready.held(), pending)) for each in positions]

    def oldest_ready_ms(self) -> int | None:
        """When the delayed entry was due that waits longest for permits, of those taken out of the index."""
        return self._ready.oldest_due_ms()

    def standing(self, position: PositionKey, deliver_at_ms: int | None) -> Standing:
        """As `TrackedSubscription.standing`."""
        if self.view.acks.contains(*position) or position <= self.polled:
            return Standing.UNKNOWN if deliver_at_ms is None else Standing.ACKED
        dispatcher = self._parts.dispatcher
        if position in dispatcher.unacked or position in self.refetch.aside or position in self._parts.pending:
            return Standing.DISPATCHED
        waiting = dispatcher.replay.get(position) or self._ready.find(position)
        if waiting is not None:
            return Standing.PENDING if waiting.again is None else Standing.DISPATCHED
        if deliver_at_ms is None:
            return Standing.UNKNOWN
        before = self._before.holds(position, deliver_at_ms) or not self._delays
        return Standing.DISPATCHED if before else Standing.PENDING

    def hold(self, position: PositionKey) -> None:
        """Keep an entry that is pending from going out, until `let_go` or `cancelled`."""
        self._ready.hold(position)

    def let_go(self, position: PositionKey) -> None:
        """Let it go out as if nothing had been."""
        self._ready.let_go(position)

    def cancelled(self, position: PositionKey) -> None:
        """The broker has the ack of a held entry."""
        self._ready.drop(position)
        self.ack(position)

    def ack(self, position: PositionKey) -> bool:
        """It is acked for good; returns whether it was handed out, or waiting for redelivery."""
        self.view.ack(*position)
        return self.settle(position)

    def settle(self, position: PositionKey) -> bool:
        """A client has acked it, and whether it exists is left open; returns as `ack`."""
        self._parts.pending.discard(position)
        aside = self.refetch.discard(position)
        return self._parts.dispatcher.ack(*position) or aside

    # -- what goes out

    def set_delays(self, delays: bool, now_ms: int) -> None:
        """Switch delays off, or on again: what was not handed out by then waits for its time."""
        if delays and not self._delays:
            self.view.rewind_to(time_bound(now_ms))
        self._delays = delays

    def due_in_ms(self, now_ms: int) -> int | None:
        """How long until the next delayed entry is due, 0 or less when it is; None without any that could go on."""
        if not self._ready.has_room:
            return None
        due_ms = self._source.index.next_due_ms(self.view)
        return None if due_ms is None else due_ms - self._horizon_ms(now_ms)

    def _horizon_ms(self, now_ms: int) -> int:
        """Until when entries are due."""
        if self._delays:
            return now_ms
        index = self._source.index
        span = index.table.span()
        return now_ms if span is None else max(now_ms, (span[1] + 1) * index.partition_width_ms)

    def pump(self, now_ms: int) -> int:
        """Send at most a slice of what is due; returns how many entries went out, or were taken to wait for others of
        their key: 0 when there is nothing to be done, as many as in a slice when looking took as long as sending them.
        A consumer must have permits, and the dispatch rates let something go out.
        """
        budget = self._parts.throttle.entries(min(self._parts.dispatcher.capacity(), self._limits.dispatch_slice))
        if now_ms < self._last_now_ms and self._ready:
            self._hold_back(now_ms)
        self._last_now_ms = now_ms
        again = self.refetch.take_next(budget, self._at_hand, partial(self._is_early, now_ms=now_ms))
        budget -= len(again)
        taken = 0
        if self._single is not None and self._waits_again(now_ms):
            return self._send(again, 0) if again else 0
        if (lacks := self._ready.lacks(budget + self._kept_back)) > 0:
            taken += self._add_due(lacks, now_ms)
        if (lacks := self._ready.lacks_new(budget)) > 0 and (room := self._room_for_new()) > 0:
            # Where there is an order, how many may go out is looked at before, not when their turn comes.
            taken += self._add_immediate(math.ceil(min(lacks, room)) if self._has_order else lacks)
        return max(self._send(again, budget), taken) if again or self._ready else taken

    def _waits_again(self, now_ms: int) -> bool:
        """Whether something is still to be delivered again that may go: new entries would overtake it."""
        first = islice(self._parts.dispatcher.replay.items(), self._limits.replay_early_max)
        return any(not self._is_early(position, waiting.key, now_ms) for position, waiting in first)

    def _room_for_new(self) -> float:
        """How many messages of immediate entries may go out for the first time."""
        if self.refetch.holding:  # they would overtake what is being read again
            return 0
        if self.ack_ranges_max is not None and self.view.acks.holes > self.ack_ranges_max:
            return 0
        return self._parts.dispatcher.room_for_new()

    def _add_due(self, limit: int, now_ms: int) -> int:
        index, view = self._source.index, self.view
        cursor = view.cursor
        due = index.due(view, self._horizon_ms(now_ms), limit)
        if not due:  # to be gone on with at once; others have their turn before
            return self._limits.dispatch_slice if view.is_passing else 0
        if now_ms > view.dispatched_until_ms:
            with contextlib.suppress(StoreError):  # with a full disk deliveries go on
                index.note_dispatching(view, now_ms + self._limits.dispatch_lease_ms)
        self._ready.add([self._offer(e.ledger, e.entry, e.message_count, e.key, e.raw) for e in due])
        self._note_lateness(due, cursor, now_ms)
        return len(due)

    def _note_lateness(self, due: list[DueEntry], cursor: bytes, now_ms: int) -> None:
        """Note first deliveries; `cursor`: what lies before it was stored when others of its time were out."""
        stats, lateness_causes = self._parts.stats, self._parts.lateness_causes
        on_time = []
        for entry in due:
            if entry.deliver_at_ms > now_ms and self._may_be_early((entry.ledger, entry.entry)):
                stats.expedited += 1
                continue
            on_time.append(entry.deliver_at_ms)
            if now_ms - entry.deliver_at_ms > LATE_MS:
                stored_late = entry.key < cursor
                cause = lateness_causes.cause(entry.deliver_at_ms, covered=self.view.covered, stored_late=stored_late)
                stats.causes[cause] += 1
                stats.too_late[cause] += now_ms - entry.deliver_at_ms > TOO_LATE_MS
        stats.first_delivery(on_time, now_ms)

    def _add_immediate(self, limit: int) -> int:
        taken = self.feed.take(limit, self._limits.dispatch_slice_bytes)
        self._ready.add([self._offer(e.ledger, e.entry, e.message_count, None, e.raw) for e in taken])
        return len(taken)

    def _offer(self, ledger: int, entry: int, message_count: int, key: bytes | None, raw: bytes) -> Offer:
        """Of an entry that goes out for the first time."""
        if self._sharing is None:
            return Offer(ledger, entry, message_count, key, raw)
        return Offer(ledger, entry, message_count, key, raw, 0, (), None, None, self._sharing.hash_of(raw))

    def _is_early(self, position: PositionKey, key: bytes | None, now_ms: int) -> bool:
        """Whether an entry that was handed out is not due: the clock was set back since."""
        if key is None or decode_key(key)[0] <= now_ms:
            return False
        return not self._may_be_early(position)

    def _may_be_early(self, position: PositionKey) -> bool:
        return not self._delays or self.view.is_expedited(position)

    def _at_hand(self, position: PositionKey, key: bytes | None) -> bytes | None:
        """The bytes of an entry, if they are kept here."""
        if key is None:
            kept = self._source.tail.get(*position)
            return None if kept is None else kept.raw
        indexed = self._source.index.get(key)
        return None if indexed is None else indexed.raw

    def _hold_back(self, now_ms: int) -> None:
        """The clock was set back: what is delayed among the leftovers may not be due any more."""
        for offer in self._ready.take_out(lambda each: self._is_early(each[:2], each.key, now_ms)):
            self._parts.dispatcher.put_back(offer[:2], Redelivery.of(offer))

    def _send(self, again: list[Offer], fresh: int) -> int:
        """Send what is delivered again, then up to `fresh` entries of what is ready, as far as permits go."""
        new = self._sendable(self._ready.take(fresh + self._kept_back))
        again = self._sendable(again)
        new, kept_back = without_new(new, math.inf if self._has_order else self._room_for_new())
        self._kept_back = len(kept_back)
        offers, throttle = again + new, self._parts.throttle
        fitting = throttle.fitting(offers) if throttle.limits else len(offers)
        assigned, left = self._parts.dispatcher.assign(offers[:fitting])
        left = [*left, *offers[fitting:]]
        left_again = max(len(left) - len(new), 0)
        self._give_back(again, left[:left_again])
        self._ready.put_first([*left[left_again:], *kept_back])
        return sum([self._send_to(consumer, batch) for consumer, batch in assigned])

    def _send_to(self, consumer: TrackedConsumer, batch: Sequence[Offer]) -> int:
        stats = self._parts.stats
        if self._parts.pending:
            consumer.send((o.ledger, o.entry, o.redelivery_count, self._parts.pending.shown(o), o.raw) for o in batch)
        else:
            consumer.send((o.ledger, o.entry, o.redelivery_count, o.ack_set, o.raw) for o in batch)
        self._parts.dispatcher.flow(consumer, 0, consumer.writable)
        if self._parts.throttle.limits:
            self._parts.throttle.spend(batch)
        messages = size = again = 0
        given_before = self._parts.given_before
        for offer in batch:
            messages += offer.message_count
            size += len(offer.raw)
            why = given_before.take(offer[:2]) if offer.again is None and given_before else offer.again
            if why is not None:
                again += offer.message_count
                stats.delivered_again(why, offer.message_count)
        stats.delivered += messages
        for sent in (stats.sent, consumer.sent):
            sent.note(self._last_now_ms, messages, size, again)
        return len(batch)

    def _sendable(self, offers: Iterable[Offer]) -> list[Offer]:
        """Those that are not acked, also not in a transaction, and that nobody holds."""
        contains, skipped = self.view.acks.contains, self.polled
        found = [each for each in offers if not contains(each.ledger, each.entry) and each[:2] > skipped]
        if self._single is not None and self._single.acked_up_to >= (found[0][:2] if found else (math.inf,)):
            found = self._not_acked_up_to(self._single, found)
        found = self._parts.pending.sift(found)
        found = self._ready.without_held(found)
        # With one consumer all parts of a message meet anyway, and so do those of one key.
        if len(self._parts.dispatcher.consumers) > 1 and not self._has_order:
            found = [_with_chunk(offer) for offer in found]
        return found

    def _not_acked_up_to(self, single: SingleDispatcher[TrackedConsumer], offers: list[Offer]) -> list[Offer]:
        """Without what is immediate and a consumer has acked before this bridge gave it: the broker is told so."""
        upto, active = single.acked_up_to, single.active
        known = (offer[:2] for offer in offers if offer.key is None and offer[:2] <= upto)
        acked = dict.fromkeys(position for position in known if position not in self._parts.pending)
        if not acked or active is None:
            return offers
        active.acknowledge(acked)
        for position in acked:
            self.ack(position)
        self._parts.stats.acked += len(acked)
        return [offer for offer in offers if offer[:2] not in acked]

    def _give_back(self, again: Sequence[Offer], left: Sequence[Offer]) -> None:
        """What could not be delivered again after all: for want of permits, or because its consumer had none."""
        dispatcher = self._parts.dispatcher
        for offer in left:
            dispatcher.put_back(offer[:2], Redelivery.of(offer))
        for offer in again:
            if offer[:2] in dispatcher.replay:
                self.refetch.keep(offer[:2], offer.raw)

    def _on_gone(self, position: PositionKey) -> None:
        self._parts.stats.unfetched += 1
        log.warning("entry to deliver again is gone from the broker", topic=self._parts.topic, position=position)

    def _on_unread(self, reason: str) -> None:
        name = self._parts.name
        log.warning("cannot read entries again", topic=self._parts.topic, subscription=name, reason=reason)


class Before(NamedTuple):
    """What whoever dispatched before may have delivered."""

    until_ms: int
    expedited: frozenset[PositionKey]

    @classmethod
    def of(cls, view: SubscriptionView, now_ms: int) -> "Before":
        """As a view stands that was not dispatched here yet."""
        until = view.dispatched_until_ms
        return cls(now_ms if until < 0 else min(until, now_ms), frozenset(map(position_of, view.expedited)))

    def holds(self, position: PositionKey, deliver_at_ms: int) -> bool:
        """Whether it may have delivered an entry."""
        return deliver_at_ms <= self.until_ms or position in self.expedited


def position_of(key: bytes) -> PositionKey:
    """Return the position in a key of the index."""
    _, ledger, entry = decode_key(key)
    return ledger, entry


def without_new(offers: list[Offer], room: float) -> tuple[list[Offer], list[Offer]]:
    """Those that may go out where there is room for so many messages of immediate entries, and those that wait.

    The last one may be of more messages than there is room for.
    """
    if room == math.inf:
        return offers, []
    going: list[Offer] = []
    waiting: list[Offer] = []
    for offer in offers:
        if offer.key is not None:
            going.append(offer)
        elif room > 0:
            going.append(offer)
            room -= offer.message_count
        else:
            waiting.append(offer)
    return going, waiting


def _with_chunk(offer: Offer) -> Offer:
    chunk = chunk_of(offer.raw)
    return offer if chunk is None else offer._replace(chunk=chunk)
