"""One topic partition: ownership, harvester, index, subscriptions, and the pump that moves entries between them."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import structlog

from bridge import limits
from bridge.broker.admin import AdminError
from bridge.broker.candidates import Candidates
from bridge.broker.connection import BrokerConnection, BrokerError
from bridge.dispatch.admission import turn_away_unlisted
from bridge.dispatch.pump import Pump
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.intake.harvester import Harvester
from bridge.intake.tail_buffer import TailBuffer
from bridge.ledgers import cursor_history
from bridge.ledgers.internal_stats import LedgerState
from bridge.net.backoff import Backoff
from bridge.operate.steering import Steering
from bridge.operate.warnings import Severity, Warned
from bridge.operate.watch import Watch
from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from bridge.protocol.pulsar_pb2 import ServerError
from bridge.refill.gaps import GapFiller
from bridge.refill.rebuild import SparkRebuild
from bridge.refill.rebuild_status import RebuildStatus
from bridge.refill.upkeep import Upkeep
from bridge.topics.checkpoints import Checkpoint, CheckpointBook
from bridge.topics.cursor_loader import CursorLoader, stop_loading
from bridge.topics.ownership import Ownership
from bridge.topics.pass_through import PassThrough, is_refusal, stand, try_to_read
from bridge.topics.presence import Presence
from bridge.topics.surroundings import Surroundings
from tracker import Position, StoreError, TopicIndex

log = structlog.get_logger(__name__)


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
        self._book = CheckpointBook({}, (), around.randbits)
        self._loader: CursorLoader | None = None  # while this bridge is the owner
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._gaps: GapFiller | None = None
        self._healing = False
        self._pump = Pump(self.subscriptions, around.now_ms, around.now_ns)
        self.watch = Watch(topic, self.subscriptions)
        self.presence = Presence(topic, around.admin)
        self.passing = PassThrough(topic, self.subscriptions, around, self._give_up)
        self._synced_position: Position | None = None
        self._trouble: str | None = None
        self._kept: tuple[Position, dict[str, int]] | None = None

    # -- life cycle

    async def run(self) -> None:
        """Serve the topic partition whenever the broker lets this bridge own it."""
        backoff = Backoff(self._around.randbits)
        refused: Exception | None
        while True:
            await self.presence.rest(lambda: [] if self.index is None else self.index.views())
            if self._closing.is_set():
                return
            started, refused = self._loop.time(), None
            try:
                await self._serve()
            except (BrokerError, AdminError, StoreError) as error:
                if not self._closing.is_set() and not self.presence.resting:
                    self._note_failure(str(error))
                if getattr(error, "code", None) == ServerError.TopicNotFound and not self.has_consumers:
                    self.unneeded = True
                    return
                refused = error
            except Exception as error:  # whatever it is: begin again rather than leave the topic alone
                log.critical("a topic failed, it is served anew", topic=self.topic, exc_info=error)
                self.reason = f"failed: {error!r}"
            finally:
                await self._step_down()
            await self._pass_through(refused)
            if self._loop.time() - started > limits.RETRY_BACKOFF_S[-1]:
                backoff.reset()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff.next_s()):
                    await self._closing.wait()

    def _note_failure(self, reason: str | None) -> None:
        """Say once why the topic is not served; with None it is, here or elsewhere."""
        if reason not in (None, self.reason, self.passing.reason):  # the last was said when it began
            log.error("topic is not served", topic=self.topic, reason=reason)
        self.reason = reason

    async def _pass_through(self, refused: Exception | None) -> None:
        """Where the broker refuses the bridge its place, let it dispatch; unless another bridge has its place."""
        if self._closing.is_set() or not is_refusal(refused):
            return
        if not self.has_consumers and self.index is None:
            self.unneeded = True
            self.close()
        elif (elsewhere := await self.passing.begin_unless_owned(str(refused))) is not None:
            self.role, (self.owner, self.owner_web_url) = "standby", elsewhere
            self.send_consumers_away()
        elif self.passing.reason is not None:
            self.role = "passed-through"

    @property
    def has_consumers(self) -> bool:
        """Whether any client is attached."""
        return any(subscription.has_consumers for subscription in self.subscriptions.values())

    @property
    def is_served(self) -> bool:
        """Whether it is dispatched: here, by a bridge that this one knows of, by the broker; or nobody is there."""
        return self.role in ("owner", "idle", "passed-through") or self.owner not in (None, self._around.advertised_url)

    @property
    def is_known(self) -> bool:
        """Whether what is known here is how it stands: this bridge owns it, or did when everybody had left."""
        return self.role in ("owner", "idle")

    def warnings(self) -> list[Warned]:
        """What an operator should know; of a topic that another bridge owns, that one tells."""
        if not self.is_known:
            passed, reason = self.passing.warnings(), self.reason
            if passed or reason is None:
                return passed
            return [Warned(Severity.critical, "not-served", f"not served: {reason}")]
        return self.watch.warnings(self.index, self._around.now_ms(), self.last_rebuild)

    @property
    def last_rebuild(self) -> RebuildStatus | None:
        """The newest since this bridge took over; it may be under way."""
        return None if self.upkeep is None else next(iter(self.upkeep.rebuilds), None)

    def close(self) -> None:
        """Stop dispatching now and let `run` end."""
        self._closing.set()
        self.presence.want()
        self._stop_subscriptions()
        if self.role == "standby" and self._ownership is not None:
            self._ownership.give_up("the bridge stops")

    async def _serve(self) -> None:
        around = self._around
        self.passing.hold()
        connection = await around.pool.for_topic(self.topic)
        stated = around.peers.metadata(self.topic, around.advertised_url, around.web_url(), around.now_ms())
        ownership = Ownership(connection, self.topic, around.advertised_url, stated)
        self._connection, self._ownership = connection, ownership
        if self.passing.reason is not None:
            await try_to_read(connection, self.topic)
        await stand(ownership, around.admin)
        self.role = "standby"
        resting = self._loop.create_task(self.presence.let_go_when(lambda: not self.has_consumers, self._give_up))
        try:
            await ownership.elected(around.admin, self._stand_by)
        finally:
            resting.cancel()
        self.passing.end()
        state = await around.admin.internal_stats(self.topic)
        self._take_over(connection, state)
        assert self.harvester is not None
        assert self.index is not None
        await self.harvester.start(connection)
        self.role, self.owner, self.owner_since_ms = "owner", around.advertised_url, around.now_ms()
        self.owner_web_url = self.reason = None
        self.presence.served.set()
        self._pump.start(self.index)
        log.info("owner of topic", topic=self.topic, harvested_position=str(self.harvester.position))
        for subscription in self.subscriptions.values():
            self._load(subscription)
        await self._until_lost(ownership)

    def _stand_by(self, known: Candidates, settled: bool) -> None:
        """Clients that came here go to the owner meanwhile: they look up anew when their consumer is closed."""
        around = self._around
        around.peers.note_own_role(around.advertised_url, known)
        self.owner, self.owner_web_url, doubt = around.peers.judge(self.topic, around.advertised_url, known, settled)
        if settled or self.owner is not None:
            self._note_failure(doubt)
        if self.owner not in (None, around.advertised_url):
            self.presence.served.set()
            self.send_consumers_away()

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
                if self._may_rest and self.index and await self.presence.let_go(self.index.harvested_position):
                    log.info("nobody is connected to the topic, letting go of it", topic=self.topic)
                    return
        finally:
            closing.cancel()
        if ownership.lost.done():
            log.warning("no longer owner of topic", topic=self.topic, reason=ownership.lost.result())

    @property
    def _may_rest(self) -> bool:
        """Whether nothing is going on here, and the broker's cursor says all that was read."""
        index, kept = self.index, self._kept
        if index is None or self.has_consumers or self._tasks:
            return False
        if kept is None:
            return not index.entries
        # Whoever deletes the topic meanwhile and makes it anew is to find another one.
        return kept[0] == index.harvested_position and index.identity == self._book.identity

    def _take_over(self, connection: BrokerConnection, state: LedgerState) -> None:
        around = self._around
        hidden = state.cursors.get(HIDDEN_SUBSCRIPTION)
        told = {} if hidden is None else hidden.properties
        book = self._book = CheckpointBook(told, state.subscriptions, around.randbits)
        index = self.index = self._usable_index(state)
        gone = [name for name in index.views() if name not in state.subscriptions]
        for name in gone:
            self._remove_view(name)
        if gone and not index.views() and book.is_empty and not self.has_consumers:
            self.unneeded = True  # deleted while nobody looked
            self.close()
        assert index.harvested_position is not None
        tail = TailBuffer(index.harvested_position)
        # Known to be on disk only once it was synced: what was read from the log may be in this machine's memory.
        self._synced_position, self._kept = None, None
        around.mark_dirty(self)
        self.harvester = Harvester(
            self.topic,
            index,
            tail,
            self._on_stored,
            self._on_harvester_closed,
            self._cannot_store,
            around.randbits,
        )
        rebuild = SparkRebuild(self.topic, index, around.spark)
        gaps = self._gaps = GapFiller(
            self.topic,
            connection,
            index,
            around.now_ms,
            self._on_stored,
            self._cannot_store,
            rebuild,
            around.admin,
            self.passing.reading,
        )
        self.upkeep = Upkeep(
            self.topic, connection, index, around.admin, around.spark, gaps, around.now_ms, self._spawn
        )
        self._loader = CursorLoader(
            self.topic,
            around,
            connection,
            index,
            tail,
            gaps,
            book,
            self.passing,
            self._spawn,
            self._cannot_store,
            self._pump.wake,
        )
        self.steering = Steering(self.topic, connection, index, around.admin, self._load_for_operator, self._keep_views)

    def _usable_index(self, state: LedgerState) -> TopicIndex:
        index = self.index or self._open_index()
        if cursor_history.is_of_another(index, self._book.told_identity, state.last_confirmed_entry):
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
        elif state.entries_between(index.harvested_position, state.last_confirmed_entry) > limits.CATCH_UP_ENTRIES:
            # Known until some time ago: the same, and what came since is read behind new traffic too.
            index.skip_to(state.last_confirmed_entry)
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
        if self.presence.resting:
            self.role = "standby" if self.role == "standby" else "idle"
        else:
            self.role = "opening" if self.passing.reason is None else "passed-through"
        self.owner, self.owner_web_url, self.upkeep, self.steering, self._loader = None, None, None, None, None
        self._pump.stop()
        self.watch.forget()
        self._stop_subscriptions()
        if self.harvester is not None:
            self.harvester.close()
            self.harvester = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._healing = False  # a task that is cancelled before it ran does not say so
        ownership, self._ownership = self._ownership, None
        if ownership is not None:
            await ownership.resign(unsubscribe=self.unneeded)

    def _stop_subscriptions(self) -> None:
        if self.index is not None:
            self._persist_views(self.index)
        for subscription in self.subscriptions.values():
            subscription.stop()

    def _on_harvester_closed(self, reason: str) -> None:
        self._give_up(f"harvester: {reason}")

    def send_consumers_away(self) -> None:
        """Close every consumer; the clients look up anew."""
        for subscription in self.subscriptions.values():
            for state in list(subscription.dispatcher.consumers):
                state.consumer.close()

    # -- subscriptions

    def attach(self, consumer: TrackedConsumer) -> None:
        """A client's consumer is there."""
        self.presence.want()
        subscription = self._subscription(consumer.subscription)
        if subscription.in_doubt or not subscription.has_consumers:
            # While nobody was here the cursor may have been moved past the bridge.
            self._distrust(subscription)
        subscription.add_consumer(consumer)
        self.passing.attached(subscription)
        if not subscription.dispatching:
            self._load(subscription)

    def _distrust(self, subscription: TrackedSubscription) -> None:
        """The cursor is to be read anew; what is being read of it may be of before."""
        subscription.stale, subscription.in_doubt = True, False
        stop_loading(subscription)

    def left_early(self, name: str) -> None:
        """A client's consumer was there so shortly that it took no part; what its subscription has pending counts."""
        if name not in self.subscriptions:
            self.presence.want()
            self._load(self._subscription(name))

    def _subscription(self, name: str) -> TrackedSubscription:
        subscription = self.subscriptions.get(name)
        if subscription is None:
            subscription = self.subscriptions[name] = TrackedSubscription(
                name, self.topic, self._pump.wake, self._around.randbits
            )
            subscription.delays = self.watch.delays
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
        self.presence.want()
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
        """The broker deleted the subscription, and may have made it anew since."""
        subscription = self.subscriptions.get(name)
        if subscription is not None:
            subscription.stop()
        self._book.drop(name)
        if self.index is not None:
            self._remove_view(name)
        if subscription is not None and subscription.has_consumers:
            self._load(subscription)
            return
        self.subscriptions.pop(name, None)
        if self.index is not None and not self.index.views() and not self.has_consumers:
            self.unneeded = True
            self.close()

    def _load(self, subscription: TrackedSubscription) -> None:
        """Read the subscription's cursor from the broker, then start it."""
        if self.role == "owner" and self._loader is not None:
            self._loader.load(subscription)

    def _give_up(self, reason: str) -> None:
        if self._ownership is not None:
            self._ownership.give_up(reason)

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
        for subscription in self.subscriptions.values():
            self._take_checkpoint(subscription)
        keep = (self._synced_position, self._book.properties)
        if self._kept is not None:
            # Only what the broker has been told before: an index that it cannot confirm is not believed.
            self._identify(index)
        if keep != self._kept and self._synced_position.entry >= 0:
            with contextlib.suppress(BrokerError):
                ownership.keep(*keep)
                self._kept = keep

    def _identify(self, index: TopicIndex) -> None:
        try:
            index.identify(self._book.identity)
        except StoreError as error:
            self._cannot_store(error)

    def _take_checkpoint(self, subscription: TrackedSubscription) -> None:
        view, feed = subscription.view, subscription.feed
        if view is None or feed is None or subscription.seeking:
            return
        self._book.take(subscription.name, Checkpoint.of(feed.checkpoint(), view.history, view.acks))

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
        attached = [state.consumer for one in self.subscriptions.values() for state in one.dispatcher.consumers]
        try:
            stats = await self.watch.ask_broker(self._around.admin, None if index is None else index.harvested_position)
        except AdminError as error:
            log.warning("cannot read subscriptions", topic=self.topic, reason=str(error))
            return
        names = stats.consumers
        for subscription in self.subscriptions.values():
            subscription.set_delays(self.watch.delays, self._around.now_ms())
        for name in turn_away_unlisted(attached, stats.marks):
            known = self.subscriptions.get(name)
            if known is not None and known.has_consumers:
                self._distrust(known)
                self._load(known)
        if index is None or self.role != "owner":
            return
        for name in [name for name, view in index.views().items() if name not in names and before.get(name) is view]:
            known = self.subscriptions.get(name)
            if known is not None and known.has_consumers:
                continue  # made anew while the broker was asked: attaching has its cursor read
            log.info("subscription is gone", topic=self.topic, subscription=name)
            self.unsubscribed(name)
        await self.watch.look_ahead(index, self._around.now_ms())
        try:
            index.drop_consumed(self._around.now_ms())
            if index.has_space_to_reclaim:
                await asyncio.to_thread(index.reclaim)
        except StoreError as error:
            self._cannot_store(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """A task that ends by an error nobody expected would leave something undone for ever: begin again."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._give_up(f"failed: {error!r}")
            log.critical("a task of the topic failed, it is served anew", topic=self.topic, exc_info=error)
