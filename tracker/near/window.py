"""The near term: the entries that come due next, in memory, shared by all views of a topic."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from tracker.entries import DueEntry
from tracker.keys import FIRST_KEY
from tracker.limits import IndexLimits
from tracker.near.packed_block import WINDOW_ENTRY_OVERHEAD, PackedBlock


class NearTermWindow:
    """A key range [low, high) of the index. Everything stored in that range is in here, and nothing else.

    The range is cut into blocks: `_bounds[n]` is where block n begins, and it ends where the next one begins. A block
    is sorted when it is read, or when many entries came in since; one that grew too large is split on that occasion.
    """

    def __init__(self, budget_bytes: int, limits: IndexLimits) -> None:
        """Start as an empty range; the budget counts stored values and what it takes to hold them."""
        self.budget_bytes = budget_bytes
        self._limits = limits
        self.low = FIRST_KEY
        self.high = FIRST_KEY
        self.bytes_held = 0
        self._count = 0
        self._bounds: list[bytes] = []
        self._blocks: list[PackedBlock] = []

    def __len__(self) -> int:
        """Return how many entries are held."""
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether reading ahead should stop; a part of the budget is left for arriving entries."""
        return self.bytes_held >= self.budget_bytes * self._limits.near_term_fill

    def covers(self, key: bytes) -> bool:
        """Tell whether a key or bound lies in the range."""
        return self.low <= key < self.high

    # --- reading

    def get(self, key: bytes) -> DueEntry | None:
        """Return the entry of a key if it is in memory."""
        # Nothing is sorted for this: single keys may be asked for in every block between two insertions.
        return self._blocks[self._block_of(key)].get(key) if self._blocks and self.covers(key) else None

    def first_from(self, key: bytes) -> bytes | None:
        """Return the first key in memory at or after one."""
        at = self._block_of(key)
        while at < len(self._blocks):
            block = self._settle(at)
            place = block.rank(key)
            if place < len(block):
                return block.key_at(place)
            at += 1
        return None

    def slice(self, start: bytes, end: bytes) -> Iterator[DueEntry]:
        """Iterate over the entries with start <= key < end, in order; the window must not change meanwhile."""
        at, step = self._block_of(start), self._limits.window_read_entries
        while at < len(self._blocks) and self._bounds[at] < end:
            block = self._settle(at)
            first, last = block.rank(start), block.rank(end)
            for place in range(first, last, step):
                yield from block.entries(place, min(place + step, last))
            at += 1

    def count(self, start: bytes, end: bytes) -> int:
        """Return how many entries have start <= key < end."""
        total = 0
        for at in self._blocks_between(start, end):
            block = self._blocks[at]
            if self._is_within(at, start, end):
                total += len(block)
            else:
                block.normalise()
                total += block.rank(end) - block.rank(start)
        return total

    # --- filling

    def insert(self, entries: list[tuple[bytes, bytes]]) -> None:
        """Take in new (key, stored value) pairs whose keys the range covers, in any order.

        The far end is cut when they do not fit the budget.
        """
        if not self._blocks and entries:
            self._bounds.append(self.low)
            self._blocks.append(PackedBlock())
        bounds, blocks, find = self._bounds, self._blocks, bisect_right
        load, most = self._limits.window_block_entries, self._limits.window_tail_bytes
        # Blocks that fill up evenly are ripe all at once: most of them wait for a later call, up to twice the load.
        settles = -(-len(entries) // load)
        size = 0
        for key, value in entries:
            at = find(bounds, key) - 1
            block = blocks[at]
            block.tail_keys += key
            values, ends = block.tail_values, block.tail_ends
            values += value
            ends.append(len(values))
            size += len(value)
            if (len(ends) >= load and (settles > 0 or len(ends) >= 2 * load)) or len(values) >= most:
                self._settle(at)
                settles -= 1
        self._count += len(entries)
        self.bytes_held += size + len(entries) * WINDOW_ENTRY_OVERHEAD
        if self.bytes_held > self.budget_bytes:
            self._cut_far_end()

    def extend(self, pairs: Iterable[tuple[bytes, bytes]], high: bytes) -> None:
        """Append the (key, stored value) pairs that were read from the range's end on and move the end."""
        load, most = self._limits.window_block_entries, self._limits.window_block_bytes
        keys: list[bytes] = []
        values: list[bytes] = []
        size = 0
        for key, value in pairs:
            if keys and (len(keys) >= load or size + len(value) > most):
                self._append(keys, values, size)
                keys, values, size = [], [], 0
            keys.append(key)
            values.append(value)
            size += len(value)
        if keys:
            self._append(keys, values, size)
        self.high = high

    # --- letting go

    def release_below(self, bound: bytes, limit: int) -> bool:
        """Let go of at most `limit` entries before a bound and move the range's start; True when some are left."""
        at, left = 0, False
        while at < len(self._blocks) and self._end_of(at) <= bound and len(self._blocks[at]) <= limit:
            limit -= len(self._blocks[at])
            at += 1
        if at < len(self._blocks) and self._bounds[at] < bound:
            block = self._blocks[at]
            block.normalise()
            place = block.rank(bound)
            if place > limit:
                left, place, bound = True, limit, block.key_at(limit)
            self._trim(at, 0, place)
        self._drop_blocks(0, at)
        self.low = max(self.low, min(bound, self.high))
        if self._bounds:
            self._bounds[0] = self.low
        return left

    def remove_range(self, start: bytes, end: bytes) -> None:
        """Let go of dropped entries with start <= key < end; the range stays."""
        reached = self._blocks_between(start, end)
        # Looked at before anything moves, taken apart from the far end on.
        for at, whole in reversed([(at, self._is_within(at, start, end)) for at in reached]):
            if whole:
                self._drop_blocks(at, at + 1)
            else:
                block = self._blocks[at]
                block.normalise()
                self._trim(at, block.rank(start), block.rank(end))

    def cut_at(self, bound: bytes) -> None:
        """Let go of everything from a bound on: the range ends there, or nowhere if it began later."""
        if bound <= self.low:
            self.restart_at(self.low)
        elif bound < self.high:
            self.remove_range(bound, self.high)
            self.high = bound

    def restart_at(self, bound: bytes) -> None:
        """Become an empty range elsewhere."""
        self._bounds.clear()
        self._blocks.clear()
        self._count = self.bytes_held = 0
        self.low = self.high = bound

    def check(self) -> None:
        """Raise AssertionError when the blocks, their bounds or the totals disagree. Reads all: for tests."""
        assert self.low <= self.high, "window turned over"
        assert len(self._bounds) == len(self._blocks), "as many bounds as blocks"
        assert self._bounds == sorted(set(self._bounds)), "bounds out of order"
        assert self._bounds[:1] in ([], [self.low]), "the first block begins elsewhere than the window"
        for at, block in enumerate(self._blocks):
            block.check()
            assert len(block) > 0, "an empty block"
            keys = block.all_keys()
            assert self._bounds[at] <= min(keys), "a key before its block"
            assert max(keys) < self._end_of(at), "a key after its block"
        assert self._count == sum(len(block) for block in self._blocks), "entries miscounted"
        assert self.bytes_held == sum(block.size for block in self._blocks), "bytes miscounted"

    # --- inside

    def _block_of(self, key: bytes) -> int:
        """Return the block a key belongs to; the first one for whatever comes before the range."""
        return max(0, bisect_right(self._bounds, key) - 1)

    def _blocks_between(self, start: bytes, end: bytes) -> range:
        return range(self._block_of(start), bisect_left(self._bounds, end) if start < end else 0)

    def _end_of(self, at: int) -> bytes:
        return self._bounds[at + 1] if at + 1 < len(self._bounds) else self.high

    def _is_within(self, at: int, start: bytes, end: bytes) -> bool:
        return start <= self._bounds[at] and self._end_of(at) <= end

    def _settle(self, at: int) -> PackedBlock:
        """Sort a block and split it if it is too large; return the one now in its place."""
        block = self._blocks[at]
        block.normalise()
        limits = self._limits
        parts = block.split(limits.window_block_entries, limits.window_block_bytes)
        if len(parts) > 1:
            self._blocks[at : at + 1] = parts
            self._bounds[at + 1 : at + 1] = [part.key_at(0) for part in parts[1:]]
        return parts[0]

    def _append(self, keys: list[bytes], values: list[bytes], size: int) -> None:
        """Take in entries beyond all others, into the last block or one after it."""
        last = self._blocks[-1] if self._blocks else None
        if (
            last is not None
            and len(last) + len(keys) <= self._limits.window_block_entries
            and last.value_bytes + size <= self._limits.window_block_bytes
        ):
            last.normalise()
        else:
            last = PackedBlock()
            self._bounds.append(keys[0] if self._blocks else self.low)
            self._blocks.append(last)
        last.append(keys, values)
        self._count += len(keys)
        self.bytes_held += size + len(keys) * WINDOW_ENTRY_OVERHEAD

    def _cut_far_end(self) -> None:
        enough = self.budget_bytes * self._limits.near_term_fill
        while self.bytes_held > self.budget_bytes:
            at = len(self._blocks) - 1
            last = self._blocks[at]
            if self.bytes_held - last.size >= enough:
                # Whole blocks are cut without sorting them, as long as reading ahead would not bring them back.
                self.high = last.first_key()
                self._drop_blocks(at, at + 1)
                continue
            last = self._settle(at)
            if at == len(self._blocks) - 1:
                place = last.fitting(self.budget_bytes - (self.bytes_held - last.size))
                self.high = last.key_at(place)
                self._trim(at, place, len(last))

    def _trim(self, at: int, first: int, last: int) -> None:
        """Let go of the entries of a sorted block at the places first <= place < last."""
        block = self._blocks[at]
        if last - first == len(block):
            self._drop_blocks(at, at + 1)
            return
        self.bytes_held -= block.size
        block.remove(first, last)
        self.bytes_held += block.size
        self._count -= last - first

    def _drop_blocks(self, first: int, last: int) -> None:
        for block in self._blocks[first:last]:
            self._count -= len(block)
            self.bytes_held -= block.size
        del self._blocks[first:last], self._bounds[first:last]
        if first == 0 and self._bounds:
            self._bounds[0] = self.low
