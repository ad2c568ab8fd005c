"""Dropping time partitions that have passed and that no view needs any more, and giving their disk space back."""

from __future__ import annotations

from itertools import islice

from tracker.index_core import IndexCore
from tracker.keys import time_bound
from tracker.partitions.page import PAGE_PARTITIONS, PartitionCounters
from tracker.partitions.positions import records_below
from tracker.position import Position
from tracker.views.view import SubscriptionView


class ConsumedPartitions:
    """Looks at a bounded number of partitions a call, the next ones each time, round and round."""

    def __init__(self, core: IndexCore) -> None:
        """Drop partitions of an core."""
        self._core = core
        self._next_examined = 0
        self._bytes_dropped = 0

    def drop(self, now_ms: int) -> int:
        """Drop partitions in one write; return how many. The floor rises to the highest position dropped."""
        views = self._core.views.by_name.values()
        known = self._examined(now_ms) if views and not self._core.is_counting else []
        dropped = [each for each in known if all(self._is_done(view, each) for view in views)]
        if dropped:
            self._drop(dropped)
        return len(dropped)

    @property
    def has_space_to_reclaim(self) -> bool:
        """Whether enough was dropped to make `reclaim` worth its while."""
        return self._bytes_dropped >= self._core.limits.reclaim_bytes and not self._core.families.damaged

    def reclaim(self, end: bytes) -> None:
        """Give back the disk space of what was dropped before a key. Blocks: call it from a thread."""
        self._bytes_dropped = 0
        self._core.store.reclaim(self._core.families.main, end)

    def _examined(self, now_ms: int) -> list[PartitionCounters]:
        now_key = time_bound(now_ms)
        most = self._core.limits.drop_examined_max
        known = list(islice(self._core.table.from_number(self._next_examined), most))
        passed = [partition for partition in known if partition.end_key <= now_key]
        complete = len(passed) < most
        self._next_examined = 0 if complete else passed[-1].number + 1
        return passed

    def _is_done(self, view: SubscriptionView, known: PartitionCounters) -> bool:
        if known.highest <= view.mark_delete_position:
            return True
        if view.counter.settled and view.counter.acked_in(known.number) == known.entries:
            return True
        if view.held_in(known.number):
            return False
        if known.first_key < view.cursor < known.end_key and self._core.due.is_read_to(view, known.end_key):
            # The partition has passed: the cursor leaves it although nothing after it was asked for.
            view.cursor = known.end_key
        return view.cursor >= known.end_key

    def _drop(self, dropped: list[PartitionCounters]) -> None:
        core, table = self._core, self._core.table
        record = core.record
        highest = max(known.highest for known in dropped)
        dropped_number = max(record.dropped_number, dropped[-1].number)
        batch = self._core.store.new_batch()
        for known in dropped:
            for family in self._core.families.all():
                batch.delete_range(known.first_key, known.end_key, family.handle)
            table.remove(known)
        if not table.loading:
            self._clear_positions(batch)
        try:
            # Entries may come to these partitions again, while the views' stored counters still speak of those that
            # went: `write_pages` marks them.
            core.write_pages(
                sorted({known.number // PAGE_PARTITIONS for known in dropped}),
                batch,
                floor=max(record.floor or highest, highest),
                dropped=max(record.dropped or highest, highest),
                dropped_number=dropped_number,
            )
        except BaseException:
            for known in dropped:
                table.put(known)
            raise
        table.dropped_number = dropped_number
        for known in dropped:
            core.window.remove_range(known.first_key, known.end_key)
            for view in core.views.by_name.values():
                view.counter.forget(known.number)
        self._core.due.invalidate()
        self._bytes_dropped += sum(known.size for known in dropped)

    def _clear_positions(self, batch: object) -> None:
        """Delete the position records below every entry that is left."""
        harvested = self._core.record.harvested or Position(0, 0)
        lowest = self._core.table.lowest_position() or Position(harvested.ledger, harvested.entry + 1)
        for family in self._core.families.all():
            batch.delete_range(*records_below(lowest), family.handle)  # type: ignore[attr-defined]
