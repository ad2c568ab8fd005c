"""Reads the cursors of an owned topic partition's subscriptions, and starts or restarts dispatch by what they say."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from bridge.answers.values import Trigger
from bridge.broker.admin import AdminError
from bridge.broker.connection import BrokerConnection
from bridge.broker.fetch import Fetched, fetch_entries
from bridge.broker.reader import EntryReader, open_reader
from bridge.dispatch.acks.ack_repair import repair
from bridge.dispatch.dispatcher import PositionKey
from bridge.dispatch.outlet import Source
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.intake.feed import Feed
from bridge.intake.tail_buffer import TailBuffer
from bridge.ledgers.cursor_history import UNKNOWN, CursorReading, history_of
from bridge.ledgers.internal_stats import CursorState, LedgerState
from bridge.net.tasks import Tasks
from bridge.protocol.entries import StoredEntry
from bridge.refill.gaps import GapFiller
from bridge.topics.checkpoints import CheckpointBook
from bridge.topics.context import BridgeContext
from bridge.topics.pass_through import PassThrough
from bridge.topics.policy_watch import PolicyWatch
from bridge.topics.transactions import Transactions, acks_of
from tracker import Position, StoreError, SubscriptionView, TopicIndex

log = structlog.get_logger(__name__)

OnEntries = Callable[[list[StoredEntry]], None]
OnClosed = Callable[[Exception], None]


class CursorLoader:
    """One per time as owner of a topic partition."""

    def __init__(
        self,
        topic: str,
        context: BridgeContext,
        connection: BrokerConnection,
        index: TopicIndex,
        tail: TailBuffer,
        gaps: GapFiller,
        book: CheckpointBook,
        passing: PassThrough,
        policies: PolicyWatch,
        work: Tasks,
        dispatch: Tasks,
        on_failed: Callable[[StoreError], None],
        wake: Callable[[], None],
        transactions: Transactions,
    ) -> None:
        """Tasks of the owner's: `work` comes to an end, `dispatch` goes on as long as there is something to deliver.

        `on_failed`: a view could not be stored, it is tried again.
        """
        self._topic = topic
        self._context = context
        self._limits = context.limits.dispatch
        self._connection = connection
        self._index = index
        self._source = Source(index, tail, self._fetch, dispatch)
        self._gaps = gaps
        self._book = book
        self._passing = passing
        self._policies = policies
        self._spawn = work.spawn
        self._dispatch = dispatch
        self._on_failed = on_failed
        self._wake = wake
        self._transactions = transactions
        self._owner_since_ms = context.now_ms()

    def load(self, subscription: TrackedSubscription) -> None:
        """Read the subscription's cursor from the broker, then start it; nothing new when that is under way.

        A seek that was answered meanwhile has it read again.
        """
        if subscription.loading is None or subscription.seeking:
            subscription.stop_loading()
            subscription.loading = self._spawn(self._load(subscription))

    async def _load(self, subscription: TrackedSubscription) -> None:
        backoff = self._context.backoff()
        while True:
            try:
                await self._load_once(subscription)
                return
            except StoreError as error:  # a new view could not be stored
                subscription.trouble = str(error)
                self._on_failed(error)
            except (AdminError, ValueError) as error:
                subscription.trouble = str(error)
                log.warning("cannot read cursor", topic=self._topic, subscription=subscription.name, reason=str(error))
            await asyncio.sleep(backoff.next_s())

    async def _load_once(self, subscription: TrackedSubscription, *, settled: bool = False) -> None:
        if not settled:
            await self._policies.before_dispatch(subscription)
        state = await self._context.admin.internal_stats(self._topic)
        cursor = state.cursors.get(subscription.name)
        if cursor is None:
            if subscription.name in state.unreadable or subscription.has_consumers:
                # The broker accepted a consumer: what it says of the cursor is old, or odd.
                raise AdminError(state.unreadable.get(subscription.name, "the broker does not list it"))
            subscription.loading = subscription.trouble = None
            log.warning("subscription has no cursor", topic=self._topic, subscription=subscription.name)
        elif history_of(cursor.properties) == UNKNOWN and subscription.unsettled_s and not settled:
            # The broker's word is all there is: let it have the acks that are on their way.
            await asyncio.sleep(subscription.unsettled_s)
            await self._load_once(subscription, settled=True)
        else:
            await self._start(subscription, cursor, state)

    async def _start(self, subscription: TrackedSubscription, cursor: CursorState, state: LedgerState) -> None:
        acks, history = await acks_of(cursor, self._limits.ack_ranges_slice), history_of(cursor.properties)
        await self._transactions.suspect(subscription, state.last_confirmed_entry)
        view = self._index.view(subscription.name)
        subscription.loading = None
        subscription.lateness_causes.owner_since_ms = self._owner_since_ms
        reading = CursorReading.of(view, acks, history, state)
        if reading.takes_back:
            log.info("the cursor was set anew", topic=self._topic, subscription=subscription.name)
        same = history != UNKNOWN and history == view.history
        make_feed = partial(self._make_feed, state)
        subscription.start(self._source, reading, make_feed, self._context.now_ms())
        if same:
            self._spawn(repair(subscription, subscription.generation, acks, state.ledger_sizes, self._limits))
        if self._gaps.find(view) is not None:
            self._spawn(self._gaps.fill(view, Trigger.seek if reading.takes_back else Trigger.ownership))

    def give_lost_acks(self, subscription: TrackedSubscription) -> None:
        """Have the broker's cursor told again what it has lost, while dispatch goes on."""
        subscription.lost_acks = False
        self._spawn(self._give_lost_acks(subscription, subscription.generation))

    async def _give_lost_acks(self, subscription: TrackedSubscription, generation: int) -> None:
        try:
            state = await self._context.admin.internal_stats(self._topic)
        except (AdminError, ValueError) as error:
            log.debug("cannot read cursor", topic=self._topic, subscription=subscription.name, reason=str(error))
            return
        cursor, view = state.cursors.get(subscription.name), subscription.view
        if cursor is None or view is None:
            return
        acks, history = await acks_of(cursor, self._limits.ack_ranges_slice), history_of(cursor.properties)
        # Of a cursor without a mark nobody knows whether it has lost acks or was set anew.
        if history != UNKNOWN and history == view.history:
            await repair(subscription, generation, acks, state.ledger_sizes, self._limits)

    def _make_feed(self, state: LedgerState, view: SubscriptionView) -> Feed:
        start = self._book.start_of(view.name, view.history, view.acks, state)
        return Feed(
            start,
            view.acks,
            self._source.tail,
            self._open_reader,
            self._wake,
            self._dispatch,
            self._context.limits.intake,
            self._context.randbits,
        )

    async def _open_reader(self, after: Position, on_entries: OnEntries, on_closed: OnClosed) -> EntryReader:
        reader = open_reader(self._connection, self._topic, after, on_entries, on_closed)
        return await self._passing.reading(reader)

    async def _fetch(self, positions: Sequence[PositionKey]) -> Fetched:
        return await self._passing.reading(self._fetch_some(positions))

    async def _fetch_some(self, positions: Sequence[PositionKey]) -> Fetched:
        fetched = await fetch_entries(
            self._connection, self._topic, positions, self._limits.refetch_bytes, self._limits.refetch_patience_s
        )
        if fetched.errors and not fetched.found:
            raise fetched.errors[0]
        return fetched
