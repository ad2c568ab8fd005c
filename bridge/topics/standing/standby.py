"""A bridge that is ready to take a topic partition over, while another one owns it.

It harvests as the owner does, into its own index, and follows the subscriptions' cursors; what the index lacks of what
they need it reads too. So whoever takes over reads the cursors once more, and a few entries. Nothing here tells the
broker anything: harvested position and checkpoints are the owner's.
"""

import asyncio
import contextlib

import structlog

from bridge.answers.values import Trigger
from bridge.broker.admin import AdminError
from bridge.broker.connection import BrokerConnection, BrokerError
from bridge.intake.harvester import Harvester
from bridge.intake.tail_buffer import TailBuffer
from bridge.ledgers.cursor_history import UNKNOWN, CursorReading, history_of, identity_of
from bridge.ledgers.internal_stats import CursorState, LedgerState
from bridge.net.backoff import Backoff
from bridge.net.tasks import Tasks
from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from bridge.refill.gaps import GapFiller
from bridge.refill.snapshots.restoring import Restore
from bridge.refill.spark_rebuild import SparkRebuild
from bridge.topics.context import BridgeContext
from bridge.topics.kept_index import KeptIndex
from bridge.topics.known_policies import KnownPolicies
from bridge.topics.pass_through import is_refusal
from bridge.topics.transactions import acks_of
from tracker import Position, StoreError, SubscriptionView, TopicIndex

log = structlog.get_logger(__name__)

EXPECTED = (BrokerError, AdminError, StoreError, ValueError)
"""What may go wrong without anything being wrong here."""


class Standby:
    """One per candidacy: `run` for as long as that lasts, `want` as it is chosen to be ready or not."""

    def __init__(
        self,
        topic: str,
        connection: BrokerConnection,
        context: BridgeContext,
        kept: KeptIndex,
        policies: KnownPolicies,
    ) -> None:
        """`kept`: has the index to harvest into; `policies`: kept for the time as owner."""
        self._policies = policies
        self._topic = topic
        self._connection = connection
        self._context = context
        self._kept = kept
        self._pauses = Backoff(context.randbits, (context.limits.topics.standby_check_s,))
        self._wanted = asyncio.Event()
        self._ready: _Ready | None = None
        self._empty_at: Position | None = None

    def want(self, wanted: bool) -> None:
        """Whether this bridge is one of those that are to be ready."""
        if wanted:
            self._wanted.set()
        else:
            self._wanted.clear()
            self._empty_at = None
            self._end("another bridge stands by")

    @property
    def position(self) -> Position | None:
        """What was published up to there is in the index, as far as any subscription needs it; None as long as not."""
        return self._empty_at if self._ready is None else self._ready.position

    def on_recovered(self) -> None:
        """The store was opened anew: what was written last may be gone."""
        self._end("the store was opened anew")

    async def run(self) -> None:
        """Until cancelled. Raises what nobody thought of."""
        backoff = self._context.backoff()
        while True:
            await self._wanted.wait()
            try:
                await self._be_ready(backoff)
            except EXPECTED as error:
                log.debug("not ready to take the topic over", topic=self._topic, reason=str(error))
                if is_refusal(error):  # policies leave no place: others need it more
                    await asyncio.sleep(self._context.limits.topics.refused_again_s)
            await asyncio.sleep(backoff.next_s())

    async def _be_ready(self, backoff: Backoff) -> None:
        state = await self._context.admin.internal_stats(self._topic)
        identity = _identity(state)
        if identity == UNKNOWN:
            await self._until_named(state)
            return
        self._empty_at = None
        await self._kept.look_for_snapshot(identity, state)
        index = self._kept.to_follow_with(state)
        index.identify(identity)
        ready = self._ready = _Ready(self._topic, self._connection, self._context, index, identity, self._policies)
        if self._kept.restore is not None:
            ready.begin_with(self._kept.restore)
        try:
            await ready.run(state)
            backoff.reset()
        finally:
            self._ready = None
            await ready.end()

    async def _until_named(self, state: LedgerState) -> None:
        """Nothing would tell the topic from another one of its name yet. Owners name it with its first entry."""
        if any(state.ledger_sizes.values()):
            raise AdminError("its owner has not named it yet")
        self._empty_at = state.last_confirmed_entry
        await asyncio.sleep(self._pauses.next_s())

    def _end(self, reason: str) -> None:
        if self._ready is not None:
            self._ready.fail(StoreError(reason))


