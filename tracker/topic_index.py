"""The delayed index of one topic partition."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

from tracker.bulk.load import BulkRecords
from tracker.care.checks import check_index
from tracker.care.consumed import ConsumedPartitions
from tracker.care.damage import Damage
from tracker.care.migration import migrate
from tracker.counts import Counts
from tracker.entries import DueEntry, NewEntry, encode_value
from tracker.errors import StoreError
from tracker.index_core import IndexCore
from tracker.keys import FIRST_KEY, KEY, KEY_LENGTH, MAX_TIMESTAMP_MS, clamp_timestamp, encode_key, key_time, time_bound
from tracker.limits import IndexLimits
from tracker.partitions.lifecycle import PartitionState, state_of
from tracker.partitions.positions import PlacedEntry, encode_records
from tracker.position import Position
from tracker.search import Search, Standing
from tracker.snapshots.restore import SnapshotRestore
from tracker.snapshots.source import SnapshotSource
from tracker.store.store import Store
from tracker.views.view import SubscriptionView

# The name `bytes` is taken by a property below.
Key = bytes

PARTITION_WIDTH_MS: Final = 300_000
"""Due time covered by one time partition, unless the caller wants another."""
NEAR_TERM_BYTES: Final = 32 * 1024 * 1024
"""Memory for the near-term window of one topic partition, likewise."""
DUE_BYTES: Final = 1024 * 1024
"""What one call hands out at most, likewise; a single larger entry is handed out all the same."""


class TimePartition(NamedTuple):
    """One slice of due time, [start_ms, end_ms). `bytes` counts keys and values before compression.

    `tier` is `memory` where the near-term window reaches, else `disk`; see `PartitionState` for more.
    """

    start_ms: int
    end_ms: int
    entries: int
    bytes: int
    tier: Literal["memory", "disk"]
    state: PartitionState
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
        partition_width_ms: int = PARTITION_WIDTH_MS,
        near_term_bytes: int = NEAR_TERM_BYTES,
        horizon_ms: int | None = None,
        limits: IndexLimits | None = None,
    ) -> None:
        """Open or create the index of a topic; raises StoreError, also when it was stored with another width."""
        if partition_width_ms < 1:
            raise ValueError(f"a time partition needs a width of at least 1 ms, not {partition_width_ms}")
        self.topic = topic
        self.partition_width_ms = partition_width_ms
        limits = self._limits = IndexLimits() if limits is None else limits
        self.horizon_ms = limits.horizon_partitions * partition_width_ms if horizon_ms is None else horizon_ms
        self._core = core = IndexCore(store, topic, partition_width_ms, near_term_bytes, limits)
        self.table, self.window, self.reader = core.table, core.window, core.reader
        self.families, self.positions = core.families, core.positions
        self.counts = Counts(self.table, self.window, self.reader)
        self.search = Search(self.positions, self.reader)
        self._store, self._keys, self._journal, self._due = store, core.keys, core.journal, core.due
        self._consumed = ConsumedPartitions(core)
        self._load()
        self.bulk = BulkRecords(core)
        core.load_views()
        self._views = core.views
        self.damage = Damage(core)
        self.source, self.restore = SnapshotSource(core, self.damage), SnapshotRestore(core, self.damage)
        self.reader.on_damage = self.damage.quarantine
        self.families.main.on_recovered = self._reload
        if store.lost_writes(topic, self.families.second):
            if core.record.harvested is not None and core.record.floor is not None:
                self.damage.note_lost_writes(core.record.floor, core.record.harvested)
            store.forget_lost_writes(topic, core.record.second)
        if self._journal.damaged:
            self.damage.note_lost(self._journal.damaged)
        self.bulk.recover()
        if self.families.damaged:
            core.hold_counters()

    # --- what is in it

    @property
    def harvested_position(self) -> Position | None:
        """Every delayed entry in (floor, harvested] was put in the index; None before `start_at`."""
        return self._core.record.harvested

    @property
    def floor(self) -> Position | None:
        """No entry above it, up to the harvested position, was left out or dropped; None before `start_at`."""
        return self._core.record.floor

    @property
    def identity(self) -> int:
        """What tells this topic from another one of its name; 0 before `identify`."""
        return self._core.record.identity

    def identify(self, identity: int) -> None:
        """Note what tells this topic from another one of its name. Raises StoreError."""
        if identity != self._core.record.identity:
            self._core.write_topic(replace(self._core.record, identity=identity))

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

    def latest_ms(self) -> int | None:
        """Return the latest due time of all entries; None without any."""
        span = self.table.span()
        key = None if span is None else self.reader.last_key(span[1])
        return None if key is None else key_time(key)

    def partitions(self, now_ms: int, from_ms: int = 0) -> Iterator[TimePartition]:
        """Yield the time partitions that begin at a time or later, in order. The index must not change meanwhile."""
        width = self.partition_width_ms
        for known in self.table.from_number(-(-from_ms // width)):
            state = state_of(known, self.window, now_ms)
            start = known.number * width
            in_memory = known.first_key < self.window.high and self.window.low < known.end_key
            yield TimePartition(
                start,
                start + width,
                known.entries,
                known.size,
                "memory" if in_memory else "disk",
                state,
                known.lowest,
                known.highest,
            )

    def pending_in(self, view: SubscriptionView, partition: TimePartition) -> int:
        """Return how many entries of a time partition a view has not acked."""
        return partition.entries - view.counter.acked_in(partition.start_ms // self.partition_width_ms)

    def get(self, key: Key) -> DueEntry | None:
        """Return a stored entry, from memory or disk; None when there is none."""
        return self._due.get(key)

    def check(self) -> None:
        """Compare everything kept in memory with the disk; raises AssertionError. Reads all: for tests."""
        check_index(self._core, self.damage.ranges)

    # --- filling it

    def start_at(self, position: Position) -> None:
        """Begin a fresh index: what lies at or below the position is not in it. Raises StoreError if it has begun."""
        if self._core.record.harvested is not None:
            raise StoreError(f"the index of {self.topic} has begun already, at {self._core.record.floor}")
        self._core.write_topic(replace(self._core.record, harvested=position, floor=position))

    def skip_to(self, position: Position) -> None:
        """Go on behind a position: what lies between is left out, and listed in `damage.missing` until it is filled.

        One write. Raises StoreError; then nothing changed.
        """
        batch = self._store.new_batch()
        left_out = self.damage.stage_left_out(batch, self._core.harvested, position)
        self._core.write_topic(replace(self._core.record, harvested=position), batch)
        left_out()

    def add(self, entries: Sequence[NewEntry], harvested_position: Position) -> None:
        """Append harvested entries and move the harvested position, in one write.

        Entries come in position order, at most at `harvested_position` (else ValueError); those at or below the former
        harvested position are known and skipped. Pass slices of about 500. Raises StoreError; then nothing changed.
        """
        previous: tuple[int, int] = self._core.harvested
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
        self._insert(fresh, max(harvested_position, self._core.harvested))

    def backfill(self, entries: Sequence[NewEntry]) -> int:
        """Store entries at or below the harvested position that may be known; return how many were new.

        Entries above the harvested position are left to the harvester. Raises StoreError; then nothing changed.
        """
        harvested = self._core.harvested
        fresh: dict[Key, NewEntry] = {}
        for new in entries:
            key = encode_key(new.deliver_at_ms, new.ledger, new.entry)
            if (new.ledger, new.entry) <= harvested and key not in fresh and not self.reader.contains(key):
                fresh[key] = new
        if fresh:
            self._core.refilled += 1
            self._insert(list(fresh.values()), harvested)
        return len(fresh)

    def lower_floor(self, position: Position) -> Position:
        """Note that everything in (position, floor] was backfilled; return the floor now in force.

        That is higher than asked when time partitions that reached above the position were dropped meanwhile.
        """
        floor = min(self._core.floor, max(position, self._core.record.dropped or position))
        self._core.write_topic(replace(self._core.record, floor=floor))
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

    def persist_views(self, subscriptions: Collection[str] | None = None) -> int:
        """Write what changed in the views, or in some of them, unsynced; return the records written."""
        by_name = self._views.by_name
        views = [by_name[name] for name in (by_name if subscriptions is None else subscriptions) if name in by_name]
        self._settle(views, self._limits.settle_blocks)
        self.damage.move_some()
        return self._views.persist(views)

    def portions(self) -> Iterator[list[str]]:
        """Yield the subscriptions in portions, each of which `persist_views` takes about 2 ms for."""
        portion: list[str] = []
        for name, view in self.views().items():
            portion.append(name)
            if not view.counter.settled or len(portion) == self._limits.views_slice:
                yield portion
                portion = []
        if portion:
            yield portion

    def due(self, view: SubscriptionView, now_ms: int, limit: int, max_bytes: int = DUE_BYTES) -> list[DueEntry]:
        """Return the next entries due for a view, late ones first; they become outstanding.

        At most `limit`, and none after those so far weigh `max_bytes`.

        None has deliver_at_ms > now_ms. The work is bounded: after many acked entries fewer than `limit` may come back
        although more are due; `next_due_ms` then returns a time that has passed.
        """
        return self._due.due(view, now_ms, limit, max_bytes)

    def note_dispatching(self, view: SubscriptionView, until_ms: int) -> None:
        """Store, before entries go out, until when they may: who opens this index later knows what went out before.

        Unsynced, in one write. Raises StoreError.
        """
        self._views.note_dispatching(view, until_ms)

    def next_due_ms(self, view: SubscriptionView) -> int | None:
        """Return when to call `due` next, None when nothing is pending.

        A lower bound: it may be the time of an acked entry or of the end of the near-term window.
        """
        return self._due.next_due_ms(view)

    def first_waiting_ms(self, view: SubscriptionView) -> int | None:
        """Return the due time of the first entry that is neither acked nor handed out; None without any.

        Exact, unless so many acked ones lie before it that looking on would take too long: a lower bound then.
        """
        return self._due.first_waiting_ms(view)

    def deliver_now(self, view: SubscriptionView, position: Position) -> Standing:
        """Have a pending entry handed out next, without regard to its due time; return how it stood.

        Kept across restarts by `persist_views` until it is acked. Raises StoreError, also when too many are waiting.
        """
        standing = self.search.standing(view, position)
        if standing is Standing.PENDING:
            if len(view.expedited) >= self._limits.expedited_max:
                raise StoreError(
                    f"more than {self._limits.expedited_max} entries of {view.name} are to be delivered now"
                )
            entry = self.search.locate(position)
            if entry is not None:
                view.expedite(entry.key)
        return standing

    # --- housekeeping

    def prefetch(self, now_ms: int, limit: int) -> bool:
        """Read at most `limit` entries into the near-term window; return True when there is more to read."""
        end = time_bound(now_ms + self.horizon_ms + 1)
        return self._due.prefetch(self._views.by_name.values(), time_bound(now_ms), end, limit)

    def pass_acked(self, view: SubscriptionView, now_ms: int) -> bool:
        """Have a view that nobody is dispatched from pass entries that were due and are acked; True when more are left.

        Whoever dispatches from it later has that behind them. Raises StoreError.
        """
        return self._due.pass_acked(view, time_bound(now_ms))

    def settle(self, limit: int) -> bool:
        """Count acks of entries that were not handed out, at most about `limit` blocks of 512 positions a view.

        Returns True when some are left: until then the views' pending counts are too high. Raises StoreError.
        """
        return self._settle(self._views.by_name.values(), limit)

    def drop_consumed(self, now_ms: int) -> int:
        """Drop the time partitions that have passed and that no view needs any more; return how many.

        One write; the floor rises to the highest position dropped. Looks at a bounded number of partitions a call.
        """
        return self._consumed.drop(now_ms)

    @property
    def has_space_to_reclaim(self) -> bool:
        """Whether enough was dropped to make `reclaim` worth its while."""
        return self._consumed.has_space_to_reclaim

    def reclaim(self) -> None:
        """Give back the disk space of dropped partitions. Blocks: call it from a thread. Raises StoreError."""
        self._consumed.reclaim(self.low_water_key)

    # --- inside

    def _settle(self, views: Iterable[SubscriptionView], limit: int) -> bool:
        highest = self._core.record.harvested
        unsettled = [view for view in views if not view.counter.settled]
        if highest is None:
            return bool(unsettled)
        # Every view gets its turn, however much the ones before it have left.
        left = sum(view.counter.settle(self.positions, self.reader, self.table, highest, limit) for view in unsettled)
        return left > 0

    def _load(self) -> None:
        core = self._core
        stored = dict(self._store.records(self._keys.topic)).get(self._keys.topic)
        if stored is None:
            core.write_topic(core.record)
            return
        core.record = migrate(self._store, self.families.main, self._keys, stored)
        self._journal.load(core.record, self.positions)

    def _reload(self) -> None:
        """After the store was opened anew: know what is on disk, be it less or more than what was written last."""
        self._core.refilled += 1
        self.damage.load()  # a range that was left out may be there although the write failed
        record = self._core.stored_record()
        if record is None or record == self._core.record:
            return
        self._core.record = record
        self.families.load()
        self.table.clear()
        self._journal.load(self._core.record, self.positions)
        self.window.restart_at(self.window.low)
        self._due.invalidate()
        for view in self._views.by_name.values():
            view.rewind_to(FIRST_KEY)
            view.counter.recount(view.acks)
        self.bulk.recover()

    def _insert(self, entries: list[NewEntry], harvested: Position) -> None:
        """Write entries that are not stored yet, their positions, and the harvested position."""
        if self._journal.is_long:
            self._core.record = self._journal.store_some(self._core.record, self._limits.journal_pages)
        batch = self._store.new_batch()
        pairs, placed = _encoded(entries)
        handle, handle_of = self.families.main.handle, self.damage.handle_of if self.families.damaged else None
        put = batch.put
        for key, value in pairs:
            put(key, value, handle if handle_of is None else handle_of(key_time(key)))
        low, high = self.window.low, self.window.high
        near = [pair for pair in pairs if low <= pair[0] < high]
        record = replace(self._core.record, harvested=harvested, written=self._core.record.written + bool(entries))
        acked = self._acked_already(placed)
        uncounted = self._views.stage_uncounted(batch, self._miscounted(acked) if placed else [])
        moved = self.damage.stage_new(batch, placed) if handle_of is not None else set()
        if placed:
            self._stage_positions(batch, placed, record.written)
        self._core.write_topic(record, batch)
        self._views.staged_uncounted(uncounted)
        if not placed:
            return
        self.families.moved(moved)
        self._journal.written(len(placed))
        self.table.add(placed)
        self._due.invalidate()
        if near:
            self.window.insert(near)
        for view, known in acked:
            for one in known:
                view.counter.count_stored(one.ledger, one.entry, one.deliver_at_ms)
        self._note_late(placed)

    def _stage_positions(self, batch: Any, placed: list[PlacedEntry], number: int) -> None:
        put, handle = batch.put, list(self.families.all())[-1].handle
        keys = []
        for key, value in encode_records(placed, number):
            put(key, value, handle)
            keys.append(key)
        self._journal.stage(batch, number, keys)

    def _miscounted(self, acked: list[tuple[SubscriptionView, list[PlacedEntry]]]) -> list[SubscriptionView]:
        """Return the views whose stored counters may not fit their stored acks once new entries are in."""
        return [view for view, _ in acked] + [view for view in self._views.by_name.values() if view.was_reset]

    def _acked_already(self, placed: list[PlacedEntry]) -> list[tuple[SubscriptionView, list[PlacedEntry]]]:
        """Return the views that have acked some of the entries, as happens in what is filled in behind."""
        if not placed:
            return []
        lowest = placed[0][:2]
        found = []
        for view in self._views.by_name.values():
            if view.acks.highest >= lowest:
                contains = view.acks.contains
                known = [one for one in placed if contains(one[0], one[1])]
                if known:
                    found.append((view, known))
        return found

    def _note_late(self, placed: list[PlacedEntry]) -> None:
        """Tell the views of new entries that lie before their cursors."""
        pack = KEY.pack
        for view in self._views.by_name.values():
            cursor_ms = key_time(view.cursor)
            late = [one for one in placed if one[2] <= cursor_ms]
            if late:
                view.note_late([pack(time, ledger, entry) for ledger, entry, time, _ in late])


def _encoded(entries: list[NewEntry]) -> tuple[list[tuple[Key, Key]], list[PlacedEntry]]:
    """Return the stored (key, value) pairs in key order, and the entries by position, in that order."""
    pack = KEY.pack
    new, cls = tuple.__new__, PlacedEntry  # half the time of calling the class
    pairs: list[tuple[Key, Key]] = []
    placed: list[PlacedEntry] = []
    for deliver_at, ledger, entry, messages, raw in entries:
        if not 0 <= deliver_at <= MAX_TIMESTAMP_MS:
            deliver_at = clamp_timestamp(deliver_at)
        value = encode_value(messages, raw)
        pairs.append((pack(deliver_at, ledger, entry), value))
        placed.append(new(cls, (ledger, entry, deliver_at, KEY_LENGTH + len(value))))
    # RocksDB finds the place of a key faster when it lies right after the one before.
    pairs.sort()
    placed.sort()
    return pairs, placed
