"""A delayed index of any size, made fast: entries spread evenly over two years, in an order that looks random."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

from tracker import Position
from tracker.bulk.files import Group, Manifest, TableFile, new_manifest, write_groups, write_positions
from tracker.entries import encode_value
from tracker.keys import KEY
from tracker.limits import BulkFileLimits
from tracker.partitions.positions import PlacedEntry

BASE_MS = 1_800_000_000_000
SPAN_MS = 2 * 365 * 86_400_000
WIDTH_MS = 300_000
PAYLOAD_BYTES = 128
LEDGER_ENTRIES = 50_000
FIRST_LEDGER = 10
_NOISE = 64 * 1024 * 1024
_STEP = 6_700_417
"""Coprime to every size used: multiples of it, modulo the size, visit every number once, far apart."""
_BLOCK = 1_000
_TABLES = 64


class Spread:
    """`size` entries; by rank in due order or by number in the order of the topic.

    Neighbours in the topic must not lie a constant time apart, which would compress well: so their order is shuffled
    within blocks, differently from block to block, before they are spread.
    """

    def __init__(self, size: int, base_ms: int = BASE_MS) -> None:
        if size % _STEP == 0 or size % _BLOCK:
            raise ValueError(f"{size} is a multiple of {_STEP}, or not one of {_BLOCK}")
        self.size = size
        self._base_ms = base_ms
        self._back = pow(_STEP, -1, size)
        choose = random.Random(1)
        self._shuffled = [choose.sample(range(_BLOCK), _BLOCK) for _ in range(_TABLES)]
        self._sorted = [sorted(range(_BLOCK), key=table.__getitem__) for table in self._shuffled]

    def due_ms(self, rank: int) -> int:
        """Within the rank's share of the span, at a place that depends on it."""
        share = SPAN_MS / self.size
        return self._base_ms + int((rank + (rank * 0.618034) % 1.0) * share)

    def number_of(self, rank: int) -> int:
        block, place = divmod(rank * _STEP % self.size, _BLOCK)
        return block * _BLOCK + self._shuffled[block % _TABLES][place]

    def rank_of(self, number: int) -> int:
        block, place = divmod(number, _BLOCK)
        return (block * _BLOCK + self._sorted[block % _TABLES][place]) * self._back % self.size

    def last_position(self) -> Position:
        return Position(*position_of(self.size - 1))


def position_of(number: int) -> tuple[int, int]:
    return FIRST_LEDGER + number // LEDGER_ENTRIES, number % LEDGER_ENTRIES


def payloads() -> Iterator[bytes]:
    """Incompressible payloads without end."""
    noise = os.urandom(_NOISE)
    at = 0
    while True:
        yield noise[at : at + PAYLOAD_BYTES]
        # No two that lie near each other in a file share bytes.
        at = (at + 1_000_003) % (_NOISE - PAYLOAD_BYTES)


def write_part(
    directory: Path, topic: str, spread: Spread, part: int, parts: int
) -> tuple[list[Group], list[TableFile]]:
    """One of several parts of the files, cut at time partitions: for processes side by side."""
    low, high = spread.size * part // parts, spread.size * (part + 1) // parts

    def pairs() -> Iterator[tuple[bytes, bytes]]:
        payload = payloads()
        pack, number_of, due_ms = KEY.pack, spread.number_of, spread.due_ms
        for rank in range(_partition_start(spread, low), _partition_start(spread, high)):
            ledger, entry = position_of(number_of(rank))
            yield pack(due_ms(rank), ledger, entry), encode_value(1, next(payload))

    def placed() -> Iterator[PlacedEntry]:
        size = 24 + 1 + PAYLOAD_BYTES
        due_ms, rank_of = spread.due_ms, spread.rank_of
        for number in range(_ledger_start(low), high if part == parts - 1 else _ledger_start(high)):
            yield PlacedEntry(*position_of(number), due_ms(rank_of(number)), size)

    groups = list(write_groups(directory, f"entries-{part}", pairs(), WIDTH_MS, BulkFileLimits()))
    file = write_positions(directory, f"positions-{part}", placed())
    return groups, [] if file is None else [file]


def manifest_of(topic: str, spread: Spread, parts: list[tuple[list[Group], list[TableFile]]]) -> Manifest:
    groups = [group for part, _ in parts for group in part]
    files = [file for _, part in parts for file in part]
    return new_manifest(topic, WIDTH_MS, Position(0, -1), spread.last_position(), files, groups)


def _partition_start(spread: Spread, rank: int) -> int:
    """The first rank at or after one that is the first of its time partition."""
    while 0 < rank < spread.size and spread.due_ms(rank) // WIDTH_MS == spread.due_ms(rank - 1) // WIDTH_MS:
        rank += 1
    return rank


def _ledger_start(number: int) -> int:
    return number - number % LEDGER_ENTRIES
