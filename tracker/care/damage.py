"""What cannot be read any more: set aside, reported, and the rest brought to safety.

And what was left out on purpose, to be read later: it is missing in the same way, with nothing to report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tracker.index_core import IndexCore
from tracker.keys import KEY, KEY_LENGTH, MAX_TIMESTAMP_MS, successor
from tracker.partitions.page import PAGE_PARTITIONS, PartitionCounters
from tracker.partitions.positions import PlacedEntry, encode_records, positions_of
from tracker.partitions.reader import DamagedPartition
from tracker.position import EARLIEST, Position
from tracker.store.records import decode_counters, encode_counters, number_of

_HIGHEST = Position(2**63 - 1, 2**63 - 1)
_LOST_BLOCKS = 2**62
"""Numbers of quarantine records from here on are of positions whose due times are not known."""
_LEFT_OUT = 2**61
"""Those from here on, and below the others, are of positions that nobody has read yet."""


class DamagedRange(NamedTuple):
    """A gap to fill again: `entries` due in [start_ms, end_ms), at positions from `lowest` to `highest`.

    Where even the due times are lost, the times are all there are, and `entries` is 0.
    """

    start_ms: int
    end_ms: int
    entries: int
    lowest: Position
    highest: Position


class Damage:
    """Quarantined time partitions of an index, and its move out of a damaged column family."""

    def __init__(self, core: IndexCore) -> None:
        """Load what is known of earlier damage."""
        self._core = core
        self._store = core.store
        self._keys = core.keys
        self._families = core.families
        self._copy: _Copy | None = None
        self._known: dict[int, bytes] = {}
        self.load()

    def load(self) -> None:
        """Know what is on disk."""
        self._known = {number_of(key): record for key, record in self._store.records(self._keys.quarantined)}

    @property
    def ranges(self) -> list[DamagedRange]:
        """What was lost and is not filled again, in due order."""
        return self._ranges([number for number in self._known if not _LEFT_OUT <= number < _LOST_BLOCKS])

    @property
    def missing(self) -> list[DamagedRange]:
        """What is to be filled: what was lost, and what was left out."""
        return self._ranges(self._known)

    def _ranges(self, numbers: Iterable[int]) -> list[DamagedRange]:
        width = self._core.partition_width_ms
        found = []
        for number in sorted(numbers):
            entries, _, lowest, highest = decode_counters(self._known[number])
            if number < _LEFT_OUT:
                found.append(DamagedRange(number * width, (number + 1) * width, entries, lowest, highest))
            else:
                found.append(DamagedRange(0, MAX_TIMESTAMP_MS + 1, entries, lowest, highest))
        return found

    def note_lost(self, record_keys: list[bytes]) -> None:
        """Have positions filled again that were written lately and not counted yet: their records are damaged.

        Their entries may be there, but which they are is not known. Raises StoreError.
        """
        self._families.leave_main()
        batch = self._store.new_batch()
        for key in record_keys:
            lowest, highest = positions_of(key)
            if any(known.lowest <= lowest and highest <= known.highest for known in self.ranges):
                continue
            number = _LOST_BLOCKS + len(self._known)
            self._known[number] = encode_counters(0, 0, lowest, highest)
            batch.put(self._keys.quarantine(number), self._known[number])
        self._store.write(batch)

    def quarantine(self, damage: DamagedPartition) -> None:
        """Take a partition that cannot be read out of the index. Raises StoreError when that cannot be noted."""
        known = self._core.table.get(damage.number)
        if self._families.is_moved(damage.number) and known is not None:
            raise damage  # the family that was to be safe
        self._families.leave_main()
        if known is None:
            return
        record = encode_counters(known.entries, known.size, known.lowest, known.highest)
        batch = self._store.new_batch()
        self._families.stage_moves(batch, {known.number})
        batch.put(self._keys.quarantine(known.number), record)
        self._core.table.remove(known)
        try:
            self._core.write_pages([known.number // PAGE_PARTITIONS], batch)
        except BaseException:
            self._core.table.put(known)
            raise
        self._families.moved({known.number})
        self._known[known.number] = record
        self._core.partition_vanished(known)

    def healed(self) -> None:
        """Note that everything quarantined was filled again. Raises StoreError."""
        batch = self._store.new_batch()
        batch.delete_range(self._keys.quarantined, self._keys.quarantined + b"\xff")
        self._store.write(batch)
        self._known.clear()
        # What was handed out before the damage may have been acked before it was filled in again.
        self._core.recount_views()
        if self._families.damaged:
            self._core.hold_counters()

    def left_out_filled(self, begin: Position, upto: Position) -> None:
        """Note that of what was left out all from one position up to another is there. Raises StoreError."""
        batch = self._store.new_batch()
        changed: dict[int, bytes | None] = {}
        for number in [each for each in self._known if _LEFT_OUT <= each < _LOST_BLOCKS]:
            entries, size, lowest, highest = decode_counters(self._known[number])
            if not begin <= lowest <= upto:
                continue
            if highest <= upto:
                changed[number] = None
                batch.delete(self._keys.quarantine(number))
            else:
                record = encode_counters(entries, size, Position(upto.ledger, upto.entry + 1), highest)
                changed[number] = record
                batch.put(self._keys.quarantine(number), record)
        self._store.write(batch)
        for number, known in changed.items():
            if known is None:
                del self._known[number]
            else:
                self._known[number] = known

    def note_lost_writes(self, floor: Position, harvested: Position) -> None:
        """Have everything in (floor, harvested] read again: any of it may be missing. Raises StoreError."""
        self._families.leave_main()
        record = encode_counters(0, 0, Position(floor.ledger, floor.entry + 1), harvested)
        number = _LOST_BLOCKS + len(self._known)
        batch = self._store.new_batch()
        batch.put(self._keys.quarantine(number), record)
        self._store.write(batch)
        self._known[number] = record

    def stage_left_out(self, batch: Any, after: Position, upto: Position) -> Callable[[], None]:
        """Put into a batch that nothing in (after, upto] was read; call what is returned once it is written."""
        number = max((known for known in self._known if known < _LOST_BLOCKS), default=0)
        number = max(number + 1, _LEFT_OUT)
        record = encode_counters(0, 0, Position(after.ledger, after.entry + 1), upto)
        batch.put(self._keys.quarantine(number), record)
        return lambda: self._known.__setitem__(number, record)

    # --- moving out

    def handle_of(self, deliver_at_ms: int) -> Any:
        """Return where to write an entry while the index moves: where its partition is, if it is anywhere."""
        number = deliver_at_ms // self._core.partition_width_ms
        if self._copy is not None and self._copy.known.number == number:
            self._copy = None  # copy it again from its start
        families = self._families
        if not families.is_moved(number) and self._core.table.entries_in(number):
            return families.main.handle
        assert families.other is not None
        return families.other.handle

    def stage_new(self, batch: Any, placed: list[PlacedEntry]) -> set[int]:
        """Put into a batch that partitions which get their first entries are in the other family."""
        width, table = self._core.partition_width_ms, self._core.table
        numbers = {one.deliver_at_ms // width for one in placed}
        new = {number for number in numbers if not self._families.is_moved(number) and not table.entries_in(number)}
        self._families.stage_moves(batch, new)
        return new

    @property
    def is_any(self) -> bool:
        """Whether ranges are to be filled again, or damaged files to be left."""
        return bool(self._known) or self._families.damaged

    def move_some(self, limit: int | None = None) -> bool:
        """Move at most about `limit` entries, by default one write's, out of the damaged family; True: some are left.

        Raises StoreError; then they are where they were.
        """
        families, at_once = self._families, self._core.limits.move_entries
        limit = at_once if limit is None else limit
        if families.other is None:
            return False
        while limit > 0:
            known = next((each for each in self._core.table if not families.is_moved(each.number)), None)
            if known is None:
                self._switch()
                return False
            limit -= self._move(known, min(limit, at_once))
        return True

    def _move(self, known: PartitionCounters, limit: int) -> int:
        copy = self._copy if self._copy is not None and self._copy.known.number == known.number else _Copy(known)
        assert self._families.other is not None
        handle = self._families.other.handle
        batch = self._store.new_batch()
        placed: list[PlacedEntry] = []
        for key, value in self._core.reader.pairs(copy.next_key, known.end_key):
            batch.put(key, value, handle)
            deliver_at, ledger, entry = KEY.unpack(key)
            placed.append(PlacedEntry(ledger, entry, deliver_at, KEY_LENGTH + len(value)))
            if len(placed) == limit:
                break
        if self._families.is_moved(known.number):
            self._copy = None
            return len(placed)  # it turned out to be damaged
        placed.sort()
        for key, value in encode_records(placed, self._core.next_write):
            batch.put(key, value, handle)
        copy = copy.with_more(placed)
        if len(placed) == limit:
            self._core.write_pages([], batch)
            self._copy = copy
        else:
            self._copy = None
            self._moved(copy, batch)
        return max(len(placed), 1)

    def _moved(self, copy: _Copy, batch: Any) -> None:
        """Write the last of a partition, along with counters that are right whatever was lost of the former."""
        table, number = self._core.table, copy.known.number
        self._families.stage_moves(batch, {number})
        table.remove(copy.known)
        if copy.counters is not None:
            table.put(copy.counters)
        try:
            self._core.write_pages([number // PAGE_PARTITIONS], batch)
        except BaseException:
            if copy.counters is not None:
                table.remove(copy.counters)
            table.put(copy.known)
            raise
        self._families.moved({number})

    def _switch(self) -> None:
        self._core.clear_journal()
        batch = self._store.new_batch()
        self._families.stage_switch(batch)
        self._core.write_pages([], batch, second=not self._families.second)
        self._core.families_switched()


@dataclass(frozen=True)
class _Copy:
    """How far a partition was copied: what was counted, and where to go on."""

    known: PartitionCounters
    counters: PartitionCounters | None = None
    last: bytes | None = None

    @property
    def next_key(self) -> bytes:
        return self.known.first_key if self.last is None else successor(self.last)

    def with_more(self, placed: list[PlacedEntry]) -> _Copy:
        """Return the state after more entries, in position order."""
        if not placed:
            return self
        before = self.counters or self.known._replace(entries=0, size=0, lowest=_HIGHEST, highest=EARLIEST)
        last = max(placed, key=lambda one: (one.deliver_at_ms, one.ledger, one.entry))
        counters = before._replace(
            entries=before.entries + len(placed),
            size=before.size + sum(one.size for one in placed),
            lowest=min(before.lowest, Position(*placed[0][:2])),
            highest=max(before.highest, Position(*placed[-1][:2])),
        )
        return _Copy(self.known, counters, KEY.pack(last.deliver_at_ms, last.ledger, last.entry))
