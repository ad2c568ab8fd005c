"""Gaps: what a subscription needs and the index does not have.

They open when a topic partition is taken over without its index, when a cursor is set back, when a new subscription
starts before what the index covers, and when files of the index turn out to be damaged. They are filled by reading the
topic again, beside live delivery.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable

import structlog

from bridge.answers.values import Engine, Trigger
from bridge.broker.admin import AdminClient, AdminError
from bridge.broker.connection import BrokerConnection, BrokerError
from bridge.intake.harvester import new_entries
from bridge.ledgers.bookies.read_from import ReadFrom
from bridge.limits import RefillLimits
from bridge.net.backoff import Backoff
from bridge.protocol.entries import StoredEntry
from bridge.refill.audit import Audit
from bridge.refill.comparison import Comparison, TopicSide, fingerprints_of
from bridge.refill.rebuild_status import Proof, RebuildStatus
from bridge.refill.snapshots.restoring import Restore
from bridge.refill.source import TopicSource
from bridge.refill.spark_job import JobError
from bridge.refill.spark_rebuild import SparkRebuild
from tracker import Position, StoreError, SubscriptionView, TopicIndex
from tracker.audit import Scope, add_up
from tracker.care.damage import DamagedRange

log = structlog.get_logger(__name__)


class GapFiller:
    """One per time as owner of a topic partition."""

    def __init__(
        self,
        topic: str,
        connection: BrokerConnection,
        index: TopicIndex,
        now_ms: Callable[[], int],
        on_filled: Callable[[], None],
        on_failed: Callable[[StoreError], None],
        rebuild: SparkRebuild,
        admin: AdminClient,
        reading: Callable[[Awaitable[None]], Awaitable[None]],
        read_from: ReadFrom,
        limits: RefillLimits,
    ) -> None:
        """`on_filled`: entries came into the index; `on_failed`: they could not be stored, and are read again later.

        `rebuild`: what fills large gaps; `reading`: waits for a reader, and takes note of why there is none.
        """
        self._topic = topic
        self._source = TopicSource(topic, connection, admin, read_from, limits)
        self._index = index
        self._limits = limits
        self._now_ms = now_ms
        self._on_filled = on_filled
        self._on_failed = on_failed
        self._rebuild = rebuild
        self._admin = admin
        self._wait_for_reading = reading
        self._comparison = Comparison(topic, connection, index, limits)
        self.statuses: deque[RebuildStatus] = deque(maxlen=limits.rebuilds_kept)
        """Of the last gaps, newest first; the newest may be under way."""
        self._reading: asyncio.Task[None] | None = None
        self._void = False
        self._one_at_a_time = asyncio.Lock()
        self._backoff = Backoff(connection.randbits, (limits.gap_retry_s,))

    def find(self, view: SubscriptionView) -> tuple[Position, Position] | None:
        """The positions (after, to] a view misses; None when it misses nothing, which is noted in the view."""
        floor = self._index.floor
        if not view.covered and floor is not None and view.mark_delete_position < floor:
            return view.mark_delete_position, floor
        view.covered = True
        return None

    async def fill(self, view: SubscriptionView, trigger: Trigger) -> None:
        """Until the view misses nothing; tried again as long as the broker does not give the entries."""
        async with self._one_at_a_time:
            while (gap := self.find(view)) is not None:
                after, to = gap
                log.info("filling a gap", topic=self._topic, subscription=view.name, after=str(after), to=str(to))
                status = RebuildStatus(trigger, after, to, self._now_ms())
                self.statuses.appendleft(status)
                filled = await self._fill(status, Engine.auto)
                # The cursor may have been set further back meanwhile.
                view.covered = filled and view.mark_delete_position >= after
                if not filled:
                    await asyncio.sleep(self._backoff.next_s())
        self._on_filled()

    async def read_all_again(self, status: RebuildStatus, engine: Engine, audit: Audit) -> None:
        """Bring in whatever is missing in a range, gap or not: an operator wants it.

        An index that holds something is not overwritten by a job's files: the job says where it differs from the
        topic, and that is read again here.
        """
        async with self._one_at_a_time:
            await self._fill(status, engine, audit if self._index.entries else None)
        self._on_filled()

    async def begin_with(self, restore: Restore) -> None:
        """Have the index hold what a snapshot has, before anybody looks for what is missing."""
        async with self._one_at_a_time:
            try:
                await restore.run(self._on_filled)
            except StoreError as error:
                self._on_failed(error)
        self._on_filled()

    async def heal(self) -> None:
        """Read what was left out, and again what the index has found damaged, until nothing is missing."""
        async with self._one_at_a_time:
            told = None
            while ranges := self._index.damage.missing:
                # Every time partition spans nearly all positions: one pass fills them all. What was left out is filled
                # piece by piece: a bridge that is owner for a short time brings the next one further.
                damaged = bool(self._index.damage.ranges)
                some = ranges if damaged else ranges[:1]
                lowest = min(known.lowest for known in some)
                highest = max(known.highest for known in some)
                if told != highest:
                    self._tell(lowest, highest)
                    told = highest
                # Where little is known of what is missing, the range may reach beyond the last entry.
                to = min(highest, self._index.harvested_position or highest)
                most = None if damaged else self._limits.heal_piece
                reached = await self._read_some(Position(lowest.ledger, lowest.entry - 1), to, most)
                if reached is None or not self._note_healed(ranges, lowest, highest if reached >= to else reached):
                    await asyncio.sleep(self._backoff.next_s())
        self._on_filled()

    def _note_healed(self, ranges: list[DamagedRange], lowest: Position, upto: Position) -> bool:
        """What was missing, as of `ranges`, from one position up to another is there; False where it may not be."""
        damage = self._index.damage
        damaged = bool(damage.ranges)
        all_of_it = all(lowest <= known.lowest and known.highest <= upto for known in ranges)
        if not all_of_it or ranges != damage.missing:
            return not damaged and self._note(lambda: damage.left_out_filled(lowest, upto))
        if not self._note(damage.healed):
            return False
        what = "what was damaged in the index is there again" if damaged else "what was left out is read"
        log.info(what, topic=self._topic)
        return True

    def _tell(self, lowest: Position, highest: Position) -> None:
        places = {"topic": self._topic, "lowest": str(lowest), "highest": str(highest)}
        if damaged := self._index.damage.ranges:
            entries = sum(known.entries for known in damaged)
            what = "reading again what is damaged in the index"
            log.warning(what, **places, time_partitions=len(damaged), entries=entries)
        else:
            log.info("reading what was left out, behind live traffic", **places)

    def on_recovered(self) -> None:
        """The store was opened anew: what was filled in may be gone, so begin again."""
        self._begin_again()

    def _begin_again(self) -> None:
        self._void = True
        if self._reading is not None:
            self._reading.cancel()

    async def _fill(self, status: RebuildStatus, engine: Engine, audit: Audit | None = None) -> bool:
        """Fill one gap; returns whether everything in it is stored. The status says more.

        With `audit`, a job only finds what differs.
        """
        filled = False
        try:
            status.stage = "starting"
            with contextlib.suppress(AdminError):  # it is only for show, and to choose
                state = await self._admin.internal_stats(self._topic)
                status.entries_total = state.entries_between(status.after, status.to)
            by_job = self._rebuild.is_large(status.entries_total) if engine is Engine.auto else engine is Engine.spark
            lasts_ms = self._comparison.lasts_ms(status.entries_total, by_job=by_job)
            scope = self._comparison.scope(status.after, status.to, self._now_ms(), lasts_ms)
            done = await self._by_job(status, scope, audit) if by_job else None
            filled = await self._read_gap(status, scope) if done is None else done
        finally:
            status.finish(self._now_ms(), None if filled else status.error or "cut short")
        return filled

    async def _by_job(self, status: RebuildStatus, scope: Scope, audit: Audit | None) -> bool | None:
        """Have a large gap filled by a job; None when it is to be read here, for the job failed."""
        status.engine = Engine.spark
        try:
            return await (self._rebuild_gap(status, scope) if audit is None else self._mend(status, scope, audit))
        except StoreError as error:
            status.error = str(error)
            self._on_failed(error)
            return False
        except (JobError, BrokerError) as error:
            log.warning("the gap is read here, the rebuild failed", topic=self._topic, reason=str(error))
            status.spark_error = str(error)
            return None

    async def _rebuild_gap(self, status: RebuildStatus, scope: Scope) -> bool:
        rebuilt = await self._rebuild.fill(status, scope, self._on_filled)
        floor = self._index.floor
        if floor is not None and rebuilt.upto < floor:
            return False  # time partitions were dropped meanwhile: look again at what is missing
        if not self._note(lambda: self._index.lower_floor(rebuilt.after)):
            return False
        await self._prove(status, rebuilt.in_topic, rebuilt.scope)
        return rebuilt.after <= status.after

    async def _mend(self, status: RebuildStatus, scope: Scope, audit: Audit) -> bool:
        in_topic = await audit.read_by_job(scope, status)
        status.stage = "comparing"
        result = await self._comparison.compare(in_topic, scope)
        for after, upto in result.ranges:
            if not await self._read(after, upto, status):
                return False
        await self._prove(status, in_topic, scope)
        return True

    async def _read_gap(self, status: RebuildStatus, scope: Scope) -> bool:
        status.engine, status.stage, status.entries_read = Engine.in_process, "reading", 0
        in_topic: TopicSide = {}

        def note(entries: list[StoredEntry]) -> None:
            add_up(in_topic, fingerprints_of(entries, scope))

        if not await self._read(status.after, status.to, status, note):
            return False
        if not self._note(lambda: self._index.lower_floor(status.after)):
            return False
        try:
            await self._prove(status, in_topic, scope)
        except (JobError, BrokerError, StoreError) as error:
            status.error = str(error)
            return False
        return True

    async def _prove(self, status: RebuildStatus, in_topic: TopicSide, scope: Scope) -> None:
        """Compare the index with what was read. Raises JobError when it lacks something, BrokerError, StoreError."""
        status.stage = "proving"
        if self._now_ms() >= scope.cut * scope.width_ms:
            log.warning("no proof of a rebuild: what was due later when it began is due by now", topic=self._topic)
            return
        result = await self._comparison.compare(in_topic, scope)
        if result.missing:
            listed = ", ".join(str(one) for one in result.missing[:10])
            raise JobError(f"the index still lacks {len(result.missing)} entries of the topic: {listed}")
        status.proof = Proof(result.compared, result.checksum, scope.cut * scope.width_ms)

    def _note(self, write: Callable[[], object]) -> bool:
        try:
            write()
        except StoreError as error:
            self._on_failed(error)
            return False
        return True

    async def _read(
        self,
        after: Position,
        to: Position,
        status: RebuildStatus | None = None,
        on_read: Callable[[list[StoredEntry]], None] = lambda _: None,
    ) -> bool:
        """Store what is delayed in (after, to]; returns whether all of it is stored."""
        return await self._read_some(after, to, None, status, on_read) is not None

    async def _read_some(
        self,
        after: Position,
        to: Position,
        most: int | None,
        status: RebuildStatus | None = None,
        on_read: Callable[[list[StoredEntry]], None] = lambda _: None,
    ) -> Position | None:
        """The same of about `most` entries, None for all; returns up to where all is stored, None if it is not."""
        self._void = False
        count, reached = 0, to

        def store(entries: list[StoredEntry]) -> None:
            nonlocal count
            count += len(entries)
            on_read(entries)
            indexed = self._store(entries)
            if status is not None:
                status.sources = self._source.sources
                status.entries_read += len(entries)
                status.entries_indexed += indexed

        async def read() -> None:
            nonlocal reached
            reached = await self._source.read(after, to, store, lambda: most is not None and count >= most)

        reading = self._reading = asyncio.ensure_future(self._wait_for_reading(read()))
        try:
            await asyncio.wait({reading})
        finally:
            self._reading = None
            reading.cancel()
            outcome = (await asyncio.gather(reading, return_exceptions=True))[0]
        if isinstance(outcome, BrokerError):
            log.warning("gap not filled yet", topic=self._topic, reason=str(outcome))
            if status is not None:
                status.error = str(outcome)
            return None
        if self._void:
            return None
        if outcome is not None:
            raise outcome
        return reached

    def _store(self, entries: list[StoredEntry]) -> int:
        """Store what is delayed; return how many were new."""
        indexed = 0
        try:
            size = self._limits.backfill_slice
            for start in range(0, len(entries), size):
                indexed += self._index.backfill(new_entries(entries[start : start + size]))
        except StoreError as error:
            self._begin_again()
            self._on_failed(error)
            return indexed
        self._on_filled()
        return indexed
