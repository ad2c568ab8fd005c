"""A stretch of keys and stored values packed into a few buffers, so that an entry costs little beside its value."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import Final

from tracker.entries import LONG_COUNT, DueEntry, decode_value
from tracker.keys import KEY, KEY_LENGTH

WINDOW_ENTRY_OVERHEAD: Final = 40
"""Bytes a window entry costs beside its stored value: key and offset take 28, the rest is the growing room of the
buffers that take entries in and a share of the block's objects. Values beyond a kilobyte add up to 1 % of their
length."""


class PackedBlock:
    """Entries in key order (the base), and a tail of those that came since, in any order.

    Either is three buffers, those of the base of exact size: keys of one length, the offset where each value ends, the
    values. What asks for a place in the order needs a block without a tail: call `normalise` before. Every key comes in
    once, appended to the tail buffers by the window itself: a call for each entry would double what it costs.
    """

    __slots__ = ("ends", "keys", "tail_ends", "tail_keys", "tail_values", "values")

    def __init__(self) -> None:
        """Start empty."""
        self.keys = b""
        self.ends = array("I")
        self.values = b""
        self._clear_tail()

    def __len__(self) -> int:
        """Return how many entries are held."""
        return len(self.ends) + len(self.tail_ends)

    @property
    def value_bytes(self) -> int:
        """How long the stored values are together."""
        return len(self.values) + len(self.tail_values)

    @property
    def size(self) -> int:
        """What the entries count for in a budget."""
        return self.value_bytes + len(self) * WINDOW_ENTRY_OVERHEAD

    # --- filling it

    def append(self, keys: list[bytes], values: list[bytes]) -> None:
        """Take in entries in key order that come after all others; there must be no tail."""
        assert not self.tail_ends
        offset = len(self.values)
        self.keys += b"".join(keys)
        self.ends = self.ends + array("I", [offset + end for end in accumulate(map(len, values))])
        self.values += b"".join(values)

    def normalise(self) -> None:
        """Sort the tail into the base."""
        if not self.tail_ends:
            return
        keys, values, offset = self.all_keys(), self.values + self.tail_values, len(self.values)
        ends = [*self.ends, *[offset + end for end in self.tail_ends]]
        self._clear_tail()
        # The base is one ascending run already: sorting costs little more than sorting the tail.
        order = sorted(range(len(keys)), key=keys.__getitem__)
        pieces = [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        pieces = [pieces[at] for at in order]
        self.keys = b"".join([keys[at] for at in order])
        self.ends = array("I", list(accumulate(map(len, pieces))))
        self.values = b"".join(pieces)

    # --- places in the order

    def rank(self, key: bytes) -> int:
        """Return how many keys of the base come before a key or bound."""
        return bisect_left(range(len(self.ends)), key, key=self.key_at)

    def key_at(self, at: int) -> bytes:
        """Return a key of the base by its place."""
        start = at * KEY_LENGTH
        return self.keys[start : start + KEY_LENGTH]

    def first_key(self) -> bytes:
        """Return the lowest key, tail included."""
        return min(_keys_of(self.keys[:KEY_LENGTH] + self.tail_keys))

    def all_keys(self) -> list[bytes]:
        """Return the keys of the base in order, then those of the tail as they came."""
        return _keys_of(self.keys + self.tail_keys)

    def fitting(self, room: int) -> int:
        """Return how many entries of the base, from the first on, count for at most so many bytes."""
        ends, overhead = self.ends, WINDOW_ENTRY_OVERHEAD
        return bisect_right(range(len(ends)), room, key=lambda at: ends[at] + (at + 1) * overhead)

    # --- reading

    def get(self, key: bytes) -> DueEntry | None:
        """Return the entry of a key, from base or tail: the block stays as it is."""
        at = self.rank(key)
        if at < len(self.ends) and self.key_at(at) == key:
            return _due_entry(key, self.values[self._start(at) : self.ends[at]])
        at = self._find_in_tail(key)
        if at < 0:
            return None
        start = self.tail_ends[at - 1] if at else 0
        return _due_entry(key, bytes(self.tail_values[start : self.tail_ends[at]]))

    def entries(self, first: int, last: int) -> list[DueEntry]:
        """Return the entries of the base at the places first <= place < last."""
        make, cls, keys, values, long = tuple.__new__, DueEntry, self.keys, self.values, _due_entry
        places = range(first * KEY_LENGTH, last * KEY_LENGTH, KEY_LENGTH)
        ends = self.ends[first:last]
        numbers = KEY.iter_unpack(memoryview(keys)[places.start : places.stop])
        return [
            make(cls, (keys[at : at + KEY_LENGTH], time, ledger, entry, values[start], values[start + 1 : end]))
            if values[start] != LONG_COUNT
            else long(keys[at : at + KEY_LENGTH], values[start:end])
            for at, (time, ledger, entry), start, end in zip(
                places, numbers, [self._start(first), *ends], ends, strict=False
            )
        ]

    # --- taking apart

    def remove(self, first: int, last: int) -> None:
        """Let go of the entries of the base at the places first <= place < last."""
        if first == last:
            return
        start, stop = self._start(first), self.ends[last - 1]
        gap = stop - start
        self.keys = self.keys[: first * KEY_LENGTH] + self.keys[last * KEY_LENGTH :]
        self.values = self.values[:start] + self.values[stop:]
        self.ends = self.ends[:first] + array("I", [end - gap for end in self.ends[last:]])

    def split(self, load: int, value_bytes: int) -> list[PackedBlock]:
        """Return this block, or when it has outgrown `load` entries or `value_bytes` twice, smaller ones in its place.

        There must be no tail. A value longer than `value_bytes` gets a block of its own.
        """
        total = len(self.ends)
        if total <= 2 * load and (len(self.values) <= 2 * value_bytes or total == 1):
            return [self]
        most = -(-total // max(1, total // load))
        parts, first = [], 0
        while first < total:
            # No less than one entry, however long its value.
            last = bisect_right(self.ends, self._start(first) + value_bytes, first, min(first + most, total))
            last = max(last, first + 1)
            parts.append(self._part(first, last))
            first = last
        return parts

    def check(self) -> None:
        """Raise AssertionError when the buffers do not fit together."""
        assert len(self.keys) == len(self.ends) * KEY_LENGTH, "as many keys as values"
        assert len(self.tail_keys) == len(self.tail_ends) * KEY_LENGTH, "as many keys as values in the tail"
        for ends, values in ((self.ends, self.values), (self.tail_ends, self.tail_values)):
            offsets = [0, *ends]
            assert offsets == sorted(set(offsets)), "value offsets out of order"
            assert offsets[-1] == len(values), "value offsets end elsewhere than the values"
        base = _keys_of(self.keys)
        assert base == sorted(base), "keys of a block out of order"
        assert len(set(self.all_keys())) == len(self), "a key held twice"

    def _clear_tail(self) -> None:
        self.tail_keys = bytearray()
        self.tail_ends = array("I")
        self.tail_values = bytearray()

    def _start(self, at: int) -> int:
        return self.ends[at - 1] if at else 0

    def _part(self, first: int, last: int) -> PackedBlock:
        part, start = PackedBlock(), self._start(first)
        part.keys = self.keys[first * KEY_LENGTH : last * KEY_LENGTH]
        part.ends = array("I", [end - start for end in self.ends[first:last]])
        part.values = self.values[start : self.ends[last - 1]]
        return part

    def _find_in_tail(self, key: bytes) -> int:
        if len(key) != KEY_LENGTH:
            return -1
        found = self.tail_keys.find(key)
        while found >= 0 and found % KEY_LENGTH:
            # The end of one key and the start of the next can look like a third.
            found = self.tail_keys.find(key, found + 1)
        return found // KEY_LENGTH


def _keys_of(packed: bytes | bytearray) -> list[bytes]:
    packed = bytes(packed)
    return [packed[at : at + KEY_LENGTH] for at in range(0, len(packed), KEY_LENGTH)]


def _due_entry(key: bytes, value: bytes) -> DueEntry:
    count, raw = decode_value(value)
    deliver_at, ledger, entry = KEY.unpack(key)
    return DueEntry(key, deliver_at, ledger, entry, count, raw)
