"""From position to due time: small packed records beside the entries, in the order of the topic.

The index is in due order. Who asks for a position (an operator's search, an ack of what was not handed out here) would
have to read all of it; these records answer with one seek and cost about 5 bytes an entry once compressed. They are
written with the entries and cleared in whole stretches later, so one may speak of an entry that is dropped already:
what they say is a hint, the entry itself is the proof.

A record covers up to 512 neighbouring positions of a ledger: the key is 0x80 (after all entries), ledger, entry / 512,
number of the write; the value is, for n entries, the columns of entry % 512 (2 bytes each), due time (8) and stored
size (4), each byte of a column's numbers in a stretch of its own, which compresses best.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from tracker.errors import StoreError, is_damage
from tracker.partitions.columns import pack_column, unpack_column
from tracker.position import Position
from tracker.store.database import TopicFamily
from tracker.store.families import EntryFamilies

_KEY = struct.Struct(">BQQQ")
RECORD_KEY_LENGTH = _KEY.size
BLOCK_KEY_LENGTH = RECORD_KEY_LENGTH - 8
"""Of the part of a key that all records of a block have in common."""
_MARK = 0x80
BLOCK_SHIFT = 9
BLOCK_ENTRIES = 1 << BLOCK_SHIFT
_COLUMNS = (("H", 2), ("Q", 8), ("I", 4))
_RECORDS_KEPT = 80
"""Records of all topics whose due times are kept, some 4 MB: what one subscription looks up the next one does too."""


class PlacedEntry(NamedTuple):
    """An entry's due time and its stored key and value bytes, by position."""

    ledger: int
    entry: int
    deliver_at_ms: int
    size: int


def encode_records(entries: list[PlacedEntry], number: int) -> list[tuple[bytes, bytes]]:
    """Return the (key, value) records for entries in position order, written in write number `number`."""
    records = []
    start, end = 0, len(entries)
    while start < end:
        ledger, block = entries[start][0], entries[start][1] >> BLOCK_SHIFT
        # A tuple of two sorts before all entries at that position.
        stop = bisect_left(entries, (ledger, (block + 1) << BLOCK_SHIFT), start, end)
        part = entries[start:stop]
        low = array("H", [placed[1] & (BLOCK_ENTRIES - 1) for placed in part])
        times = array("Q", [placed[2] for placed in part])
        sizes = array("I", [placed[3] for placed in part])
        records.append((_KEY.pack(_MARK, ledger, block, number), _planes(low) + _planes(times) + _planes(sizes)))
        start = stop
    return records


def decode_record(key: bytes, value: bytes) -> list[PlacedEntry]:
    """Return the entries of a record."""
    _, ledger, block, _ = _KEY.unpack(key)
    count = len(value) // sum(width for _, width in _COLUMNS)
    start, columns = 0, []
    for code, width in _COLUMNS:
        columns.append(_column(code, width, value[start : start + width * count], count))
        start += width * count
    low, times, sizes = columns
    first = block << BLOCK_SHIFT
    return [PlacedEntry(ledger, first + below, time, size) for below, time, size in zip(low, times, sizes, strict=True)]


@lru_cache(maxsize=_RECORDS_KEPT)
def _times(key: bytes, value: bytes) -> Mapping[int, int]:
    """Return the due time of each entry of a record; not to be changed."""
    return {placed.entry: placed.deliver_at_ms for placed in decode_record(key, value)}


def _within(times: Mapping[int, int], ledger: int, lowest: int, first: Position, last: Position) -> Mapping[int, int]:
    """Return those of a block's entries that lie in a range of positions; `lowest`: the block's first entry."""
    if first <= (ledger, lowest) and (ledger, lowest + BLOCK_ENTRIES - 1) <= last:
        return times
    return {entry: time for entry, time in times.items() if first <= (ledger, entry) <= last}


def positions_of(key: bytes) -> tuple[Position, Position]:
    """Return the lowest and highest position that the record of a key may speak of."""
    _, ledger, block, _ = _KEY.unpack(key)
    return Position(ledger, block << BLOCK_SHIFT), Position(ledger, ((block + 1) << BLOCK_SHIFT) - 1)


