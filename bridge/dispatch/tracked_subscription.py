"""One tracked subscription: the consumers that are attached, what they have acked, and how its cursor stands."""

import asyncio
import math
from collections.abc import Callable, Collection, Sequence

from bridge.broker.policies import Rate, TopicPolicies
from bridge.clock import RandBits, system_randbits
from bridge.dispatch.acks.ack_notes import AckNotes
from bridge.dispatch.acks.pending_acks import Committed, PendingAcks, Transaction, parts_of
from bridge.dispatch.acks.standstill import Standstill
from bridge.dispatch.dispatcher import Again, Dispatcher, PositionKey
from bridge.dispatch.entry_notes import GivenBefore, GoneUnacked
from bridge.dispatch.keyed.keyed_dispatcher import KeyedDispatcher
from bridge.dispatch.lateness_causes import LatenessCauses
from bridge.dispatch.outlet import Before, Hands, Outlet, Parts, Source
from bridge.dispatch.rate_limit import RateLimiter, Throttle
from bridge.dispatch.single.cumulative_acks import entry_by_entry
from bridge.dispatch.single.single_dispatcher import SingleDispatcher
from bridge.dispatch.subscription_stats import SubscriptionStats
from bridge.dispatch.unacked_limits import UnackedLimits
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.intake.feed import Feed
from bridge.ledgers.cursor_history import UNKNOWN, CursorReading
from bridge.limits import DispatchLimits
from bridge.protocol.pulsar_pb2 import CommandAck
from bridge.protocol.single_active import Sharing, SingleActive
from tracker import EARLIEST, AckSet, Position, SubscriptionView, TopicIndex
from tracker.search import Standing


