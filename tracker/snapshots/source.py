"""An index as a snapshot is taken of it: what it holds, read by a thread in small pieces while the index goes on.

What is read at different times fits together for three reasons. What is added meanwhile lies above the position where
it began, and is left out. What is dropped meanwhile was acked by everybody before the end, when floor and acks are
taken. Whatever else brings entries in, or loses some, is counted, and makes the attempt void.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from tracker.care.damage import Damage
from tracker.errors import StoreError
from tracker.index_core import IndexCore
from tracker.keys import KEY, successor, time_bound
from tracker.partitions.page import PartitionPage
from tracker.partitions.positions import BLOCK_KEY_LENGTH, PlacedEntry, decode_record, records_upto
from tracker.position import Position
from tracker.snapshots.contents import ViewCopy

READ_AT_ONCE: Final = 500
"""Entries read by one iterator: while one is open, a store that failed cannot be opened anew."""


class Abandoned(Exception):
    """Raised by whoever pauses a thread, to end what it does."""


Pause = Callable[[], None]
"""Called after a few entries, on the thread that reads: lets others run, raises whatever is to end it."""
PAUSE_ENTRIES: Final = 50


class Begun(NamedTuple):
    """A snapshot under way: what is above `upto` is not in it."""

    upto: Position
    refilled: int


class Ended(NamedTuple):
    """What is said of it once its entries are written."""

    after: Position
    dropped_number: int
    views: list[ViewCopy]


class SnapshotSource:
    """Of one index; `pairs` and `placed` are for a thread, the rest for the one that the index is used by."""

    def __init__(self, core: IndexCore, damage: Damage) -> None:
        """Look at an index."""
        self._core = core
        self._damage = damage

    @property
    def is_whole(self) -> bool:
        """Whether the index has all that it is to have: nothing is damaged, left out, or being brought in."""
        core = self._core
        known = core.record.harvested is not None and core.record.floor is not None
        busy = self._damage.is_any or core.table.loading or core.is_counting or core.store.failure is not None
        return known and not busy and all(view.covered for view in core.views.by_name.values())

    def begin(self) -> Begun | None:
        """Return what is to be in a snapshot; None when the index is not whole."""
        return Begun(self._core.harvested, self._core.refilled) if self.is_whole else None

    def page_numbers(self) -> list[int]:
        """Return the numbers of the pages of partition counters."""
        return [page.number for page in self._core.table.pages()]

    def copies(self, numbers: Sequence[int]) -> list[PartitionPage]:
        """Return copies of some pages that still hold entries."""
        pages = map(self._core.table.page, numbers)
        return [page.copy() for page in pages if page is not None and page.total]

    def end(self, begun: Begun) -> Ended | None:
        """Return what is true of all that was read since; None when that does not fit together."""
        core = self._core
        if not self.is_whole or core.refilled != begun.refilled or core.harvested < begun.upto:
            return None
        views = [
            ViewCopy(view.name, view.covered, view.history, view.acks.copy()) for view in core.views.by_name.values()
        ]
        return Ended(min(core.floor, begun.upto), core.record.dropped_number, views)

    # --- for a thread

    def pairs(self, numbers: Sequence[int], upto: Position, pause: Pause) -> Iterator[tuple[bytes, bytes]]:
        """Yield the (key, value) pairs of time partitions up to a position, in order; numbers ascend.

        Raises StoreError, and what `pause` raises.
        """
        width, unpack = self._core.partition_width_ms, KEY.unpack
        for first, end in _stretches(numbers):
            key, stop = time_bound(first * width), time_bound(end * width)
            while some := self._some(key, stop, pause):
                yield from (pair for pair in some if unpack(pair[0])[1:] <= upto)
                key = successor(some[-1][0])

    def placed(self, upto: Position, pause: Pause) -> Iterator[PlacedEntry]:
        """Yield what is noted of positions up to one, in order: a hint, the entry may be gone. Raises as `pairs`."""
        key, stop = records_upto(upto)
        block: dict[tuple[int, int], PlacedEntry] = {}
        of = b""
        while some := self._some(key, stop, pause):
            for key, record in some:
                if key[:BLOCK_KEY_LENGTH] != of:
                    yield from (block[position] for position in sorted(block))
                    block, of = {}, key[:BLOCK_KEY_LENGTH]
                block.update((one[:2], one) for one in decode_record(key, record) if one[:2] <= upto)
                pause()
            key = successor(key)
        yield from (block[position] for position in sorted(block))

    def _some(self, key: bytes, stop: bytes, pause: Pause) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        try:
            iterator: Any = self._core.families.main.reader.iter()
            iterator.seek(key)
            while len(found) < READ_AT_ONCE and iterator.valid() and (one := iterator.key()) < stop:
                found.append((one, iterator.value()))
                iterator.next()
                if len(found) % PAUSE_ENTRIES == 0:
                    pause()
            iterator.status()
        except (StoreError, Abandoned):
            raise
        except Exception as error:
            raise StoreError(f"cannot read the index of {self._core.topic}: {error}") from error
        return found


def _stretches(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, end) of each run of neighbouring numbers."""
    if not numbers:
        return
    first = numbers[0]
    for before, after in pairwise(numbers):
        if after != before + 1:
            yield first, before + 1
            first = after
    yield first, numbers[-1] + 1
