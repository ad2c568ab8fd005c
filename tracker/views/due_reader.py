"""Reading in due order: from the near-term window where it reaches, else from disk in bounded stretches."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tracker.entries import DueEntry
from tracker.errors import StoreError
from tracker.keys import KEY, key_time, successor, time_bound
from tracker.limits import IndexLimits
from tracker.near.packed_block import WINDOW_ENTRY_OVERHEAD
from tracker.near.window import NearTermWindow
from tracker.partitions.reader import DiskReader, Most
from tracker.partitions.table import PartitionTable
from tracker.views.view import SubscriptionView

_NEVER = time_bound(2**64 - 1)


class DueReader:
    """Moves the cursors of views over one index, and the window along with them."""

    def __init__(self, window: NearTermWindow, disk: DiskReader, table: PartitionTable, limits: IndexLimits) -> None:
        """Read a window and the disk behind it."""
        self.window = window
        self._disk = disk
        self._table = table
        self._limits = limits
        self._version = 0

    def invalidate(self) -> None:
        """Forget what was looked up on disk: entries came or went."""
        self._version += 1

    def get(self, key: bytes) -> DueEntry | None:
        """Return a stored entry, from memory or disk."""
        return self.window.get(key) or self._disk.get(key)

    def due(self, view: SubscriptionView, now_ms: int, limit: int, max_bytes: int) -> list[DueEntry]:
        """Hand out the next entries with deliver_at_ms <= now_ms, late ones first. See `TopicIndex.due`."""
        bound = time_bound(now_ms + 1)
        found = view.take_expedited(limit, max_bytes, self.get) if view.has_expedited else []
        if view.late_count and len(found) < limit:
            found += view.take_late(bound, limit - len(found), max_bytes, self.get)
        entries_left, keys_left = limit * self._limits.scan_factor, self._limits.scan_keys
        bytes_left = max_bytes - _size(found)
        while len(found) < limit and min(entries_left, keys_left, bytes_left) > 0 and view.cursor < bound:
            if self.window.covers(view.cursor):
                scanned, size = self._scan_window(view, bound, min(limit - len(found), entries_left), bytes_left, found)
                entries_left -= scanned
            else:
                try:
                    most = Most(limit - len(found), bytes_left, keys_left)
                    keys_left, size = self._scan_disk(view, bound, most, found)
                except StoreError:
                    if found:
                        break  # these are outstanding now; the next call says what is wrong
                    raise
            bytes_left -= size
        view.is_passing = not found and view.cursor < bound
        return found

    def next_due_ms(self, view: SubscriptionView) -> int | None:
        """Return a lower bound of when the view has something to do. See `TopicIndex.next_due_ms`."""
        if view.has_expedited:
            return 0
        late, ahead = view.first_late(), self._ahead_ms(view)
        if late is None:
            return ahead
        return key_time(late) if ahead is None else min(key_time(late), ahead)

    def first_waiting_ms(self, view: SubscriptionView) -> int | None:
        """Return when the first entry is due that nobody has or acked. See `TopicIndex.first_waiting_ms`."""
        late, ahead = view.first_late(), self._first_ahead_ms(view)
        if late is None:
            return ahead
        return key_time(late) if ahead is None else min(key_time(late), ahead)

    def pass_acked(self, view: SubscriptionView, bound: bytes) -> bool:
        """Have the cursor pass acked entries before a bound. See `TopicIndex.pass_acked`."""
        if view.cursor >= bound:
            return False
        read = self._disk.unacked(view.cursor, bound, view.acks, Most(1, 1, self._limits.scan_keys))
        view.cursor = read.entries[0].key if read.entries else read.end
        return not read.entries and read.end < bound

    def prefetch(self, views: Collection[SubscriptionView], now: bytes, end: bytes, limit: int) -> bool:
        """Read at most `limit` entries before a bound into the window. See `TopicIndex.prefetch`."""
        window = self.window
        cursors = [view.cursor for view in views if view.active] or [view.cursor for view in views]
        if not cursors:
            return False
        # A view that is far behind must not keep the window from those that are on time: it reads the disk.
        passed = max(cursors) if window.is_full else min(cursors)
        if window.release_below(passed, limit * self._limits.release_factor):
            return True
        if window.low == window.high:
            # What has passed is read from disk: after a change of owner almost all of it is acked.
            window.restart_at(max(now, *cursors))
        if window.high >= end or window.is_full:
            return False
        return self._extend_window(end, limit)

    def is_read_to(self, view: SubscriptionView, end: bytes) -> bool:
        """Tell whether nothing is stored between a view's cursor and a bound."""
        return self._disk.first_key(view.cursor, end) is None

    def _scan_window(
        self, view: SubscriptionView, bound: bytes, limit: int, max_bytes: int, found: list[DueEntry]
    ) -> tuple[int, int]:
        """Hand out entries from the window; return how many were looked at, and their bytes."""
        end = min(bound, self.window.high)
        chunk: list[DueEntry] = []
        size = 0
        for due in self.window.slice(view.cursor, end):
            chunk.append(due)
            size += len(due[5])
            if len(chunk) == limit or size >= max_bytes:
                end = successor(due[0])
                break
        view.cursor = end
        found += view.hand_out(chunk)
        return len(chunk), size

    def _scan_disk(self, view: SubscriptionView, bound: bytes, most: Most, found: list[DueEntry]) -> tuple[int, int]:
        """Hand out entries from disk, up to where the window begins; return how many keys are left, and bytes."""
        low = self.window.low
        read = self._disk.unacked(view.cursor, min(bound, low) if view.cursor < low else bound, view.acks, most)
        view.cursor = read.end  # not before everything is read: what cannot be read must not be passed over
        found += view.hand_out(read.entries)
        return read.keys_left, read.size

    def _ahead_ms(self, view: SubscriptionView) -> int | None:
        """Return the time of the first entry at or after the cursor, or of the window's end if that is all we know."""
        window = self.window
        if window.covers(view.cursor):
            key = window.first_from(view.cursor)
            if key is not None:
                return key_time(key)
            beyond = next(self._table.between(window.high, _NEVER), None)
            return None if beyond is None else key_time(max(window.high, beyond.first_key))
        if view.peeked is None or view.peeked[:2] != (self._version, view.cursor):
            key = self._disk.first_key(view.cursor, _NEVER)
            view.peeked = (self._version, view.cursor, None if key is None else key_time(key))
        return view.peeked[2]

    def _first_ahead_ms(self, view: SubscriptionView) -> int | None:
        """Look at or after the cursor, in time partitions that hold something for the view."""
        known = view.first_ahead
        if known is not None and known[:2] == (self._version, view.cursor) and not _is_taken(view, known[2]):
            return key_time(known[2])
        looked = 0
        for partition in self._table.between(view.cursor, _NEVER):
            looked += 1
            taken = view.counter.acked_in(partition.number) + view.held_in(partition.number)
            if partition.entries > taken:
                for key in self._keys(max(view.cursor, partition.first_key), partition.end_key):
                    if not _is_taken(view, key):
                        view.first_ahead = (self._version, view.cursor, key)
                        return key_time(key)
                    looked += 1
                    if looked > self._limits.first_waiting_looks:
                        return key_time(key)
            if looked > self._limits.first_waiting_looks:
                return key_time(partition.end_key)
        return None

    def _keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        window = self.window
        if window.covers(start) and end <= window.high:
            return (due.key for due in window.slice(start, end))
        return self._disk.keys(start, end)

    def _extend_window(self, end: bytes, limit: int) -> bool:
        window = self.window
        room = window.budget_bytes * self._limits.near_term_fill - window.bytes_held
        read: list[tuple[bytes, bytes]] = []
        version, high = self._version, end
        for pair in self._disk.pairs(window.high, end):
            read.append(pair)
            room -= len(pair[1]) + WINDOW_ENTRY_OVERHEAD
            if room <= 0 or len(read) == limit:
                high = successor(pair[0])
                break
        if version != self._version:  # a partition turned out to be damaged, and was taken out of the table
            width = self._table.width_ms
            read = [pair for pair in read if self._table.entries_in(key_time(pair[0]) // width)]
        window.extend(read, high)
        return high != end and room > 0


def _size(entries: list[DueEntry]) -> int:
    return sum([len(due.raw) for due in entries])


def _is_taken(view: SubscriptionView, key: bytes) -> bool:
    """Whether an entry is acked or handed out."""
    _, ledger, entry = KEY.unpack(key)
    return view.acks.contains(ledger, entry) or (ledger, entry) in view.outstanding