class TrackedSubscription:
    """Dispatches between `start` and `stop`; consumers come and go at any time."""

    def __init__(
        self,
        name: str,
        topic: str,
        wake: Callable[[], None],
        limits: DispatchLimits,
        randbits: RandBits = system_randbits,
        topic_rate: RateLimiter | None = None,
    ) -> None:
        """`wake`: asks the topic to pump soon; `topic_rate`: of all subscriptions together."""
        self.name = name
        self.topic = topic
        self.stats = SubscriptionStats()
        self.lateness_causes = LatenessCauses()
        self.dispatcher: Dispatcher[TrackedConsumer] = Dispatcher(limits)
        self.pending_acks: PendingAcks[TrackedConsumer] = PendingAcks(self.dispatcher, limits)
        """Acks in transactions that have not ended."""
        self.loading: asyncio.Task[None] | None = None
        self.seeking = False
        self.trouble: str | None = None
        """Why its cursor cannot be read; None when it can be, as far as anybody has tried."""
        self.repairing = False
        self.lost_acks = False
        """The broker's cursor stands before what is acked here, and is to be given it again."""
        self.stale = False
        """Nobody was attached for a while: the cursor may have been moved past the bridge."""
        self.in_doubt = False
        """The broker closed a consumer: it may have moved the cursor, though others still seem to be attached."""
        self.delays = True
        """Off by a policy of the broker: whatever is in the index is due."""
        self.ack_ranges_max: int | None = None
        """Nothing new goes out while it has more ranges of acks than that."""
        self.generation = 0
        """Changes whenever what was handed out is forgotten: the cursor is set anew, or dispatch ends here."""
        self.sharing: Sharing = None
        """Of which type it is; None while it is a Shared subscription."""
        self._wake = wake
        self._limits = limits
        self.throttle = Throttle(topic_rate or RateLimiter())
        self.gone = GoneUnacked(limits.cursor_jumps_max)
        """Entries that went without an ack of a consumer, since this bridge knows the subscription."""
        self._given_before = GivenBefore()
        self._parts = Parts(
            name,
            topic,
            self.dispatcher,
            self.stats,
            self.lateness_causes,
            wake,
            limits,
            randbits,
            self.pending_acks,
            self.throttle,
            self._given_before,
            self.gone,
        )
        self._outlet: Outlet | None = None  # between `start` and `stop`
        self._index: TopicIndex | None = None  # that it was dispatched from last
        self._acked_at = -math.inf
        self._ack_notes: AckNotes[TrackedConsumer] = AckNotes(limits.max_unacked_per_subscription)
        self._attached: set[TrackedConsumer] = set()
        self._unacked_limits = self.dispatcher.unacked_limits
        self._history = UNKNOWN  # of the cursor when dispatch began last
        self._standstill = Standstill(limits.repair_after_s)

    # -- life cycle

    @property
    def waiting(self) -> int:
        """Entries that are to be delivered and wait for permits."""
        return self.to_redeliver + (0 if self._outlet is None else self._outlet.waiting)

    @property
    def to_redeliver(self) -> int:
        """Of these, entries that are to be delivered again."""
        return len(self.dispatcher.replay) + (0 if self._outlet is None else len(self._outlet.refetch.aside))

    @property
    def view(self) -> SubscriptionView | None:
        """What of the index it has yet to get, between `start` and `stop`."""
        return None if self._outlet is None else self._outlet.view

    @property
    def feed(self) -> Feed | None:
        """What of the immediate entries it has yet to get, between `start` and `stop`."""
        return None if self._outlet is None else self._outlet.feed

    @property
    def dispatching(self) -> bool:
        """Whether index, tail and cursor are in place."""
        return self._outlet is not None and not self.seeking and not self.stale

    @property
    def has_consumers(self) -> bool:
        """Whether anybody is attached."""
        return bool(self.dispatcher.consumers)

    def start(
        self, source: Source, cursor: CursorReading, make_feed: Callable[[SubscriptionView], Feed], now_ms: int
    ) -> None:
        """Begin (or go on) with what the broker says of the cursor."""
        self._index = source.index
        view = source.index.view(self.name)
        before = Before.of(view, now_ms)
        anew = self.seeking or cursor.takes_back
        if cursor.takes_back:
            self._forget_deliveries(Again.cursor_moved)
            self._given_before.note_taken_back(view.acks, self.gone)
            self.pending_acks.distrust()
        elif self.seeking:
            view.release_all()
        cursor.give(view)
        if cursor.takes_back:
            self.gone.take_back(view.acks)
        self._history = cursor.history
        for position in self._ack_notes.judge(cursor.history, self._attached):
            view.ack(*position)
        if isinstance(self.dispatcher, SingleDispatcher):
            self.dispatcher.overtake(view.acks.highest)
        view.active = self.has_consumers
        if self._outlet is None:
            self._given_before.begin(view.acks)
            self._outlet = Outlet(self._parts, source, view, make_feed(view), before, self.delays)
            self._outlet.ack_ranges_max = self.ack_ranges_max
        elif anew:
            self._outlet.begin_anew(make_feed(view))
        self._outlet.polled = EARLIEST
        self.trouble = None
        self.seeking = self.stale = False
        self._wake()

    @property
    def unsettled_s(self) -> float:
        """How long acks may still be on their way in the broker, those of consumers that left too, in seconds."""
        return max(self._acked_at + self._limits.ack_settle_s - asyncio.get_running_loop().time(), 0.0)

    def acknowledge_again(self, positions: Sequence[PositionKey]) -> bool:
        """Repair the broker's cursor; False when no consumer is there to do it, or the cursor may be another by now."""
        state = next(iter(self.dispatcher.consumers), None)
        if state is None or not self.dispatching:
            return False
        state.consumer.acknowledge(positions)
        self.stats.repaired += len(positions)
        return True

    def ack_for_nobody(self, positions: Sequence[PositionKey]) -> bool:
        """Have entries acked that are for no consumer; False when nobody is there to do it."""
        state, view = next(iter(self.dispatcher.consumers), None), self.view
        if state is None or view is None or not self.dispatching:
            return False
        hands = self.hands_with(positions)
        free = [each for each, held in zip(positions, hands, strict=True) if not held]
        state.consumer.acknowledge(free)
        for each in free:
            view.ack(*each)
        return True

    def stop(self) -> None:
        """Dispatch no more; what was handed out counts as never delivered, until the broker says otherwise."""
        self.stop_loading()
        self._forget_deliveries(Again.resumed)
        outlet, self._outlet = self._outlet, None
        if outlet is not None:
            outlet.end()

    def stop_loading(self) -> None:
        """Forget what is being read of the cursor: it may be of before it was moved."""
        self.trouble = None
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
        self._forget_deliveries(Again.cursor_moved)
        if isinstance(self.dispatcher, SingleDispatcher):
            self.dispatcher.begin_anew()

    def sought(self, closed: Collection[TrackedConsumer]) -> None:
        """A seek was answered; `closed`: the consumers that it has closed.

        The broker says so on the connection of each, which may be later: what they got meanwhile would come twice.
        """
        if not self.seeking:
            # It was on its way before the topic was opened anew here: what went out since is not known to count.
            self.suspend()
        for consumer in closed:
            consumer.closed_by_broker = True
            self.remove_consumer(consumer)

    def checkpoint(self) -> tuple[SubscriptionView, Position] | None:
        """Everything immediate at or below a position is acked by the view; None while nobody knows."""
        if self._outlet is None or self.seeking:
            return None
        return self._outlet.view, self._outlet.feed.checkpoint()

    @property
    def hands(self) -> Hands | None:
        """Where what was taken from index and feed is; None while nothing is dispatched, or nobody knows."""
        return self._outlet.hands() if self._outlet is not None and self.dispatching else None

    def hands_with(self, positions: Sequence[PositionKey]) -> list[int]:
        """In how many hands each position is."""
        return [0] * len(positions) if self._outlet is None else self._outlet.hands_with(positions)

    def _forget_deliveries(self, again: Again) -> None:
        """`again`: why what consumers have comes again."""
        self.generation += 1
        had = (position for position, waiting in self.dispatcher.replay.items() if waiting.again is not None)
        aside = () if self._outlet is None else self._outlet.refetch.aside
        self._given_before.note([*self.dispatcher.unacked, *had, *aside, *self.pending_acks.positions], again)
        self.dispatcher.clear()
        self.pending_acks.forget_deliveries()
        if self._outlet is not None:
            self._outlet.forget()

    # -- consumers

    def dispatch_as(self, sharing: Sharing) -> None:
        """Be of the type that the broker has just agreed on with a consumer: those of another type have left there.

        So has any other of an Exclusive one. Nothing that was handed out as another type is known any more.
        """
        if sharing != self.sharing or sharing == SingleActive():
            for state in list(self.dispatcher.consumers):
                state.consumer.close()
        if sharing == self.sharing:
            return
        self.stop()
        self.sharing = sharing
        self.dispatcher = self._dispatcher_for(sharing)
        self.dispatcher.set_unacked_limits(self._unacked_limits)
        self._parts = self._parts._replace(dispatcher=self.dispatcher)
        self.pending_acks.change(self.dispatcher)

    def _dispatcher_for(self, sharing: Sharing) -> Dispatcher[TrackedConsumer]:
        if isinstance(sharing, SingleActive):
            return SingleDispatcher(self._limits)
        return Dispatcher(self._limits) if sharing is None else KeyedDispatcher(self._limits, sharing, self._wake)

    def active_changed(self, consumer: TrackedConsumer) -> None:
        """The broker has elected it, or another one."""
        if isinstance(self.dispatcher, SingleDispatcher):
            if consumer.active:
                self.dispatcher.activate(consumer)
            else:
                self.dispatcher.deactivate(consumer)
            self._wake()

    def add_consumer(self, consumer: TrackedConsumer) -> None:
        """With 0 permits."""
        self._attached.add(consumer)
        self.dispatcher.add_consumer(consumer, consumer.priority_level, consumer.name, consumer.ranges)
        self.active_changed(consumer)
        if self.view is not None:
            self.view.active = True

    def remove_consumer(self, consumer: TrackedConsumer) -> None:
        """What it has not acked goes to the others. Nothing if it has left before."""
        if consumer not in self._attached:
            return
        self._attached.remove(consumer)
        self.in_doubt |= consumer.closed_by_broker
        consumer.left_history = self._history
        self._ack_notes.left(consumer, self._history)
        self.dispatcher.remove_consumer(consumer)
        if self.view is not None and not self.has_consumers:
            self.view.active = False
        self._wake()

    def forget_counts(self) -> None:
        """The last consumer is gone: what is delivered again counts from 0, as from a broker.

        Source: `PersistentDispatcherMultipleConsumers.clearComponentsAfterRemovedAllConsumers`.
        """
        self.dispatcher.forget_counts()
        if self._outlet is not None:
            self._outlet.refetch.forget_counts()

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
        if ack.ack_type != CommandAck.Individual:
            if not isinstance(self.dispatcher, SingleDispatcher):
                return  # cumulative acks mean nothing on Shared
            if consumer.passed:
                consumer.relay_ack(ack)
                return
            ack = entry_by_entry(self.dispatcher, self.pending_acks, consumer, ack, self._exists)
            consumer.relay_ack(ack)
        transaction = Transaction.of(ack)
        if transaction is not None:
            self.pending_acks.note(transaction, parts_of(ack), asyncio.get_running_loop().time())
            return
        self._acked_at = asyncio.get_running_loop().time()
        blocked = self.dispatcher.capacity() == 0 or self.dispatcher.room_for_new() <= 0
        blocked = blocked or self.ack_ranges_max is not None
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

    def ack_answered(self, ack: CommandAck, agreed: bool) -> None:
        """The broker says whether an ack in a transaction counts, if that is committed."""
        transaction = Transaction.of(ack)
        if transaction is not None:
            blocked = self.dispatcher.capacity() == 0
            self.pending_acks.answered(transaction, parts_of(ack), agreed)
            if blocked or not agreed:
                self._wake()

    def transaction_ended(self, transaction: Transaction, committed: bool) -> None:
        """A coordinator has said so to a client."""
        trusted = self.dispatching and self.loading is None
        self._commit(self.pending_acks.ended(transaction, committed, trusted=trusted))
        self._wake()

    def acked_by_transactions(self, positions: Sequence[PositionKey]) -> None:
        """The broker's cursor has them, so they were committed."""
        self._commit(Committed(list(positions), []))
        self._wake()

    def suspects_no_more(self, acks: AckSet) -> None:
        """No transactions from before are left, and these are the acks of the cursor since."""
        if self.view is not None:
            self.view.merge(acks)
        self.pending_acks.clear_suspects()
        self._wake()

    def _commit(self, done: Committed) -> None:
        if self._outlet is None:
            return
        for position in done.whole:
            self._outlet.ack(position)
            self.stats.acked += 1
        deputy = next(iter(self._attached), None)
        completed = [each for each, words in done.partly if deputy and self._completes(deputy, each, words)]
        if deputy is not None and completed:
            deputy.acknowledge(completed)
            self._note_acks(deputy, completed)

    def _completes(self, consumer: TrackedConsumer, position: PositionKey, ack_set: Sequence[int]) -> bool:
        """Note which messages of a batch are acked; whether none is left that is not, and the broker may be told so."""
        if self._outlet is None or not self.dispatching or consumer not in self._attached:
            return False
        left = self.dispatcher.ack_partly(*position, ack_set)
        if left is None:
            left = self._outlet.refetch.ack_partly(position, ack_set)
        if left is None:
            left = self.pending_acks.ack_partly(position, ack_set)
        # The broker drops the rest of a list behind an entry that does not exist. What was handed out does, also while
        # the harvester is behind what a feed has read.
        exists = left is not None or self._exists(position) is True
        return exists and not any(ack_set if left is None else left)

    def _exists(self, position: PositionKey) -> bool | None:
        """Whether an entry has been seen in the topic; None while nothing is known of it."""
        known = None if self._index is None else self._index.harvested_position
        return None if known is None else position <= known

    def _note_acks(self, consumer: TrackedConsumer, positions: list[PositionKey]) -> None:
        outlet = self._outlet
        for position in positions:
            had = False
            if outlet is None:  # nothing is handed out
                self.pending_acks.discard(position)
            elif had := outlet.settle(position):
                self.stats.acked += 1
            if not had and self._exists(position) is False:
                continue  # perhaps it never will: the broker decides
            if outlet is not None:
                outlet.view.ack(*position)
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
        """Have the broker's mark-delete position follow the acks; to be called every `cursor_poll_s`."""
        state = next(iter(self.dispatcher.consumers), None)
        if state is not None and self._outlet is not None and self.dispatching:
            asked_for = self._outlet.feed
            answer = self._outlet.guarded(lambda position: self._on_mark_delete(position, asked_for))
            state.consumer.request_mark_delete(answer)

    def _on_mark_delete(self, position: Position, asked_for: Feed) -> None:
        """Take it over: what was skipped past the bridge, or expired, is not sent from now on."""
        if self._outlet is None or not self.dispatching or self._outlet.feed is not asked_for:
            return  # the cursor was set anew since: what it said before must not hold anything back
        self._outlet.polled = position
        self._outlet.advance(position)
        self.lost_acks |= self._standstill.note(position, self._outlet.view.acks, asyncio.get_running_loop().time())

    # -- what operators want

    def standing(self, position: PositionKey, deliver_at_ms: int | None) -> Standing:
        """How an entry stands that is due at a time; None: of no delayed entry. Must be dispatching.

        What is acked is so only if there was something to ack: a wrong id is below the mark-delete position too.
        An entry that may have been delivered before this bridge took over counts as dispatched.
        """
        assert self._outlet is not None
        return self._outlet.standing(position, deliver_at_ms)

    def oldest_ready_ms(self) -> int | None:
        """When the delayed entry was due that waits longest for permits, of those taken out of the index."""
        return None if self._outlet is None else self._outlet.oldest_ready_ms()

    def redelivery_count(self, position: PositionKey) -> int:
        """How often consumers have asked for an entry again."""
        known = self.dispatcher.unacked.get(position) or self.dispatcher.replay.get(position)
        return 0 if known is None else known.redelivery_count

    def hold(self, position: PositionKey) -> None:
        """Keep an entry that is pending from going out, until `let_go` or `cancelled`. Must be dispatching."""
        assert self._outlet is not None
        self._outlet.hold(position)

    def let_go(self, position: PositionKey) -> None:
        """Let it go out as if nothing had been."""
        if self._outlet is not None:
            self._outlet.let_go(position)
        self._wake()

    def cancelled(self, position: PositionKey) -> None:
        """The broker has the ack of a held entry."""
        if self._outlet is not None:
            self._outlet.cancelled(position)
        self.gone.cancelled.add(position)
        self.stats.cancelled += 1

    # -- dispatch

    def set_delays(self, delays: bool, now_ms: int) -> None:
        """Switch delays off, or on again: what was not handed out by then waits for its time."""
        if self._outlet is not None:
            self._outlet.set_delays(delays, now_ms)
        if delays != self.delays:
            self.delays = delays
            self._wake()

    def set_rate(self, rate: Rate) -> None:
        """The dispatch rate of this subscription from now on."""
        self.throttle.subscription.set_rate(rate, asyncio.get_running_loop().time())
        self._wake()

    def set_policies(self, policies: TopicPolicies) -> None:
        """What the broker's policies say from now on of each subscription of the topic."""
        per_consumer, per_subscription = policies.max_unacked_per_consumer, policies.max_unacked_per_subscription
        self._unacked_limits = UnackedLimits(
            self._limits.max_unacked_per_consumer if per_consumer is None else per_consumer,
            self._limits.max_unacked_per_subscription if per_subscription is None else per_subscription,
        )
        self.dispatcher.set_unacked_limits(self._unacked_limits)
        self.ack_ranges_max = policies.ack_ranges_max
        if self._outlet is not None:
            self._outlet.ack_ranges_max = self.ack_ranges_max
        self._wake()

    def due_in_ms(self, now_ms: int) -> int | None:
        """How long until the next delayed entry is due that a consumer could take; None without any.

        While a dispatch rate is used up: how long that lasts.
        """
        if self._outlet is None or not self.wants():
            return None
        wait_s = self._throttled_s()
        return math.ceil(wait_s * 1000) if wait_s else self._outlet.due_in_ms(now_ms)

    def _throttled_s(self) -> float:
        return self.throttle.wait_s(asyncio.get_running_loop().time()) if self.throttle.limits else 0.0

    def wants(self) -> bool:
        """Whether a consumer could take something."""
        return self.dispatching and self.dispatcher.capacity() > 0

    def pump(self, now_ms: int) -> int:
        """Send at most a slice of what is due; returns how many entries went out."""
        wants = self.wants()
        self.lateness_causes.note_permits(now_ms, wants)
        throttled = self._throttled_s() > 0
        self.lateness_causes.note_rate(now_ms, not throttled)
        if self._outlet is None or not wants or throttled:
            return 0
        sent = self._outlet.pump(now_ms)
        self.lateness_causes.note_rate(now_ms, self._throttled_s() == 0)
        self.lateness_causes.note_permits(now_ms, self.dispatcher.capacity() > 0)
        return sent