def records_below(position: Position) -> tuple[bytes, bytes]:
    """Return the key range [start, end) of the records wholly below a position."""
    end = _KEY.pack(_MARK, max(position.ledger, 0), max(position.entry, 0) >> BLOCK_SHIFT, 0)
    return _KEY.pack(_MARK, 0, 0, 0), end


def records_upto(position: Position) -> tuple[bytes, bytes]:
    """Return the key range [start, end) of the records that may speak of a position or those below it."""
    end = _KEY.pack(_MARK, max(position.ledger, 0), (max(position.entry, 0) >> BLOCK_SHIFT) + 1, 0)
    return _KEY.pack(_MARK, 0, 0, 0), end


class DamagedRecord(StoreError):
    """A record cannot be read: its file is not as it was written."""


class PositionIndex:
    """Looks positions up in a topic's column family."""

    def __init__(self, topic: str, families: EntryFamilies) -> None:
        """Read a topic's column families."""
        self._topic = topic
        self._families = families

    def find(self, ledger: int, entry: int) -> int | None:
        """Return the due time noted for a position, None when none is."""
        if ledger < 0 or entry < 0:
            return None
        for family in self._families.all():
            for _, times in self._blocks(family, Position(ledger, entry - 1), Position(ledger, entry)):
                return times.get(entry)
        return None

    def blocks(self, after: Position, upto: Position) -> Iterator[tuple[int, Mapping[int, int]]]:
        """Yield (ledger, due time by entry) for each block with noted positions in (after, upto], in order.

        To be used up at once: it holds an iterator open. Raises StoreError. While the index is moved out of a damaged
        column family it is not complete.
        """
        return self._blocks(self._families.main, after, upto)

    def _blocks(self, family: TopicFamily, after: Position, upto: Position) -> Iterator[tuple[int, Mapping[int, int]]]:
        first, last = Position(max(after.ledger, 0), max(after.entry + 1, 0)), Position(*upto)
        if after.ledger < 0:
            first = Position(0, 0)
        try:
            iterator = family.reader.iter()
            iterator.seek(_KEY.pack(_MARK, first.ledger, first.entry >> BLOCK_SHIFT, 0))
            current: tuple[int, int] | None = None
            times: Mapping[int, int] = {}
            while iterator.valid():
                key = iterator.key()
                _, ledger, block, _ = _KEY.unpack(key)
                if (ledger, block << BLOCK_SHIFT) > last:
                    break
                if (ledger, block) != current:
                    if times and current is not None:
                        yield current[0], times
                    current, times = (ledger, block), {}
                noted = _within(_times(key, iterator.value()), ledger, block << BLOCK_SHIFT, first, last)
                times = {**times, **noted} if times else noted
                iterator.next()
            iterator.status()
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(f"cannot read the positions of {self._topic}: {error}") from error
        if times and current is not None:
            yield current[0], times

    def record(self, key: bytes) -> list[PlacedEntry]:
        """Return the entries of a record by its key, none if it is gone. Raises DamagedRecord or StoreError."""
        for family in self._families.all():
            try:
                value = family.reader.get(key)
            except Exception as error:
                message = f"cannot read the positions of {self._topic}: {error}"
                raise (DamagedRecord(message) if is_damage(error) else StoreError(message)) from error
            if value is not None:
                return decode_record(key, value)
        return []


def _planes(column: array[Any]) -> bytes:
    raw, width = pack_column(column), column.itemsize
    return b"".join([raw[at::width] for at in range(width)])


def _column(code: str, width: int, planes: bytes, count: int) -> array[Any]:
    raw = bytearray(width * count)
    for at in range(width):
        raw[at::width] = planes[at * count : (at + 1) * count]
    return unpack_column(code, bytes(raw))


assert [array(code).itemsize for code, _ in _COLUMNS] == [width for _, width in _COLUMNS]
