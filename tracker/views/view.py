"""What one subscription costs: a cursor in due time, its acks, and what it has been handed out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from sortedcontainers import SortedList

from tracker.entries import DueEntry
from tracker.keys import FIRST_KEY, KEY, KEY_TIME
from tracker.position import Position
from tracker.views.ack_counter import AckCounter
from tracker.views.ack_set import AckedIn, AckSet


class SubscriptionView:
    """One subscription's progress through a topic index.

    Entries before `cursor` are acked, `outstanding` (handed out, not acked) or late (stored behind the cursor, not
    handed out yet). Those at or after it were not looked at, or will be looked at again after the cursor moved back.
    `active` is set by the owner while the subscription has consumers; `covered` once no part of its backlog is
    missing in the index (persisted with the acks). `counter` knows how many entries of each time partition are acked.
    """

    def __init__(
        self, name: str, partition_width_ms: int, acks: AckSet, late_keys_max: int, covered: bool = False
    ) -> None:
        """Start with the cursor before everything; `late_keys_max`: as of `IndexLimits`."""
        self.name = name
        self.acks = acks
        self.counter = AckCounter(partition_width_ms)
        self.active = False
        self.covered = covered
        self.dispatched_until_ms = -1
        """No entry was handed to a consumer later than that, by whoever had this index; -1 when nobody knows."""
        self.history = 0
        """Of which history of the broker's cursor the acks are: persisted with them; 0 when nobody knows."""
        self.was_reset = False
        """Whether the stored acks may hold some that were taken back since."""
        self.cursor = FIRST_KEY
        self.outstanding: dict[tuple[int, int], bytes] = {}
        self.is_passing = False
        """Whether the last look for what is due came no further than to acked entries."""
        self.peeked: tuple[int, bytes, int | None] | None = None
        """The index's cache of a disk look-up: (index version, cursor, time of the first entry)."""
        self.first_ahead: tuple[int, bytes, bytes] | None = None
        """The index's cache of the first key that waits: (index version, cursor, key)."""
        self._width = partition_width_ms
        self._late: Any = SortedList()
        self._late_keys_max = late_keys_max
        self._late_keys: dict[tuple[int, int], bytes] = {}
        self._held: dict[int, int] = {}
        self._expedited: dict[tuple[int, int], bytes] = {}
        self._to_expedite: dict[tuple[int, int], bytes] = {}

    @property
    def mark_delete_position(self) -> Position:
        """Everything at or below it is acked."""
        return self.acks.mark_delete_position

    @property
    def late_count(self) -> int:
        """How many keys behind the cursor wait to be handed out."""
        return len(self._late_keys)

    def first_late(self) -> bytes | None:
        """Return the earliest key that waits behind the cursor."""
        return self._late[0] if self._late else None

    def held_in(self, partition_number: int) -> int:
        """Return how many entries of a time partition are outstanding or late."""
        return self._held.get(partition_number, 0)

    def ack(self, ledger: int, entry: int) -> bytes | None:
        """Note an ack of any entry, known or not; return its key if it was outstanding."""
        new = self.acks.add(ledger, entry)
        position = (ledger, entry)
        key = self.outstanding.pop(position, None)
        if key is not None:
            self._release(key)
            self.counter.count(KEY_TIME.unpack_from(key)[0])
        elif new:
            late = self._forget_late(position) if self._late_keys else None
            if late is None:
                self.counter.note_single(ledger, entry)
            else:
                self.counter.count(KEY_TIME.unpack_from(late)[0])
        if self._expedited:
            self._forget_expedited(position)
        return key

    def advance(self, mark_delete_position: Position) -> None:
        """Take over the broker's mark-delete position if it is ahead; costs a pass over what is outstanding."""
        self.merge(AckSet(mark_delete_position))

    def merge(self, acks: AckSet) -> None:
        """Add what the broker knows to be acked: nothing is taken back."""
        before = self.acks.copy()
        self.acks.update(acks)
        self.counter.note_change(before, self.acks)
        contains = self.acks.contains
        for position in [known for known in self.outstanding if contains(*known)]:
            self._release(self.outstanding.pop(position))
        for position in [known for known in self._late_keys if contains(*known)]:
            self._forget_late(position)
        for position in [known for known in self._expedited if contains(*known)]:
            self._forget_expedited(position)

    def reset(self, acks: AckSet) -> None:
        """Replace the acks, as a seek does, and start over. Persist the views and sync before relying on it."""
        self.acks.replace(acks)
        self.was_reset = True
        self.counter.recount(self.acks)
        self._expedited.clear()
        self.release_all()

    def release_all(self) -> None:
        """Forget what was handed out and go back to the start: whatever is not acked is due again."""
        self.outstanding.clear()
        self._clear_late()
        self._held.clear()
        self._to_expedite = dict(self._expedited)
        self.cursor = FIRST_KEY

    def expedite(self, key: bytes) -> None:
        """Have a stored entry that is neither acked nor outstanding handed out next, without regard to its time."""
        _, ledger, entry = KEY.unpack(key)
        self._expedited[ledger, entry] = self._to_expedite[ledger, entry] = key

    @property
    def expedited(self) -> list[bytes]:
        """The keys of unacked entries to be delivered without regard to their time, handed out or not."""
        return list(self._expedited.values())

    def is_expedited(self, position: tuple[int, int]) -> bool:
        """Tell whether an unacked entry is to be delivered, or was, without regard to its time."""
        return position in self._expedited

    @property
    def has_expedited(self) -> bool:
        """Whether any such entry waits to be handed out."""
        return bool(self._to_expedite)

    def will_find(self, key: bytes) -> bool:
        """Tell whether a stored entry that is neither acked nor outstanding is looked at when its time comes."""
        position = KEY.unpack(key)[1:]
        return key >= self.cursor or position in self._late_keys or position in self._to_expedite

    def take_expedited(self, limit: int, max_bytes: int, get: Callable[[bytes], DueEntry | None]) -> list[DueEntry]:
        """Hand out at most `limit` expedited entries, read with `get`, until they weigh `max_bytes`."""
        entries: list[DueEntry] = []
        size = 0
        for position in list(self._to_expedite)[:limit]:
            due = get(self._to_expedite.pop(position))
            if due is None:
                del self._expedited[position]
                continue
            self._forget_late(position)
            entries.append(due)
            size += len(due.raw)
            if size >= max_bytes:
                break
        return self.hand_out(entries)

    def hand_out(self, entries: list[DueEntry]) -> list[DueEntry]:
        """Return those of the entries that are neither acked nor outstanding: they become it."""
        taken: list[DueEntry] = []
        take, outstanding = taken.append, self.outstanding
        acked = AckedIn(self.acks)
        for due in entries:
            key, _, ledger, entry, _, _ = due
            known = acked[ledger]
            if entry <= known[0] or entry in known[1]:
                continue
            position = (ledger, entry)
            if position not in outstanding:
                outstanding[position] = key
                take(due)
        if taken:
            self._hold_all(taken)
        return taken

    def note_late(self, keys: Iterable[bytes]) -> None:
        """Remember newly stored keys that lie before the cursor, but for those acked already."""
        for key in keys:
            _, ledger, entry = KEY.unpack(key)
            position = (ledger, entry)
            # What was handed out already comes again when a damaged partition is filled again.
            if key < self.cursor and position not in self.outstanding and not self.acks.contains(ledger, entry):
                self._late.add(key)
                self._late_keys[position] = key
                self._hold(KEY_TIME.unpack_from(key)[0] // self._width, 1)
        if len(self._late) > self._late_keys_max:
            # Reading the stretch again costs time, remembering it would cost memory without bound.
            self.cursor = self._late[0]
            self._clear_late()

    def forget_late(self, start: bytes, end: bytes) -> None:
        """Forget late keys with start <= key < end: their entries are gone."""
        for key in list(self._late.irange(start, end, (True, False))):
            self._forget_late(KEY.unpack(key)[1:])

    def rewind_to(self, start: bytes) -> None:
        """Have the cursor at a place or before it; what was handed out stays so."""
        if start < self.cursor:
            for key in list(self._late.irange(start)):
                self._forget_late(KEY.unpack(key)[1:])
            self.cursor = start

    def take_late(
        self, bound: bytes, limit: int, max_bytes: int, get: Callable[[bytes], DueEntry | None]
    ) -> list[DueEntry]:
        """Hand out at most `limit` late entries before a bound, read with `get`, until they weigh `max_bytes`."""
        count = min(limit, self._late.bisect_left(bound))
        entries: list[DueEntry] = []
        size = 0
        for key in list(self._late[:count]):
            due = get(key)
            self._forget_late(KEY.unpack(key)[1:])
            if due is not None:
                entries.append(due)
                size += len(due.raw)
                if size >= max_bytes:
                    break
        return self.hand_out(entries)

    def late_keys(self) -> list[bytes]:
        """Return the late keys in order (for checks)."""
        return list(self._late)

    def held(self) -> dict[int, int]:
        """Return the outstanding and late entries per time partition (for checks)."""
        return dict(self._held)

    def _hold_all(self, taken: list[DueEntry]) -> None:
        width = self._width
        for number, count in Counter([due[1] // width for due in taken]).items():
            self._hold(number, count)

    def _hold(self, partition_number: int, count: int) -> None:
        self._held[partition_number] = self._held.get(partition_number, 0) + count

    def _release(self, key: bytes) -> None:
        partition_number = KEY_TIME.unpack_from(key)[0] // self._width
        left = self._held[partition_number] - 1
        if left:
            self._held[partition_number] = left
        else:
            del self._held[partition_number]

    def _forget_late(self, position: tuple[int, int]) -> bytes | None:
        key = self._late_keys.pop(position, None)
        if key is not None:
            self._late.remove(key)
            self._release(key)
        return key

    def _forget_expedited(self, position: tuple[int, int]) -> None:
        self._expedited.pop(position, None)
        self._to_expedite.pop(position, None)

    def _clear_late(self) -> None:
        for key in self._late:
            self._release(key)
        self._late.clear()
        self._late_keys.clear()
