"""What an index holds, in a form that can be compared with what a topic holds: fingerprints of cells.

What is due later is cut into blocks of 512 positions, so that a difference leads to a few positions. What is due, or
soon is, may be delivered, acked and dropped while it is compared, but only a whole time partition at a time: there a
cell is a time partition, and one that is gone at the end does not count. Equal fingerprints mean equal sets of
(timestamp, ledger, entry).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, takewhile
from typing import Final

from tracker.fingerprint import Fingerprint, fingerprint_of_hashes, hashes_of
from tracker.keys import FIRST_KEY, KEY, encode_key, successor, time_bound
from tracker.partitions.positions import BLOCK_ENTRIES, BLOCK_SHIFT
from tracker.position import Position
from tracker.topic_index import TopicIndex

Cell = tuple[int, int]
"""A ledger and entry number divided by 512; or PARTITION and the number of a time partition."""
PARTITION = -1

AUDIT_KEYS: Final = 1_000
"""Keys read in one go for an audit: 1 ms."""
AUDIT_LOOKUPS: Final = 100
"""Keys looked up in one go for an audit: 1 ms."""
AUDIT_HELD_MAX: Final = 10_000
"""Time partitions that have passed, or soon will, and are compared one by one: the oldest; later ones are left out."""


@dataclass(frozen=True)
class Scope:
    """What is compared: positions in (after, upto] with due times from time partition `cut` on, or in one of `held`."""

    after: Position
    upto: Position
    width_ms: int
    cut: int = 0
    held: tuple[int, ...] = ()

    @cached_property
    def held_set(self) -> frozenset[int]:
        """The same as `held`, to be looked up in."""
        return frozenset(self.held)

    def has(self, deliver_at_ms: int, position: Position) -> bool:
        """Tell whether an entry is compared."""
        number = deliver_at_ms // self.width_ms
        return self.after < position <= self.upto and (number >= self.cut or number in self.held_set)


def audit_scope(index: TopicIndex, after: Position, upto: Position, now_ms: int, lasts_ms: int) -> Scope:
    """Return what can be compared in (after, upto] by someone who needs `lasts_ms` for it."""
    width = index.partition_width_ms
    cut = (now_ms + lasts_ms) // width + 1
    now = now_ms // width
    passed = takewhile(lambda number: number < now, (known.number for known in index.table.from_number(0)))
    held = (*islice(passed, AUDIT_HELD_MAX), *range(now, min(cut, now + AUDIT_HELD_MAX)))
    return Scope(after, upto, width, cut, held)


def cell_fingerprints(
    keys: Sequence[bytes], scope: Scope, hashes: Sequence[int] | None = None
) -> dict[Cell, Fingerprint]:
    """Return the fingerprint of each cell, over those of the stored keys that are in the scope.

    `hashes`: of the keys, where somebody has them already.
    """
    after, upto, held = scope.after, scope.upto, scope.held_set
    first_ahead_ms = scope.cut * scope.width_ms
    by_cell: defaultdict[Cell, list[int]] = defaultdict(list)
    hashes = hashes_of(keys) if hashes is None else hashes
    for hashed, (due, ledger, entry) in zip(hashes, KEY.iter_unpack(b"".join(keys)), strict=True):
        if not after < (ledger, entry) <= upto:
            continue
        if due >= first_ahead_ms:
            cell = ledger, entry >> BLOCK_SHIFT
        elif (number := due // scope.width_ms) in held:
            cell = PARTITION, number
        else:
            continue
        by_cell[cell].append(hashed)
    return {cell: fingerprint_of_hashes(some) for cell, some in by_cell.items()}


def index_fingerprints(index: TopicIndex, scope: Scope) -> Iterator[dict[Cell, Fingerprint]]:
    """Yield parts of what an index holds, to be added up; others may have their turn in between."""
    for number in scope.held:
        for keys in partition_keys(index, number):
            yield cell_fingerprints(keys, scope)
    for keys in keys_between(index, time_bound(scope.cut * scope.width_ms), time_bound(2**64)):
        yield cell_fingerprints(keys, scope)


def partition_keys(index: TopicIndex, number: int) -> Iterator[list[bytes]]:
    """Yield the keys of a time partition, some at a time; others may have their turn in between."""
    width = index.partition_width_ms
    return keys_between(index, time_bound(number * width), time_bound((number + 1) * width))


def all_keys(index: TopicIndex) -> Iterator[list[bytes]]:
    """Yield all keys, some at a time; others may have their turn in between."""
    return keys_between(index, FIRST_KEY, time_bound(2**64))


def keys_between(index: TopicIndex, start: bytes, end: bytes) -> Iterator[list[bytes]]:
    """Yield the keys with start <= key < end, likewise."""
    while keys := list(islice(index.reader.keys(start, end), AUDIT_KEYS)):
        yield keys
        start = successor(keys[-1])


def noted_fingerprints(index: TopicIndex, scope: Scope, cells: Iterable[Cell]) -> Iterator[dict[Cell, Fingerprint]]:
    """Yield the same for a few cells, by looking up what is noted of their positions: far cheaper in a large index.

    What the index holds without a note of it is not found. Cells that are time partitions are read.
    """
    for cell in cells:
        if cell[0] == PARTITION:
            yield from index_fingerprints(index, Scope(scope.after, scope.upto, scope.width_ms, 2**62, (cell[1],)))
            continue
        keys = [key for key in _noted_keys(index, scope, cell) if key_is_ahead(key, scope)]
        for start in range(0, len(keys), AUDIT_LOOKUPS):
            found = [key for key in keys[start : start + AUDIT_LOOKUPS] if index.reader.contains(key)]
            yield cell_fingerprints(found, scope)


def key_is_ahead(key: bytes, scope: Scope) -> bool:
    """Tell whether a key belongs to a cell of positions."""
    return key >= time_bound(scope.cut * scope.width_ms)


def block_range(scope: Scope, block: Cell) -> tuple[Position, Position]:
    """Return the positions (after, upto] of a block that are in the scope."""
    ledger, first = block[0], block[1] << BLOCK_SHIFT
    start = max(scope.after, Position(ledger, first - 1))
    return start, min(scope.upto, Position(ledger, first + BLOCK_ENTRIES - 1))


def _noted_keys(index: TopicIndex, scope: Scope, block: Cell) -> list[bytes]:
    noted = index.positions.blocks(*block_range(scope, block))
    return [encode_key(due, ledger, entry) for ledger, times in noted for entry, due in times.items()]


def add_up(total: dict[Cell, Fingerprint], part: dict[Cell, Fingerprint]) -> None:
    """Add a part to a total."""
    for cell, found in part.items():
        known = total.get(cell)
        total[cell] = found if known is None else known.plus(found)
