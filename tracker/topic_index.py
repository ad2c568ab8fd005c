"""The delayed index of one topic partition."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from tracker import checks, limits
from tracker.due_reader import DueReader
from tracker.entries import DueEntry, NewEntry, encode_value
from tracker.keys import KEY, KEY_LENGTH, clamp_timestamp, encode_key, time_bound
from tracker.partitions import PartitionCounters, PartitionTable, Tally
from tracker.position import Position
from tracker.reader import DiskReader
from tracker.records import TopicKeys, TopicRecord, check_width, decode_counters, number_of
from tracker.store import Store, StoreError
from tracker.view import SubscriptionView
from tracker.view_records import ViewRecords
from tracker.window import NearTermWindow

# The name `bytes` is taken by a property below.
Key = bytes


class TimePartition(NamedTuple):
    """One slice of due time, [start_ms, end_ms). `bytes` counts keys and values before compression."""

    start_ms: int
    end_ms: int
    entries: int
    bytes: int
    tier: str
    min_position: Position
    max_position: Position


class TopicIndex:
    """Delayed entries of one topic partition in due order, stored once, read by any number of views.

    Nothing here waits or looks at a clock. Writes are atomic and unsynced: `Store.sync` makes them durable.
    """

    def __init__(
        self,
        store: Store,
        topic: str,
        *,
        partition_width_ms: int = limits.PARTITION_WIDTH_MS,
        near_term_bytes: int = limits.NEAR_TERM_BYTES,
        horizon_ms: int | None = None,
    ) -> None:
        """Open or create the index of a topic; raises StoreError, also when it was stored with another width."""
        if partition_width_ms < 1:
            raise ValueError(f"a time partition needs a width of at least 1 ms, not {partition_width_ms}")
        self.topic = topic
        self.partition_width_ms = partition_width_ms
        self.horizon_ms = limits.HORIZON_PARTITIONS * partition_width_ms if horizon_ms is None else horizon_ms
        self.table = PartitionTable(partition_width_ms)
        self.window = NearTermWindow(near_term_bytes)
        self._store = store
        self._family = store.open_topic(topic)
        self.reader = DiskReader(topic, self._family, self.table)
        self._due = DueReader(self.window, self.reader, self.table)
        self._keys = TopicKeys(topic)
        self._next_examined = 0
        self._record = self._load()
        self._views = ViewRecords(store, self._keys, partition_width_ms)

    # --- what is in it

    @property
    def harvested_position(self) -> Position | None:
        """Every delayed entry in (floor, harvested] was put in the index; None before `start_at`."""
        return self._record.harvested

    @property
    def floor(self) -> Position | None:
        """No entry above it, up to the harvested position, was left out or dropped; None before `start_at`."""
        return self._record.floor

    @property
    def entries(self) -> int:
        """How many entries are stored."""
        return self.table.entries

    @property
    def bytes(self) -> int:
        """Key and value bytes stored, before compression."""
        return self.table.size

    @property
    def low_water_key(self) -> Key:
        """The start of the first time partition that is not dropped: a lower bound of every stored key."""
        first = next(iter(self.table), None)
        return first.first_key if first is not None else time_bound(0)

    def partitions(self) -> list[TimePartition]:
        """Return the time partitions in order; tier is `memory` where the near-term window reaches, else `disk`."""
        width = self.partition_width_ms
        return [
            TimePartition(
                known.number * width,
                (known.number + 1) * width,
                known.entries,
                known.size,
                "memory" if known.first_key < self.window.high and self.window.low < known.end_key else "disk",
                known.lowest,
                known.highest,
            )
            for known in self.table
        ]

    def get(self, key: Key) -> DueEntry | None:
        """Return a stored entry, from memory or disk; None when there is none."""
        return self._due.get(key)

    def check(self) -> None:
        """Compare everything kept in memory with the disk; raises AssertionError. Reads all: for tests."""
        checks.check_index(self)

    # --- filling it

    def start_at(self, position: Position) -> None:
        """Begin a fresh index: what lies at or below the position is not in it. Raises StoreError if it has begun."""
        if self._record.harvested is not None:
            raise StoreError(f"the index of {self.topic} has begun already, at {self._record.floor}")
        self._write_topic(TopicRecord(self.partition_width_ms, position, position, self._record.dropped))

    def add(self, entries: Sequence[NewEntry], harvested_position: Position, now_ms: int) -> None:
        """Append harvested entries and move the harvested position, in one write.

        Entries come in position order, at most at `harvested_position` (else ValueError); those at or below the former
        harvested position are known and skipped. Pass slices of about 500. Raises StoreError; then nothing changed.
        """
        previous: tuple[int, int] = self._harvested()
        fresh = []
        for new in entries:
            position = (new[1], new[2])
            if position > previous:
                previous = position
                fresh.append(new)
            elif fresh:
                raise ValueError(f"entries of {self.topic} out of order: {position} after {previous}")
        if fresh and previous > harvested_position:
            raise ValueError(f"entry {previous} of {self.topic} lies above the harvested position {harvested_position}")
        self._insert(fresh, max(harvested_position, self._harvested()))

    def backfill(self, entries: Sequence[NewEntry], now_ms: int) -> int:
        """Store entries at or below the harvested position that may be known; return how many were new.

        Entries above the harvested position are left to the harvester. Raises StoreError; then nothing changed.
        """
        harvested = self._harvested()
        fresh: dict[Key, NewEntry] = {}
        for new in entries:
            key = encode_key(new.deliver_at_ms, new.ledger, new.entry)
            if (new.ledger, new.entry) <= harvested and key not in fresh and not self.reader.contains(key):
                fresh[key] = new
        if fresh:
            self._insert(list(fresh.values()), harvested)
        return len(fresh)

    def lower_floor(self, position: Position) -> Position:
        """Note that everything in (position, floor] was backfilled; return the floor now in force.

        That is higher than asked when time partitions that reached above the position were dropped meanwhile.
        """
        record = self._record
        floor = min(self._floor(), max(position, record.dropped or position))
        self._write_topic(TopicRecord(record.partition_width_ms, record.harvested, floor, record.dropped))
        return floor

    # --- views

    def view(self, subscription: str) -> SubscriptionView:
        """Return a subscription's view, creating and storing it when it is new."""
        return self._views.get_or_create(subscription)

    def views(self) -> dict[str, SubscriptionView]:
        """Return the views by subscription."""
        return dict(self._views.by_name)

    def remove_view(self, subscription: str) -> None:
        """Forget a subscription and its acks; nothing happens when it is unknown."""
        self._views.remove(subscription)

    def persist_views(self) -> int:
        """Write what changed in the views' acks since the last call, unsynced; return the records written."""
        return self._views.persist()

    def due(self, view: SubscriptionView, now_ms: int, limit: int, max_bytes: int = limits.DUE_BYTES) -> list[DueEntry]:
        """Return the next entries due for a view, late ones first; they become outstanding.

        At most `limit`, and none after those so far weigh `max_bytes`.

        None has deliver_at_ms > now_ms. The work is bounded: after many acked entries fewer than `limit` may come back
        although more are due; `next_due_ms` then returns a time that has passed.
        """
        return self._due.due(view, now_ms, limit, max_bytes)

    def next_due_ms(self, view: SubscriptionView) -> int | None:
        """Return when to call `due` next, None when nothing is pending.

        A lower bound: it may be the time of an acked entry or of the end of the near-term window.
        """
        return self._due.next_due_ms(view)

    # --- housekeeping

    def prefetch(self, now_ms: int, limit: int) -> bool:
        """Read at most `limit` entries into the near-term window; return True when there is more to read."""
        return self._due.prefetch(self._views.by_name.values(), time_bound(now_ms + self.horizon_ms + 1), limit)

    def drop_consumed(self, now_ms: int) -> int:
        """Drop the time partitions that have passed and that no view needs any more; return how many.

        One write; the floor rises to the highest position dropped. Looks at a bounded number of partitions a call.
        """
        dropped = [known for known in self._examined(now_ms) if self._is_consumed(known)]
        if not dropped:
            return 0
        record = self._record
        highest = max(known.highest for known in dropped)
        record = TopicRecord(
            record.partition_width_ms,
            record.harvested,
            max(self._floor(), highest),
            max(record.dropped or highest, highest),
        )
        batch = self._store.new_batch()
        for known in dropped:
            batch.delete_range(known.first_key, known.end_key, self._family.handle)
            batch.delete(self._keys.partition(known.number))
        self._write_topic(record, batch)
        for known in dropped:
            self.table.remove(known.number)
            self.window.remove_range(known.first_key, known.end_key)
        self._due.invalidate()
        return len(dropped)

    # --- inside

    def _load(self) -> TopicRecord:
        for key, counters in self._store.records(self._keys.partitions):
            self.table.load(number_of(key), *decode_counters(counters))
        stored = dict(self._store.records(self._keys.topic)).get(self._keys.topic)
        if stored is not None:
            record = TopicRecord.decode(stored)
            check_width(record, self.topic, self.partition_width_ms)
            return record
        record = TopicRecord(self.partition_width_ms)
        self._write_topic(record)
        return record

    def _harvested(self) -> Position:
        if self._record.harvested is None:
            raise StoreError(f"the index of {self.topic} was not started: call start_at first")
        return self._record.harvested

    def _floor(self) -> Position:
        if self._record.floor is None:
            raise StoreError(f"the index of {self.topic} was not started: call start_at first")
        return self._record.floor

    def _write_topic(self, record: TopicRecord, batch: Any = None) -> None:
        batch = self._store.new_batch() if batch is None else batch
        batch.put(self._keys.topic, record.encode())
        self._store.write(batch)
        self._record = record

    def _insert(self, entries: list[NewEntry], harvested: Position) -> None:
        """Write entries that are not stored yet, their partitions' counters and the harvested position."""
        batch, tally, width = self._store.new_batch(), Tally(), self.partition_width_ms
        put, handle, pack, count = batch.put, self._family.handle, KEY.pack, tally.count
        low, high = self.window.low, self.window.high
        keys: list[Key] = []
        near: list[DueEntry] = []
        for deliver_at, ledger, entry, messages, raw in entries:
            deliver_at = clamp_timestamp(deliver_at)
            key = pack(deliver_at, ledger, entry)
            value = encode_value(messages, raw)
            put(key, value, handle)
            count(deliver_at // width, KEY_LENGTH + len(value), (ledger, entry))
            keys.append(key)
            if low <= key < high:
                near.append(DueEntry(key, deliver_at, ledger, entry, max(messages, 1), raw))
        partitions = self.table.merged(tally)
        for partition in partitions:
            put(self._keys.partition(partition.number), partition.record())
        record = self._record
        self._write_topic(TopicRecord(record.partition_width_ms, harvested, record.floor, record.dropped), batch)
        self.table.replace(partitions)
        self._due.invalidate()
        if near:
            self.window.insert(near)
        for view in self._views.by_name.values():
            cursor = view.cursor
            late = [key for key in keys if key < cursor]
            if late:
                view.note_late(late)

    def _examined(self, now_ms: int) -> list[PartitionCounters]:
        """Return the passed partitions to look at in this call: the next ones, round and round."""
        if not self._views.by_name:
            return []
        now_key = time_bound(now_ms)
        known = list(islice(self.table.from_number(self._next_examined), limits.DROP_EXAMINED_MAX))
        passed = [partition for partition in known if partition.end_key <= now_key]
        complete = len(passed) < limits.DROP_EXAMINED_MAX
        self._next_examined = 0 if complete else passed[-1].number + 1
        return passed

    def _is_consumed(self, known: PartitionCounters) -> bool:
        return all(self._is_done(view, known) for view in self._views.by_name.values())

    def _is_done(self, view: SubscriptionView, known: PartitionCounters) -> bool:
        if known.highest <= view.mark_delete_position:
            return True
        if view.held_in(known.number):
            return False
        if known.first_key < view.cursor < known.end_key and self._due.is_read_to(view, known.end_key):
            # The partition has passed: the cursor leaves it although nothing after it was asked for.
            view.cursor = known.end_key
        return view.cursor >= known.end_key
