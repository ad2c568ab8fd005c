"""What the parts of a topic's index share: its record, its tables in memory, and the writes that change both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tracker.errors import StoreError
from tracker.limits import IndexLimits
from tracker.near.window import NearTermWindow
from tracker.partitions.journal import Journal
from tracker.partitions.page import PartitionCounters
from tracker.partitions.positions import PositionIndex
from tracker.partitions.reader import DiskReader
from tracker.partitions.table import ANY_PARTITION, PartitionTable
from tracker.position import Position
from tracker.store.families import EntryFamilies
from tracker.store.records import TopicKeys, TopicRecord, check_width
from tracker.store.store import Store
from tracker.views.due_reader import DueReader
from tracker.views.view_records import ViewRecords


class IndexCore:
    """`TopicIndex` is the face above it; bulk loads, damage and the dropping of partitions work on it side by side."""

    def __init__(
        self, store: Store, topic: str, partition_width_ms: int, near_term_bytes: int, limits: IndexLimits
    ) -> None:
        """Open the families of a topic; what is stored of it is loaded by `load`, then `load_views`."""
        self.topic = topic
        self.partition_width_ms = partition_width_ms
        self.store = store
        self.limits = limits
        self.keys = TopicKeys(topic)
        self.table = PartitionTable(partition_width_ms)
        self.window = NearTermWindow(near_term_bytes, limits)
        store.prepare(topic)
        self.record = self.stored_record() or TopicRecord(partition_width_ms)
        check_width(self.record, topic, partition_width_ms)
        self.families = EntryFamilies(store, topic, self.keys, self.record.second)
        self.reader = DiskReader(topic, self.families, self.table)
        self.positions = PositionIndex(topic, self.families)
        self.due = DueReader(self.window, self.reader, self.table, limits)
        self.journal = Journal(store, self.keys, self.table, limits)
        self.is_counting = False
        """Whether entries are in that are not counted yet: no time partition may be dropped then."""

        self.refilled = 0
        """Counts what came into the index, or was lost, other than at its end or by dropping."""

    def load_views(self) -> None:
        """Load the views, once the partition table is there."""
        self.views = ViewRecords(self.store, self.keys, self.table, self.limits.late_keys_max)

    @property
    def harvested(self) -> Position:
        """Every delayed entry in (floor, harvested] was put in the index. Raises StoreError before it was started."""
        if self.record.harvested is None:
            raise StoreError(f"the index of {self.topic} was not started: call start_at first")
        return self.record.harvested

    @property
    def floor(self) -> Position:
        """No entry above it was left out or dropped. Raises StoreError before the index was started."""
        if self.record.floor is None:
            raise StoreError(f"the index of {self.topic} was not started: call start_at first")
        return self.record.floor

    # --- its record

    def stored_record(self) -> TopicRecord | None:
        """Return what is on disk of the topic itself."""
        stored = dict(self.store.records(self.keys.topic)).get(self.keys.topic)
        return None if stored is None else TopicRecord.decode(stored)

    def write_topic(self, record: TopicRecord, batch: Any = None) -> None:
        """Write the topic's record, along with a batch. Raises StoreError; then nothing changed."""
        batch = self.store.new_batch() if batch is None else batch
        batch.put(self.keys.topic, record.encode())
        self.store.write(batch)
        self.record = record

    def write_pages(self, pages: list[int], batch: Any, **changes: Any) -> None:
        """Write changed pages of partition counters along with a batch and changes of the topic's record."""
        record = replace(self.record, written=self.next_write, **changes)
        self.journal.stage_pages(batch, pages, record.written)
        uncounted = self.views.stage_uncounted(batch, self.views.by_name.values())
        self.write_topic(record, batch)
        self.views.staged_uncounted(uncounted)
        self.journal.stored_pages(pages, record.written)

    @property
    def next_write(self) -> int:
        """The number of the next write."""
        return self.record.written + 1

    def clear_journal(self) -> None:
        """Store all partition counters: what the journal refers to will be gone."""
        self.record = self.journal.store_all(self.record)

    def distrust_positions(self) -> None:
        """Look into the index itself from now on when a position's record speaks of an entry."""
        self.write_topic(replace(self.record, dropped_number=ANY_PARTITION))
        self.table.dropped_number = ANY_PARTITION

    # --- what came or went past `TopicIndex.add`

    def partition_vanished(self, known: PartitionCounters) -> None:
        """Forget a partition that was taken out of the table."""
        self.refilled += 1
        self.window.remove_range(known.first_key, known.end_key)
        self.due.invalidate()
        self.hold_counters()
        for view in self.views.by_name.values():
            view.counter.forget(known.number)
            view.forget_late(known.first_key, known.end_key)

    def families_switched(self) -> None:
        """Go on with the other column family alone: everything was moved there."""
        on_recovered, self.families.main.on_recovered = self.families.main.on_recovered, None
        self.families.switched()
        self.families.main.on_recovered = on_recovered
        self.refilled += 1
        self.recount_views()

    def entries_appeared(self, start: bytes, end: bytes) -> None:
        """Look again at a key range in which entries were stored past `add`."""
        self.refilled += 1
        if start < self.window.high and self.window.low < end:
            self.window.cut_at(start)
        self.due.invalidate()
        for view in self.views.by_name.values():
            view.rewind_to(start)
        self.hold_counters()

    def hold_counters(self) -> None:
        """Count the views' acks as not settled until `recount_views`."""
        for view in self.views.by_name.values():
            view.counter.hold()

    def recount_views(self) -> None:
        """Count anew what the views have acked, after entries were stored that some of them may have acked before."""
        for view in self.views.by_name.values():
            view.counter.recount(view.acks)
