"""Gaps: what a subscription needs and the index does not have.

They open when a topic partition is taken over without its index, when a cursor is set back, when a new subscription
starts before what the index covers, and when files of the index turn out to be damaged. They are filled by reading the
topic again, beside live delivery.
"""

import asyncio
from collections.abc import Callable

import structlog

from bridge import limits
from bridge.broker.admin import AdminError
from bridge.broker.connection import BrokerConnection, BrokerError
from bridge.broker.fetch import read_range
from bridge.harvester import new_entries
from bridge.protocol.entries import StoredEntry
from bridge.rebuild import RebuildError, SparkRebuild
from tracker import Position, StoreError, SubscriptionView, TopicIndex

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
        rebuild: SparkRebuild | None = None,
    ) -> None:
        """`on_filled`: entries came into the index; `on_failed`: they could not be stored, and are read again later.

        `rebuild`: what fills large gaps; without one all are read here.
        """
        self._topic = topic
        self._connection = connection
        self._index = index
        self._now_ms = now_ms
        self._on_filled = on_filled
        self._on_failed = on_failed
        self._rebuild = rebuild
        self._reading: asyncio.Task[None] | None = None
        self._void = False
        self._one_at_a_time = asyncio.Lock()

    def find(self, view: SubscriptionView) -> tuple[Position, Position] | None:
        """The positions (after, to] a view misses; None when it misses nothing, which is noted in the view."""
        floor = self._index.floor
        if not view.covered and floor is not None and view.mark_delete_position < floor:
            return view.mark_delete_position, floor
        view.covered = True
        return None

    async def fill(self, view: SubscriptionView) -> None:
        """Until the view misses nothing; tried again as long as the broker does not give the entries."""
        async with self._one_at_a_time:
            while (gap := self.find(view)) is not None:
                after, to = gap
                log.info("filling a gap", topic=self._topic, subscription=view.name, after=str(after), to=str(to))
                filled = await self._fill(after, to)
                # The cursor may have been set further back meanwhile.
                view.covered = filled and view.mark_delete_position >= after
                if not filled:
                    await asyncio.sleep(limits.RETRY_BACKOFF_S[-1])
        self._on_filled()

    async def heal(self) -> None:
        """Read again what the index has found damaged, until nothing is missing."""
        async with self._one_at_a_time:
            while ranges := self._index.damage.ranges:
                # Every time partition spans nearly all positions: one pass fills them all.
                after = min(known.lowest for known in ranges)
                to = max(known.highest for known in ranges)
                # Where little is known of what is missing, the range may reach beyond the last entry.
                to = min(to, self._index.harvested_position or to)
                log.warning(
                    "reading again what is damaged in the index",
                    topic=self._topic,
                    time_partitions=len(ranges),
                    entries=sum(known.entries for known in ranges),
                    lowest=str(after),
                    highest=str(to),
                )
                filled = await self._read(Position(after.ledger, after.entry - 1), to)
                if filled and ranges == self._index.damage.ranges and self._note(self._index.damage.healed):
                    log.info("what was damaged in the index is there again", topic=self._topic)
                else:
                    await asyncio.sleep(limits.RETRY_BACKOFF_S[-1])
        self._on_filled()

    def on_recovered(self) -> None:
        """The store was opened anew: what was filled in may be gone, so begin again."""
        self._begin_again()

    def _begin_again(self) -> None:
        self._void = True
        if self._reading is not None:
            self._reading.cancel()

    async def _fill(self, after: Position, to: Position) -> bool:
        """Fill one gap; returns whether everything in it is stored."""
        if self._rebuild is not None:
            rebuilt = await self._rebuild_gap(self._rebuild, after, to)
            if rebuilt is not None:
                return rebuilt
        return await self._read(after, to) and self._note(lambda: self._index.lower_floor(after))

    async def _rebuild_gap(self, rebuild: SparkRebuild, after: Position, to: Position) -> bool | None:
        """Have a large gap filled by a job; None when it is to be read here, for it is small or the job failed."""
        try:
            if not await rebuild.is_large(after, to):
                return None
            first, last = await rebuild.fill(after, to, self._on_filled)
        except StoreError as error:
            self._on_failed(error)
            return False
        except (AdminError, RebuildError) as error:
            log.warning("the gap is read here, the rebuild failed", topic=self._topic, reason=str(error))
            return None
        floor = self._index.floor
        if floor is not None and last < floor:
            return False  # time partitions were dropped meanwhile: look again at what is missing
        return self._note(lambda: self._index.lower_floor(first)) and first <= after

    def _note(self, write: Callable[[], object]) -> bool:
        try:
            write()
        except StoreError as error:
            self._on_failed(error)
            return False
        return True

    async def _read(self, after: Position, to: Position) -> bool:
        self._void = False
        read = read_range(self._connection, self._topic, after, to, self._store)
        reading = self._reading = asyncio.get_running_loop().create_task(read)
        try:
            await asyncio.wait({reading})
        finally:
            self._reading = None
            reading.cancel()
            outcome = (await asyncio.gather(reading, return_exceptions=True))[0]
        if isinstance(outcome, BrokerError):
            log.warning("gap not filled yet", topic=self._topic, reason=str(outcome))
            return False
        if self._void:
            return False
        if outcome is not None:
            raise outcome
        return True

    def _store(self, entries: list[StoredEntry]) -> None:
        try:
            for start in range(0, len(entries), limits.HARVEST_SLICE):
                self._index.backfill(new_entries(entries[start : start + limits.HARVEST_SLICE]), self._now_ms())
        except StoreError as error:
            self._begin_again()
            self._on_failed(error)
            return
        self._on_filled()
