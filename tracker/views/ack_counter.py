"""How many entries of each time partition a subscription has acked, so that pending is known without reading any.

Acks name positions, counters stand by due time. Where the due time is known (the entry was handed out, or is being
stored) an ack is counted at once. The others wait here and are looked up in the positions' records some at a time:

- single acks of entries that were not handed out, as when another bridge delivered them: by ledger, as bitmaps;
- stretches, when the mark-delete position jumps: what lies in (after, upto] and was not acked one by one before.

Until those are worked off `settled` is False and the counters are too low.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pyroaring import BitMap

from tracker.partitions.columns import pack_column, unpack_column
from tracker.partitions.page import PAGE_PARTITIONS
from tracker.partitions.positions import BLOCK_ENTRIES, PositionIndex
from tracker.partitions.reader import DiskReader
from tracker.partitions.table import PartitionTable
from tracker.position import EARLIEST, Position
from tracker.views.ack_set import AckSet


@dataclass
class Stretch:
    """Acked positions in (after, upto] that are to be counted, but for those counted when they were acked singly."""

    after: Position
    upto: Position
    counted: dict[int, Any] = field(default_factory=dict)

    def covers(self, ledger: int, entry: int) -> bool:
        """Tell whether this will count a position."""
        return self.after < (ledger, entry) <= self.upto and entry not in self.counted.get(ledger, ())

    def is_everything(self, highest: Position) -> bool:
        """Tell whether this counts every entry up to a position."""
        return self.after == EARLIEST and self.upto >= highest and not self.counted


class AckCounter:
    """Counters by partition page; `dirty` holds the pages that changed since they were stored last."""

    def __init__(self, width_ms: int) -> None:
        """Start with nothing acked."""
        self.total = 0
        self.dirty: set[int] = set()
        self._width = width_ms
        self._pages: dict[int, array[int]] = {}
        self._totals: dict[int, int] = {}
        self._singles: dict[int, Any] = {}
        self._stretches: list[Stretch] = []
        self._held = False

    @property
    def settled(self) -> bool:
        """Whether every ack is counted."""
        return not self._singles and not self._stretches and not self._held

    @property
    def held(self) -> bool:
        """Whether stored entries may be acked that are neither counted nor waiting."""
        return self._held

    def acked_in(self, number: int) -> int:
        """Return how many entries of a partition are acked."""
        page = self._pages.get(number // PAGE_PARTITIONS)
        return 0 if page is None else page[number % PAGE_PARTITIONS]

    def acked_on_page(self, page_number: int) -> int:
        """Return how many entries of a page's partitions are acked."""
        return self._totals.get(page_number, 0)

    def acked_between(self, page_number: int, first: int, end: int) -> int:
        """Return how many entries of a page's partitions with first <= slot < end are acked."""
        page = self._pages.get(page_number)
        return 0 if page is None else sum(page[first:end])

    def count(self, deliver_at_ms: int) -> None:
        """Count one acked entry."""
        number = deliver_at_ms // self._width
        page_number = number // PAGE_PARTITIONS
        page = self._pages.get(page_number)
        if page is None:
            page = self._pages[page_number] = array("I", bytes(4 * PAGE_PARTITIONS))
            self._totals[page_number] = 0
        page[number % PAGE_PARTITIONS] += 1
        self._totals[page_number] += 1
        self.total += 1
        self.dirty.add(page_number)

    def count_stored(self, ledger: int, entry: int, deliver_at_ms: int) -> None:
        """Count an acked entry that is being stored only now, unless it will be found later anyway."""
        if entry in self._singles.get(ledger, ()) or any(known.covers(ledger, entry) for known in self._stretches):
            return
        self.count(deliver_at_ms)

    def note_single(self, ledger: int, entry: int) -> None:
        """Have a newly acked position looked up."""
        bitmap = self._singles.get(ledger)
        if bitmap is None:
            bitmap = self._singles[ledger] = BitMap()
        bitmap.add(entry)

    def note_change(self, before: AckSet, after: AckSet) -> None:
        """Have all looked up that `after` acks and `before`, an earlier state of the same cursor, does not."""
        for ledger, bitmap in after.newly_acked(before):
            known = self._singles.get(ledger)
            self._singles[ledger] = bitmap if known is None else known | bitmap
        if after.mark_delete_position > before.mark_delete_position:
            start, end = before.mark_delete_position, after.mark_delete_position
            if before.covers_range(start, end):
                return
            self._stretches.append(Stretch(start, end, before.single_acks(end.ledger)))

    def recount(self, acks: AckSet) -> None:
        """Start over: have everything acked looked up."""
        self.clear()
        self.note_change(AckSet(), acks)

    def hold(self) -> None:
        """Count as unsettled until the next `recount`: entries are being stored that may be acked already."""
        self._held = True

    def take_all(self, table: PartitionTable) -> None:
        """Count every stored entry as acked."""
        self.clear()
        for page in table.pages():
            self._pages[page.number] = array("I", page.counts)
            self._totals[page.number] = page.total
            self.dirty.add(page.number)
        self.total = table.entries

    def clear(self) -> None:
        """Count nothing."""
        self.dirty.update(self._pages)
        self._pages.clear()
        self._totals.clear()
        self._singles.clear()
        self._stretches.clear()
        self._held = False
        self.total = 0

    def forget(self, number: int) -> None:
        """Forget a dropped partition."""
        page_number, slot = divmod(number, PAGE_PARTITIONS)
        page = self._pages.get(page_number)
        if page is None or not page[slot]:
            return
        self.total -= page[slot]
        self._totals[page_number] -= page[slot]
        page[slot] = 0
        if not self._totals[page_number]:
            del self._pages[page_number], self._totals[page_number]
        self.dirty.add(page_number)

    def settle(
        self, positions: PositionIndex, disk: DiskReader, table: PartitionTable, highest: Position, limit: int
    ) -> bool:
        """Look up at most about `limit` blocks of positions; return True when some are left. Raises StoreError.

        No stored entry lies above `highest`.
        """
        if not self.total and len(self._stretches) == 1 and self._stretches[0].is_everything(highest):
            self.take_all(table)
        while limit > 0 and (self._singles or self._stretches):
            if self._singles:
                limit -= self._settle_singles(positions, disk, table)
            else:
                limit -= self._settle_stretch(self._stretches[0], positions, disk, table, limit)
        return bool(self._singles or self._stretches)

    def record(self, page_number: int) -> bytes | None:
        """Return the stored form of a page, None when it counts nothing."""
        page = self._pages.get(page_number)
        return None if page is None else pack_column(page)

    def load(self, page_number: int, record: bytes, table: PartitionTable) -> None:
        """Put a stored page back, but for partitions dropped since."""
        counts = unpack_column("I", record)
        page = table.page(page_number)
        for slot in range(PAGE_PARTITIONS):
            if counts[slot] and (page is None or not page.entries_in(slot)):
                counts[slot] = 0
                self.dirty.add(page_number)
        if any(counts):
            self._pages[page_number] = counts
            self._totals[page_number] = sum(counts)
            self.total += self._totals[page_number]

    def pages(self) -> Iterator[tuple[int, int]]:
        """Yield (partition number, acked) for each partition with acked entries (for checks)."""
        for page_number in sorted(self._pages):
            for slot, acked in enumerate(self._pages[page_number]):
                if acked:
                    yield page_number * PAGE_PARTITIONS + slot, acked

    def is_waiting(self, ledger: int, entry: int) -> bool:
        """Tell whether a position is still to be looked up (for checks)."""
        return entry in self._singles.get(ledger, ()) or any(known.covers(ledger, entry) for known in self._stretches)

    def _settle_singles(self, positions: PositionIndex, disk: DiskReader, table: PartitionTable) -> int:
        ledger, waiting = next(iter(self._singles.items()))
        first = waiting.min()
        start = first - first % BLOCK_ENTRIES
        upto = Position(ledger, start + BLOCK_ENTRIES - 1)
        block = BitMap(waiting)
        block &= BitMap(range(first, start + BLOCK_ENTRIES))
        for _, times in positions.blocks(Position(ledger, start - 1), upto):
            for entry in block:
                if entry in times:
                    self._count_existing(ledger, entry, times[entry], disk, table)
        waiting -= block
        if waiting:
            self._singles[ledger] = waiting
        else:
            del self._singles[ledger]
        return 1

    def _settle_stretch(
        self, stretch: Stretch, positions: PositionIndex, disk: DiskReader, table: PartitionTable, limit: int
    ) -> int:
        done = 0
        for ledger, times in positions.blocks(stretch.after, stretch.upto):
            counted = stretch.counted.get(ledger, ())
            for entry, deliver_at in times.items():
                if entry not in counted:
                    self._count_existing(ledger, entry, deliver_at, disk, table)
            stretch.after = Position(ledger, max(times))
            done += 1
            if done >= limit:
                return done
        self._stretches.remove(stretch)
        return done + 1

    def _count_existing(
        self, ledger: int, entry: int, deliver_at_ms: int, disk: DiskReader, table: PartitionTable
    ) -> None:
        number = deliver_at_ms // self._width
        # Where partitions were dropped, the position's record may be older than what is stored there now; in a bulk
        # load it is there before the entry.
        if not table.entries_in(number):
            return
        hint_is_enough = number > table.dropped_number and not table.loading
        if hint_is_enough or disk.contains_position(deliver_at_ms, ledger, entry):
            self.count(deliver_at_ms)
