"""The time as owner of a topic partition: all that there is only while this bridge dispatches it."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from bridge.broker.admin import AdminError
from bridge.broker.connection import BrokerError
from bridge.dispatch.admission import turn_away_unlisted
from bridge.dispatch.pump import Pump
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.intake.harvester import Harvester
from bridge.intake.tail_buffer import TailBuffer
from bridge.ledgers.cursor_history import UNKNOWN
from bridge.net.failures import Part
from bridge.net.tasks import Tasks
from bridge.operate.books import Books
from bridge.operate.outlook import Outlook
from bridge.operate.steering import Steering
from bridge.refill.gaps import GapFiller
from bridge.refill.rebuild_status import RebuildStatus
from bridge.refill.rebuilds import Rebuilds
from bridge.refill.snapshots.restoring import Restore
from bridge.refill.snapshots.writing import SnapshotTaker
from bridge.refill.spark_rebuild import SparkRebuild
from bridge.topics.checkpoints import CheckpointBook
from bridge.topics.context import BridgeContext
from bridge.topics.cursor_loader import CursorLoader
from bridge.topics.durability import Durability
from bridge.topics.known_policies import KnownPolicies
from bridge.topics.pass_through import PassThrough
from bridge.topics.policy_watch import PolicyWatch
from bridge.topics.standing.ownership import Ownership
from bridge.topics.standing.presence import Presence
from bridge.topics.subscriptions import Subscriptions
from bridge.topics.transactions import Transactions
from tracker import StoreError, TopicIndex

log = structlog.get_logger(__name__)

EXPECTED = (BrokerError, AdminError, StoreError)
"""What may go wrong without anything being wrong here: the topic partition is served anew."""


class Failed(Exception):
    """An error that nobody thought of; it was told, and counted."""


class Tenure:
    """Made when ownership is won: `start`, `run` until it is over, `end`. Its tasks are its own and end with it."""

    def __init__(
        self,
        ownership: Ownership,
        context: BridgeContext,
        index: TopicIndex,
        book: CheckpointBook,
        subscriptions: Subscriptions,
        outlook: Outlook,
        presence: Presence,
        passing: PassThrough,
        policies: KnownPolicies,
        on_gone: Callable[[str], None],
        restore: Restore | None = None,
    ) -> None:
        """`index` must know a harvested position; `on_gone`: the broker does not have a subscription any more.

        `restore`: what the index begins with.
        """
        topic, connection = ownership.topic, ownership.connection
        assert index.harvested_position is not None
        intake = self._intake = context.limits.intake
        tail = TailBuffer(index.harvested_position, intake.tail_buffer_bytes, intake.tail_buffer_entries)
        self.ownership = ownership
        self.index = index
        self.failed = False
        """An error that nobody thought of: nothing that is known in memory is to be believed."""
        may_send = lambda: connection.is_confirmed  # noqa: E731
        self.pump = Pump(
            subscriptions, context.now_ms, context.now_ns, index, self.fail, context.limits.dispatch, may_send
        )
        self.durability = Durability(ownership, context, index, book, subscriptions)
        self._context = context
        self._limits = context.limits.topics
        self._book = book
        self._subscriptions = subscriptions
        self._outlook = outlook
        self._presence = presence
        self._on_gone = on_gone
        self._restore = restore
        self._work = Tasks(self.fail)
        self._chores = Tasks(self.fail)
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._healing: asyncio.Task[None] | None = None
        self._to_repair: set[str] = set()
        self.harvester = Harvester(
            topic,
            index,
            tail,
            self._on_stored,
            self._on_harvester_closed,
            self._cannot_store,
            context.backoff(),
            intake,
        )
        self._gaps = GapFiller(
            topic,
            connection,
            index,
            context.now_ms,
            self._on_stored,
            self._cannot_store,
            SparkRebuild(topic, index, context.spark, context.limits.refill),
            context.admin,
            passing.reading,
            context.spark.read_from,
            context.limits.refill,
        )
        self.rebuilds = Rebuilds(
            topic,
            connection,
            index,
            context.admin,
            context.spark,
            self._gaps,
            context.now_ms,
            self.spawn,
            context.limits.refill,
        )
        self.snapshots: SnapshotTaker | None = None
        """Of this index; None where no snapshots are taken."""
        if context.snapshots is not None:
            self.snapshots = SnapshotTaker(topic, index, context.snapshots, context.now_ms)
        self.transactions = Transactions(topic, context.admin, subscriptions, context.limits.dispatch)
        self._policies = PolicyWatch(topic, context, subscriptions, policies)
        self._loader = CursorLoader(
            topic,
            context,
            connection,
            index,
            tail,
            self._gaps,
            book,
            passing,
            self._policies,
            self._work,
            self._chores,
            self._cannot_store,
            self.pump.wake,
            self.transactions,
        )
        self.steering = Steering(
            topic,
            connection,
            index,
            context.admin,
            self._load_for_operator,
            self._keep_views,
            context.limits.operators,
        )
        self.books = Books(
            topic,
            connection,
            context.admin,
            index,
            self.harvester.given,
            subscriptions,
            context.now_ms,
            self._load_for_operator,
            context.limits.operators,
        )

    # -- life cycle

    async def start(self) -> None:
        """Begin to read the topic. Raises BrokerError."""
        self.durability.ask_for_sync()
        if self._restore is not None:  # before any cursor is read, and something found missing
            self.spawn(self._gaps.begin_with(self._restore))
        await self.harvester.start(self.ownership.connection)

    async def run(self, closing: asyncio.Event) -> None:
        """Until the broker elects another one, nobody is connected any more, or `closing` is set.

        Raises what one of its tasks ended by; `Failed` for what is not `EXPECTED`.
        """
        stopped = self._chores.spawn(closing.wait())
        chores = (
            self._keep_checkpoints,
            self._look_after_reading,
            self._maintain,
            self._let_go,
            self._policies.run,
        )
        for chore in chores:
            self._chores.spawn(chore())
        self._chores.spawn(self.transactions.run())
        if self.snapshots is not None:
            self._chores.spawn(self.snapshots.run())
        lost = self.ownership.lost
        ends: tuple[asyncio.Future[Any], ...] = (stopped, lost, self._over)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            log.warning("no longer owner of topic", topic=self.ownership.topic, reason=lost.result())
        if self._over.done():
            self._over.result()

    async def end(self) -> None:
        """Stop dispatching, and wait for the tasks."""
        if not self._over.done():
            self._over.set_result(None)
        async with contextlib.AsyncExitStack() as steps:  # the last is the first; each is done, whatever the others do
            steps.push_async_callback(self._work.end)
            steps.push_async_callback(self._chores.end)
            steps.callback(self.harvester.close)
            steps.callback(self._subscriptions.stop)
            steps.callback(self.durability.persist_views)
            steps.callback(self.pump.stop)

    def stop_subscriptions(self) -> None:
        """Dispatch no more; what is known of acks is written."""
        self.durability.persist_views()
        self._subscriptions.stop()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work for as long as this lasts at most."""
        return self._work.spawn(work)

    def fail(self, error: Exception) -> None:
        """Something ended by an error, and left undone for ever what it was there for: begin again."""
        if not isinstance(error, EXPECTED) and not self.failed:
            self.failed = True
            self._context.failures.note(Part.topic, "the topic failed", error, topic=self.ownership.topic)
        if not self._over.done():
            self._over.set_exception(Failed(repr(error)) if self.failed else error)
            self._over.exception()  # seen, also when nobody waits any more

    def _on_harvester_closed(self, error: Exception) -> None:
        if isinstance(error, BrokerError):
            self.ownership.give_up(f"harvester: {error}")
        else:
            self.fail(error)

    # -- subscriptions

    def load(self, subscription: TrackedSubscription) -> None:
        """Read the subscription's cursor from the broker, then start it."""
        self._loader.load(subscription)

    def repair_soon(self, subscription: TrackedSubscription) -> None:
        """A client is gone without a word: what the broker did not get of its acks, it is to get from others.

        With nobody there the next consumer has the cursor read anew; without a mark the broker's word would void acks.
        """
        view = subscription.view
        marked = view is not None and view.history != UNKNOWN
        if marked and subscription.has_consumers and subscription.name not in self._to_repair:
            self._to_repair.add(subscription.name)
            self.spawn(self._repair(subscription))

    async def _repair(self, subscription: TrackedSubscription) -> None:
        await asyncio.sleep(self._context.limits.dispatch.ack_settle_s)
        self._to_repair.discard(subscription.name)
        if subscription.dispatching:
            self.load(subscription)

    async def _load_for_operator(self, name: str) -> TrackedSubscription | None:
        """A subscription that dispatches, with or without consumers; None when it is not tracked."""
        if name not in self._subscriptions and name not in self.index.views():
            return None
        subscription = self._subscriptions.opened(name)
        if not subscription.has_consumers or not subscription.dispatching:
            # While nobody was here the cursor may have been moved past the bridge.
            self.load(subscription)
            if subscription.loading is not None:
                await asyncio.wait({subscription.loading}, timeout=self._limits.cursor_wait_s)
        return subscription

    def forget(self, name: str) -> None:
        """The broker has deleted a subscription."""
        self._book.drop(name)
        self.durability.remove_view(name)

    # -- what is stored

    @property
    def last_rebuild(self) -> RebuildStatus | None:
        """The newest; it may be under way."""
        return next(iter(self.rebuilds.history), None)

    def on_recovered(self) -> None:
        """The store was opened anew."""
        self.harvester.on_recovered()
        self._gaps.on_recovered()
        self.durability.on_recovered()
        self.pump.wake()

    def _on_stored(self) -> None:
        self.durability.ask_for_sync()
        self.pump.wake()

    def _cannot_store(self, error: StoreError) -> None:
        self.durability.cannot_store(error)
        self.pump.wake()

    async def _keep_views(self) -> None:
        """What operators did is on disk when this returns, unless nothing can be stored: the broker has it too."""
        self.durability.persist_views()
        self.pump.wake()
        await self._context.synced()

    # -- chores

    async def _keep_checkpoints(self) -> None:
        """Persist acks, tell the broker's cursor how far the disk is, and ask it where the subscriptions' are."""
        loop = asyncio.get_running_loop()
        polled = loop.time()
        while True:
            await asyncio.sleep(self._limits.checkpoint_interval_s)
            await self.durability.keep_up()
            self._outlook.sample(loop.time())
            if self.index.damage.is_any and (self._healing is None or self._healing.done()):
                self._healing = self.spawn(self._heal())
            if (doubt := self._context.admin.clocks.doubt) is not None:
                self.ownership.give_up(doubt)
            if loop.time() - polled > self._limits.cursor_poll_s:
                polled = loop.time()
                for subscription in self._subscriptions.values():
                    subscription.poll_cursor()
                    if subscription.lost_acks:
                        self._loader.give_lost_acks(subscription)

    async def _heal(self) -> None:
        """Read damaged ranges again, and move the rest out of the files they are in."""
        try:
            await self._gaps.heal()
            while self.index.damage.move_some():
                self.durability.ask_for_sync()
                await asyncio.sleep(self._limits.move_rest_s)
        except StoreError as error:
            self._cannot_store(error)

    async def _look_after_reading(self) -> None:
        """Raises BrokerError."""
        loop = asyncio.get_running_loop()
        checked = loop.time()
        while True:
            await asyncio.sleep(self._limits.checkpoint_interval_s)
            if self._context.store.failure is None:
                await self.harvester.resume()
            if loop.time() - checked > self._intake.read_stall_s:
                checked = loop.time()
                await self.harvester.check()

    async def _let_go(self) -> None:
        """Once nobody is connected to the topic, nothing goes on here, and the broker's cursor says all there is."""
        while True:
            await asyncio.sleep(self._limits.checkpoint_interval_s)
            if self._subscriptions.have_consumers or self._work or not self.durability.all_is_kept:
                continue
            if await self._presence.let_go(self.index.harvested_position):
                break
        log.info("nobody is connected to the topic, letting go of it", topic=self.ownership.topic)
        if not self._over.done():
            self._over.set_result(None)

    async def _maintain(self) -> None:
        await asyncio.sleep(self._limits.checkpoint_interval_s)
        while True:
            await self.maintain()
            await asyncio.sleep(self._limits.maintenance_interval_s)

    async def maintain(self) -> None:
        """Notice subscriptions deleted past the bridge, and give back what nobody needs."""
        index, now_ms = self.index, self._context.now_ms
        # A subscription made while the broker is asked is not in its answer.
        before = index.views()
        attached = self._subscriptions.consumers()
        try:
            stats = await self._outlook.ask_broker(self._context.admin, index.harvested_position)
        except AdminError as error:
            log.warning("cannot read subscriptions", topic=self.ownership.topic, reason=str(error))
            return
        for subscription in self._subscriptions.values():
            subscription.set_delays(self._outlook.delays, now_ms())
        for name in turn_away_unlisted(attached, stats.marks):
            known = self._subscriptions.get(name)
            if known is not None and known.has_consumers:
                known.distrust()
                self.load(known)
        for name, view in index.views().items():
            known = self._subscriptions.get(name)
            if name in stats.consumers or before.get(name) is not view or (known is not None and known.has_consumers):
                continue  # or made anew while the broker was asked: attaching has its cursor read
            log.info("subscription is gone", topic=self.ownership.topic, subscription=name)
            self._on_gone(name)
        await self._outlook.look_ahead(index, now_ms())
        try:
            index.drop_consumed(now_ms())
            if index.has_space_to_reclaim:
                await asyncio.to_thread(index.reclaim)
        except StoreError as error:
            self._cannot_store(error)
        await self.books.look()
