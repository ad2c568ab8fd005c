"""Reading a topic's entries from disk, time partition by time partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracker.entries import DueEntry, decode_value
from tracker.keys import KEY, encode_key
from tracker.partitions import PartitionTable
from tracker.store import StoreError, TopicFamily


class DiskReader:
    """Point reads and scans. A scan seeks to each known partition, so it never walks over dropped ones."""

    def __init__(self, topic: str, family: TopicFamily, table: PartitionTable) -> None:
        """Read one column family along a table of its partitions."""
        self._topic = topic
        self._family = family
        self._table = table

    def iterate(self) -> Any:
        """Return a RocksDB iterator over the whole column family."""
        try:
            return self._family.reader.iter()
        except Exception as error:
            raise self._failure(error) from error

    def get(self, key: bytes) -> DueEntry | None:
        """Return the entry of a key, None when there is none."""
        try:
            value = self._family.reader.get(key)
        except Exception as error:
            raise self._failure(error) from error
        return None if value is None else _entry(key, value)

    def contains(self, key: bytes) -> bool:
        """Tell whether a key is stored."""
        try:
            return key in self._family.reader
        except Exception as error:
            raise self._failure(error) from error

    def contains_position(self, deliver_at_ms: int, ledger: int, entry: int) -> bool:
        """Tell whether an entry with this due time is stored."""
        return self.contains(encode_key(deliver_at_ms, ledger, entry))

    def scan(self, start: bytes, end: bytes) -> Iterator[DueEntry]:
        """Yield the entries with start <= key < end, in order. To be used up at once: it holds an iterator open."""
        new, unpack = DueEntry._make, KEY.unpack
        for key, value in self.pairs(start, end):
            count, raw = decode_value(value)
            deliver_at, ledger, entry = unpack(key)
            yield new((key, deliver_at, ledger, entry, count, raw))

    def pairs(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the stored (key, value) pairs with start <= key < end, in order."""
        iterator = self.iterate()
        valid, key_of, value_of, step = iterator.valid, iterator.key, iterator.value, iterator.next
        for partition in self._table.between(start, end):
            stop = min(end, partition.end_key)
            iterator.seek(max(start, partition.first_key))
            while valid() and (key := key_of()) < stop:
                yield key, value_of()
                step()
            self._require_healthy(iterator)

    def keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Yield the stored keys with start <= key < end, in order."""
        iterator = self.iterate()
        valid, key_of, step = iterator.valid, iterator.key, iterator.next
        for partition in self._table.between(start, end):
            stop = min(end, partition.end_key)
            iterator.seek(max(start, partition.first_key))
            while valid() and (key := key_of()) < stop:
                yield key
                step()
            self._require_healthy(iterator)

    def first_key(self, start: bytes, end: bytes) -> bytes | None:
        """Return the first stored key with start <= key < end."""
        iterator = self.iterate()
        for partition in self._table.between(start, end):
            iterator.seek(max(start, partition.first_key))
            if iterator.valid() and (key := iterator.key()) < min(end, partition.end_key):
                found: bytes = key
                return found
            self._require_healthy(iterator)
        return None

    def _require_healthy(self, iterator: Any) -> None:
        # An iterator that failed looks like one that reached the end: entries would be passed over.
        try:
            iterator.status()
        except Exception as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> StoreError:
        return StoreError(f"cannot read the index of {self._topic}: {error}")


def _entry(key: bytes, value: bytes) -> DueEntry:
    count, raw = decode_value(value)
    deliver_at, ledger, entry = KEY.unpack(key)
    return DueEntry(key, deliver_at, ledger, entry, count, raw)