class _Ready:
    """From one look at the topic until it has to be looked at anew; also what the sync loop makes durable."""

    def __init__(
        self,
        topic: str,
        connection: BrokerConnection,
        context: BridgeContext,
        index: TopicIndex,
        identity: int,
        policies: KnownPolicies,
    ) -> None:
        """`identity`: what the broker calls the topic."""
        self._policies = policies
        self._topic = topic
        self._connection = connection
        self._context = context
        self._index = index
        self._identity = identity
        self._tasks = Tasks(self.fail)
        self._filling: dict[str, asyncio.Task[None]] = {}
        self._healing: asyncio.Task[None] | None = None
        self._restoring: asyncio.Task[None] | None = None
        self._followed = False  # the cursors, once at least
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        harvested = index.harvested_position
        assert harvested is not None
        limits = context.limits
        self._harvester = Harvester(
            topic,
            index,
            TailBuffer(harvested, 0, 0),  # what is immediate is of no use here
            lambda: None,
            self.fail,
            self.fail,
            context.backoff(),
            limits.intake,
        )
        self._gaps = GapFiller(
            topic,
            connection,
            index,
            context.now_ms,
            lambda: None,
            self.fail,
            SparkRebuild(topic, index, context.spark, limits.refill),
            context.admin,
            lambda reading: reading,
            context.spark.read_from,
            limits.refill,
        )

    def begin_with(self, restore: Restore) -> None:
        """Load a snapshot first."""
        self._restoring = self._tasks.spawn(self._gaps.begin_with(restore))

    async def run(self, state: LedgerState) -> None:
        """Until something ends it, which is raised."""
        pauses = Backoff(self._context.randbits, (self._context.limits.topics.standby_follow_s,))
        before = self._index.views()
        await self._harvester.start(self._connection)
        log.info("standing by, reading the topic", topic=self._topic, harvested_position=str(self._harvester.position))
        while True:
            await self._follow(state, before)
            self._followed = True
            await self._pass_acked()
            await self._look_at_policies()
            await asyncio.wait({self._over}, timeout=pauses.next_s())
            if self._over.done():
                self._over.result()
            await self._harvester.check()
            # A subscription made while the broker is asked is not in its answer.
            before = self._index.views()
            state = await self._context.admin.internal_stats(self._topic)

    async def _pass_acked(self) -> None:
        """What has gone out and is acked is not looked through when this bridge is the owner."""
        for view in self._index.views().values():
            while self._index.pass_acked(view, self._context.now_ms()):  # noqa: ASYNC110 in slices
                await asyncio.sleep(0)

    async def _look_at_policies(self) -> None:
        names = self._index.views()
        fresh_s = self._context.limits.topics.policies_fresh_s
        if any(self._policies.age_s(name) > fresh_s / 2 for name in names):
            await self._policies.look(names)

    @property
    def position(self) -> Position | None:
        """See `Standby.position`."""
        loading = self._restoring is not None and not self._restoring.done()
        lacks = loading or self._index.damage.is_any or not all(view.covered for view in self._index.views().values())
        return None if lacks or not self._followed else self._harvester.position

    async def end(self) -> None:
        """Stop reading; what is known is in the index."""
        self._harvester.close()
        await self._tasks.end()
        with contextlib.suppress(StoreError):
            self._index.persist_views()

    def fail(self, error: Exception) -> None:
        """Begin anew, or end by what nobody thought of."""
        if not self._over.done():
            self._over.set_exception(error)
            self._over.exception()  # seen, also when nobody waits any more

    # -- what the sync loop makes durable

    def harvested_unsynced(self) -> Position | None:
        """Nobody is told how far the disk is."""
        return None

    def on_synced(self, position: Position | None) -> None:
        """Nor when."""

    # -- cursors

    async def _follow(self, state: LedgerState, before: dict[str, SubscriptionView]) -> None:
        """Take over what the broker says of the cursors. Raises AdminError, StoreError, ValueError."""
        if _identity(state) != self._identity:
            raise AdminError("it is another topic of this name by now")
        index, context = self._index, self._context
        for name in before:
            if name not in state.subscriptions:
                index.remove_view(name)
        for name, cursor in state.cursors.items():
            # Only the cursors of tracked subscriptions bear a mark.
            if name in before or history_of(cursor.properties) != UNKNOWN:
                await self._follow_cursor(name, cursor, state)
        if index.damage.is_any and (self._healing is None or self._healing.done()):
            self._healing = self._tasks.spawn(self._gaps.heal())
        index.persist_views()
        index.drop_consumed(context.now_ms())
        if index.has_space_to_reclaim:
            await asyncio.to_thread(index.reclaim)
        context.mark_dirty(self)

    async def _follow_cursor(self, name: str, cursor: CursorState, state: LedgerState) -> None:
        acks = await acks_of(cursor, self._context.limits.dispatch.ack_ranges_slice)
        view = self._index.view(name)
        CursorReading.of(view, acks, history_of(cursor.properties), state).give(view)
        known = self._filling.get(name)
        if self._gaps.find(view) is not None and (known is None or known.done()):
            self._filling[name] = self._tasks.spawn(self._gaps.fill(view, Trigger.ownership))


def _identity(state: LedgerState) -> int:
    hidden = state.cursors.get(HIDDEN_SUBSCRIPTION)
    return UNKNOWN if hidden is None else identity_of(hidden.properties)
