"""One topic partition: ownership, harvester, index, subscriptions, and the pump that moves entries between them."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from bridge import limits
from bridge.ack_repair import repair
from bridge.broker.admin import AdminError, LedgerState, acks_of
from bridge.broker.connection import BrokerConnection, BrokerError
from bridge.broker.fetch import fetch_entries
from bridge.broker.reader import EntryReader, open_reader
from bridge.dispatcher import PositionKey
from bridge.feed import Feed, restart_position
from bridge.gaps import GapFiller
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.harvester import Harvester
from bridge.ownership import HIDDEN_SUBSCRIPTION, WEB_URL_METADATA, Ownership, checkpoint_properties, read_checkpoint
from bridge.protocol.entries import StoredEntry
from bridge.protocol.pulsar_pb2 import ServerError
from bridge.pump import Pump
from bridge.rebuild import SparkRebuild
from bridge.rebuild_status import RebuildStatus, Trigger
from bridge.steering import Steering
from bridge.surroundings import Surroundings
from bridge.tail_buffer import TailBuffer
from bridge.tracked_subscription import TrackedSubscription
from bridge.upkeep import Upkeep
from bridge.warned import Warned
from bridge.watch import Watch
from tracker import Position, StoreError, TopicIndex

log = structlog.get_logger(__name__)

OnEntries = Callable[[list[StoredEntry]], None]
OnClosed = Callable[[str], None]


class TrackedTopic:
    """Runs as one task (`run`) until closed; loses and regains ownership as the broker decides."""

    def __init__(self, topic: str, around: Surroundings) -> None:
        """Nothing starts before `run`."""
        self.topic = topic
        self.role = "opening"
        self.owner: str | None = None
        self.unneeded = False
        """The topic is gone, or nothing on it is tracked any more: what is stored here may go too."""
        self.index: TopicIndex | None = None
        self.harvester: Harvester | None = None
        self.upkeep: Upkeep | None = None
        self.steering: Steering | None = None
        """Both for operators; None while this bridge is not the owner."""
        self.owner_web_url: str | None = None
        """REST of the owner, while that is another bridge."""
        self.reason: str | None = None
        """Why the topic partition is not served; None while it is, here or elsewhere."""
        self.owner_since_ms = 0
        self.subscriptions: dict[str, TrackedSubscription] = {}
        self._around = around
        self._loop = asyncio.get_running_loop()
        self._connection: BrokerConnection | None = None
        self._ownership: Ownership | None = None
        self._tail: TailBuffer | None = None
        self._properties: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._gaps: GapFiller | None = None
        self._healing = False
        self._pump = Pump(self.subscriptions, around.now_ms)
        self.watch = Watch(topic, self.subscriptions)
        self._synced_position: Position | None = None
        self._trouble: str | None = None
        self._kept: tuple[Position, dict[str, int]] | None = None

    # -- life cycle

    async def run(self) -> None:
        """Serve the topic partition whenever the broker lets this bridge own it."""
        attempt = 0
        while not self._closing.is_set():
            started = self._loop.time()
            try:
                await self._serve()
            except (BrokerError, AdminError, StoreError) as error:
                log.warning("topic is not served", topic=self.topic, reason=str(error))
                self.reason = str(error)
                if getattr(error, "code", None) == ServerError.TopicNotFound and not self.has_consumers:
                    self.unneeded = True
                    return
            finally:
                await self._step_down()
            if self._loop.time() - started > limits.RETRY_BACKOFF_S[-1]:
                attempt = 0
            delay = limits.retry_delay_s(attempt)
            attempt += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._closing.wait()

    @property
    def has_consumers(self) -> bool:
        """Whether any client is attached."""
        return any(subscription.has_consumers for subscription in self.subscriptions.values())

    def warnings(self) -> list[Warned]:
        """What an operator should know."""
        return self.watch.warnings(self.index, self._around.now_ms(), self.last_rebuild)

    @property
    def last_rebuild(self) -> RebuildStatus | None:
        """The newest since this bridge took over; it may be under way."""
        return None if self.upkeep is None else next(iter(self.upkeep.rebuilds), None)

    def close(self) -> None:
        """Stop dispatching now and let `run` end."""
        self._closing.set()
        self._stop_subscriptions()

    async def _serve(self) -> None:
        around = self._around
        connection = await around.pool.for_topic(self.topic)
        ownership = Ownership(connection, self.topic, around.advertised_url, around.web_url())
        self._connection, self._ownership = connection, ownership
        await ownership.stand()
        self.role, self.reason = "standby", None
        await self._stand_by_until_elected(ownership)
        state = await around.admin.internal_stats(self.topic)
        self._take_over(connection, state)
        assert self.harvester is not None
        assert self.index is not None
        await self.harvester.start(connection)
        self.role, self.owner, self.owner_since_ms = "owner", around.advertised_url, around.now_ms()
        self.owner_web_url = None
        self._pump.start(self.index)
        log.info("owner of topic", topic=self.topic, harvested_position=str(self.harvester.position))
        for subscription in self.subscriptions.values():
            self._load(subscription)
        await self._until_lost(ownership)

    async def _stand_by_until_elected(self, ownership: Ownership) -> None:
        """Clients that came here go to the owner meanwhile: they look up anew when their consumer is closed."""
        around = self._around
        election = self._loop.create_task(ownership.elected(around.admin))
        try:
            while not (await asyncio.wait({election}, timeout=limits.STANDBY_CHECK_S))[0]:
                self.owner, known = await around.admin.active_consumer(self.topic, HIDDEN_SUBSCRIPTION)
                self.owner_web_url = known.get(WEB_URL_METADATA)
                if self.owner not in (None, around.advertised_url):
                    self.send_consumers_away()
            await election
        finally:
            election.cancel()
            with contextlib.suppress(asyncio.CancelledError, BrokerError, AdminError):
                await election

    async def _until_lost(self, ownership: Ownership) -> None:
        closing = self._loop.create_task(self._closing.wait())
        ends: set[asyncio.Future[Any]] = {closing, ownership.lost}
        polled = checked = self._loop.time()
        maintained = 0.0
        try:
            while not self._closing.is_set() and not ownership.lost.done():
                await asyncio.wait(ends, timeout=limits.CHECKPOINT_INTERVAL_S, return_when=asyncio.FIRST_COMPLETED)
                self._checkpoint()
                if self.harvester is not None and self._around.store.failure is None:
                    await self.harvester.resume()
                if self._loop.time() - polled > limits.CURSOR_POLL_S:
                    polled = self._loop.time()
                    for subscription in self.subscriptions.values():
                        subscription.poll_cursor()
                if self._loop.time() - checked > limits.READ_STALL_S and self.harvester is not None:
                    checked = self._loop.time()
                    await self.harvester.check()
                if self._loop.time() - maintained > limits.MAINTENANCE_INTERVAL_S:
                    maintained = self._loop.time()
                    await self._maintain()
        finally:
            closing.cancel()
        if ownership.lost.done():
            log.warning("no longer owner of topic", topic=self.topic, reason=ownership.lost.result())

    def _take_over(self, connection: BrokerConnection, state: LedgerState) -> None:
        around = self._around
        hidden = state.cursors.get(HIDDEN_SUBSCRIPTION)
        known = {} if hidden is None else hidden.properties
        # A subscription that was deleted takes its checkpoint along: a new one of its name starts afresh.
        self._properties = {key: value for key, value in known.items() if key.partition(":")[2] in state.cursors}
        index = self.index = self._usable_index(state)
        for name in list(index.views()):
            if name not in state.cursors:
                self._remove_view(name)
        assert index.harvested_position is not None
        self._tail = TailBuffer(index.harvested_position)
        # Known to be on disk only once it was synced: what was read from the log may be in this machine's memory.
        self._synced_position, self._kept = None, None
        around.mark_dirty(self)
        self.harvester = Harvester(
            self.topic, index, self._tail, around.now_ms, self._on_stored, self._on_harvester_closed, self._cannot_store
        )
        rebuild = SparkRebuild(self.topic, index, around.spark)
        self._gaps = GapFiller(
            self.topic, connection, index, around.now_ms, self._on_stored, self._cannot_store, rebuild, around.admin
        )
        self.upkeep = Upkeep(
            self.topic, connection, index, around.admin, around.spark, self._gaps, around.now_ms, self._spawn
        )
        self.steering = Steering(self.topic, connection, index, around.admin, self._load_for_operator, self._keep_views)

    def _usable_index(self, state: LedgerState) -> TopicIndex:
        index = self.index or self._open_index()
        if index.harvested_position is not None and index.harvested_position > state.last_confirmed_entry:
            log.warning(
                "the index is of another topic of this name, dropping it",
                topic=self.topic,
                harvested_position=str(index.harvested_position),
                last_confirmed_entry=str(state.last_confirmed_entry),
            )
            self.index = None
            self._around.store.drop_topic(self.topic)
            index = self._open_index()
        if index.harvested_position is None:
            # Nothing is known here: new traffic first, what older entries are needed is read behind it.
            index.start_at(state.last_confirmed_entry)
        return index

    def _open_index(self) -> TopicIndex:
        around = self._around
        return TopicIndex(
            around.store,
            self.topic,
            partition_width_ms=around.partition_width_ms,
            near_term_bytes=around.near_term_bytes,
        )

    async def _step_down(self) -> None:
        self.role, self.owner, self.upkeep, self.steering = "opening", None, None, None
        self._pump.stop()
        self._stop_subscriptions()
        if self.harvester is not None:
            self.harvester.close()
            self.harvester = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        ownership, self._ownership = self._ownership, None
        if ownership is not None:
            await ownership.resign(unsubscribe=self.unneeded)

    def _stop_subscriptions(self) -> None:
        if self.index is not None:
            self._persist_views(self.index)
        for subscription in self.subscriptions.values():
            subscription.stop()

    def _on_harvester_closed(self, reason: str) -> None:
        if self._ownership is not None:
            self._ownership.give_up(f"harvester: {reason}")

    def send_consumers_away(self) -> None:
        """Close every consumer; the clients look up anew."""
        for subscription in self.subscriptions.values():
            for state in list(subscription.dispatcher.consumers):
                state.consumer.close()

    # -- subscriptions

    def attach(self, consumer: TrackedConsumer) -> None:
        """A client's consumer is there."""
        subscription = self._subscription(consumer.subscription)
        first = not subscription.has_consumers
        subscription.add_consumer(consumer)
        if first or not subscription.dispatching:
            # While nobody was here the cursor may have been moved past the bridge.
            self._load(subscription)

    def _subscription(self, name: str) -> TrackedSubscription:
        subscription = self.subscriptions.get(name)
        if subscription is None:
            subscription = self.subscriptions[name] = TrackedSubscription(name, self.topic, self._pump.wake)
        return subscription

    async def _load_for_operator(self, name: str) -> TrackedSubscription | None:
        """A subscription that dispatches, with or without consumers; None when it is not tracked."""
        if self.index is None or (name not in self.subscriptions and name not in self.index.views()):
            return None
        subscription = self._subscription(name)
        if not subscription.has_consumers or not subscription.dispatching:
            # While nobody was here the cursor may have been moved past the bridge.
            self._load(subscription)
            if subscription.loading is not None:
                await asyncio.wait({subscription.loading}, timeout=limits.CURSOR_WAIT_S)
        return subscription

    def detach(self, consumer: TrackedConsumer) -> None:
        """A client's consumer is gone."""
        subscription = self.subscriptions.get(consumer.subscription)
        if subscription is not None:
            subscription.remove_consumer(consumer)

    def sought(self, name: str) -> None:
        """A seek was answered: the cursor stands anew."""
        subscription = self.subscriptions.get(name)
        if subscription is not None:
            subscription.seeking = True
            self._load(subscription)

    def unsubscribed(self, name: str) -> None:
        """The broker deleted the subscription."""
        subscription = self.subscriptions.pop(name, None)
        if subscription is not None:
            subscription.stop()
        self._drop_checkpoint(name)
        if self.index is not None:
            self._remove_view(name)
            if not self.index.views() and not self.has_consumers:
                self.unneeded = True
                self.close()

    def _load(self, subscription: TrackedSubscription) -> None:
        """Read the subscription's cursor from the broker, then start it."""
        if self.role != "owner" or (subscription.loading is not None and not subscription.seeking):
            return
        if subscription.loading is not None:
            subscription.loading.cancel()
        subscription.loading = self._spawn(self._load_cursor(subscription))

    async def _load_cursor(self, subscription: TrackedSubscription) -> None:
        attempt = 0
        while True:
            try:
                await self._load_cursor_once(subscription)
                return
            except StoreError as error:  # a new view could not be stored
                self._cannot_store(error)
            except AdminError as error:
                log.warning("cannot read cursor", topic=self.topic, subscription=subscription.name, reason=str(error))
            await asyncio.sleep(limits.retry_delay_s(attempt))
            attempt += 1

    async def _load_cursor_once(self, subscription: TrackedSubscription) -> None:
        state = await self._around.admin.internal_stats(self.topic)
        cursor = state.cursors.get(subscription.name)
        acks = None if cursor is None else await acks_of(cursor)
        if acks is None:
            subscription.loading = None
            log.warning("subscription has no cursor", topic=self.topic, subscription=subscription.name)
            return
        assert self.index is not None
        assert self._tail is not None
        view = self.index.view(subscription.name)
        subscription.loading = None
        subscription.promptness.owner_since_ms = self.owner_since_ms
        moved = subscription.moved_by(acks, view)
        if moved:
            self._drop_checkpoint(subscription.name)
        subscription.start(self.index, self._tail, acks, self._make_feed, self._fetch, moved, self._around.now_ms())
        if not moved:
            self._spawn(repair(subscription, acks, state.ledger_sizes))
        assert self._gaps is not None
        assert subscription.view is not None
        if self._gaps.find(subscription.view) is not None:
            self._spawn(self._gaps.fill(subscription.view, Trigger.seek if moved else Trigger.ownership))

    def _make_feed(self, subscription: TrackedSubscription, mark_delete_position: Position) -> Feed:
        assert self._tail is not None
        assert subscription.view is not None
        start = restart_position(read_checkpoint(self._properties, subscription.name), mark_delete_position)
        return Feed(start, subscription.view.acks, self._tail, self._open_reader, self._pump.wake)

    def _drop_checkpoint(self, name: str) -> None:
        for key in (f"ledger:{name}", f"entry:{name}"):
            self._properties.pop(key, None)

    async def _open_reader(
        self, after: Position, on_entries: OnEntries, on_closed: Callable[[str], None]
    ) -> EntryReader:
        assert self._connection is not None
        return await open_reader(self._connection, self.topic, after, on_entries, on_closed)

    async def _fetch(self, positions: Sequence[PositionKey]) -> dict[PositionKey, StoredEntry]:
        assert self._connection is not None
        return await fetch_entries(self._connection, self.topic, positions)

    # -- harvest and persistence

    def _on_stored(self) -> None:
        self._around.mark_dirty(self)
        self._pump.wake()

    def harvested_unsynced(self) -> Position | None:
        """The position that a sync starting now makes durable."""
        return None if self.index is None else self.index.harvested_position

    def on_synced(self, position: Position | None) -> None:
        """What was written up to `position` is on disk."""
        self._trouble = None
        known = None if self.index is None else self.index.harvested_position
        if position is not None and known is not None and position <= known:  # else of an index dropped meanwhile
            self._synced_position = position

    def on_recovered(self) -> None:
        """The store was opened anew: what was not synced before may be gone from the index."""
        self._synced_position = None
        if self.harvester is not None:
            self.harvester.on_recovered()
        if self._gaps is not None:
            self._gaps.on_recovered()
        self._around.mark_dirty(self)
        self._pump.wake()

    def _cannot_store(self, error: StoreError) -> None:
        """Go on without: what is not stored is in the broker. The sync loop looks after the store as a whole."""
        if str(error) != self._trouble and self._around.store.failure is None:
            log.warning("cannot use the index", topic=self.topic, reason=str(error))
        self._trouble = str(error)
        self._around.mark_dirty(self)
        self._pump.wake()

    def _persist_views(self, index: TopicIndex) -> None:
        try:
            index.persist_views()
            self._around.mark_dirty(self)
        except StoreError as error:  # the broker has the acks too
            self._cannot_store(error)

    async def _keep_views(self) -> None:
        """What operators did is on disk when this returns, unless nothing can be stored: the broker has it too."""
        if self.index is not None:
            self._persist_views(self.index)
            self._pump.wake()
            await self._around.synced()

    def _remove_view(self, name: str) -> None:
        assert self.index is not None
        try:
            self.index.remove_view(name)
            self._around.mark_dirty(self)
        except StoreError as error:  # maintenance finds it again
            self._cannot_store(error)

    def _checkpoint(self) -> None:
        """Persist acks, drop what everybody has, and tell the broker's cursor how far the disk is."""
        index, ownership = self.index, self._ownership
        if index is None or ownership is None or self.role != "owner":
            return
        self._persist_views(index)
        self.watch.sample(self._loop.time())
        if index.damage.is_any and not self._healing and self._gaps is not None:
            self._healing = True
            self._spawn(self._heal(index, self._gaps))
        views = index.views()
        if self._synced_position is None or not all(view.covered for view in views.values()):
            return
        checkpoints = {s.name: s.feed.checkpoint() for s in self.subscriptions.values() if s.feed is not None}
        self._properties.update(checkpoint_properties(checkpoints))
        keep = (self._synced_position, dict(self._properties))
        if keep != self._kept and self._synced_position.entry >= 0:
            with contextlib.suppress(BrokerError):
                ownership.keep(*keep)
                self._kept = keep

    async def _heal(self, index: TopicIndex, gaps: GapFiller) -> None:
        """Read damaged ranges again, and move the rest out of the files they are in."""
        try:
            await gaps.heal()
            while index is self.index and index.damage.move_some():
                self._around.mark_dirty(self)
                await asyncio.sleep(limits.MOVE_REST_S)
        except StoreError as error:
            self._cannot_store(error)
        finally:
            self._healing = False

    async def _maintain(self) -> None:
        """Notice subscriptions deleted past the bridge, and give back what nobody needs."""
        index = self.index
        # A subscription made while the broker is asked is not in its answer.
        before = {} if index is None else index.views()
        try:
            stats = await self.watch.ask_broker(self._around.admin, None if index is None else index.harvested_position)
        except AdminError as error:
            log.warning("cannot read subscriptions", topic=self.topic, reason=str(error))
            return
        names = stats.consumers
        if index is None or self.role != "owner":
            return
        for name in [name for name, view in index.views().items() if name not in names and before.get(name) is view]:
            log.info("subscription is gone", topic=self.topic, subscription=name)
            self.unsubscribed(name)
        try:
            index.drop_consumed(self._around.now_ms())
            if index.has_space_to_reclaim:
                await asyncio.to_thread(index.reclaim)
        except StoreError as error:
            self._cannot_store(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
