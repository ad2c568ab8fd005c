"""Reading a topic's entries from disk, time partition by time partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tracker.entries import LONG_COUNT, DueEntry, decode_value
from tracker.errors import StoreError, is_damage
from tracker.keys import KEY, encode_key, key_time, successor, time_bound
from tracker.partitions.table import PartitionTable
from tracker.store.database import TopicFamily
from tracker.store.families import EntryFamilies
from tracker.views.ack_set import AckedIn, AckSet


class Most(NamedTuple):
    """What one look at the disk may do: entries returned, bytes of theirs (one entry always goes), keys looked at."""

    entries: int
    bytes: int
    keys: int


class Unacked(NamedTuple):
    """What was found, its bytes, where to look on, and how many keys might have been looked at still."""

    entries: list[DueEntry]
    size: int
    end: bytes
    keys_left: int


class DamagedPartition(StoreError):
    """Entries of a time partition cannot be read: their file is not as it was written."""

    def __init__(self, message: str, number: int) -> None:
        """Name the partition by number."""
        super().__init__(message)
        self.number = number


class DiskReader:
    """Point reads and scans. A scan seeks to each known partition, so it never walks over dropped ones.

    What is damaged goes to `on_damage`, which takes the partition out of the table; scans go on behind it. What such a
    scan has yielded of the partition before is as it was stored.
    """

    def __init__(self, topic: str, families: EntryFamilies, table: PartitionTable) -> None:
        """Read a topic's column families along a table of its partitions."""
        self.on_damage: Callable[[DamagedPartition], None] | None = None
        self._topic = topic
        self._families = families
        self._table = table

    def iterate(self, family: TopicFamily) -> Any:
        """Return a RocksDB iterator over a whole column family."""
        try:
            return family.reader.iter()
        except Exception as error:
            raise self._failure(error) from error

    def get(self, key: bytes) -> DueEntry | None:
        """Return the entry of a key, None when there is none."""
        number = key_time(key) // self._table.width_ms
        if self._is_left_behind(number):
            return None
        try:
            value = self._families.of(number).reader.get(key)
        except Exception as error:
            self._handle(self._failure(error, number))
            return None
        return None if value is None else _entry(key, value)

    def contains(self, key: bytes) -> bool:
        """Tell whether a key is stored."""
        number = key_time(key) // self._table.width_ms
        if self._is_left_behind(number):
            return False
        try:
            return key in self._families.of(number).reader
        except Exception as error:
            self._handle(self._failure(error, number))
            return False

    def contains_position(self, deliver_at_ms: int, ledger: int, entry: int) -> bool:
        """Tell whether an entry with this due time is stored."""
        return self.contains(encode_key(deliver_at_ms, ledger, entry))

    def scan(self, start: bytes, end: bytes) -> Iterator[DueEntry]:
        """Yield the entries with start <= key < end, in order. To be used up at once: it holds an iterator open."""
        return (_entry(key, value) for key, value in self.pairs(start, end))

    def unacked(self, start: bytes, end: bytes, acks: AckSet, most: Most) -> Unacked:
        """Return the entries with start <= key < end that are not acked, in order.

        Of those that are, the value is not read: after a change of owner they are most of what has passed.
        """
        make, cls, unpack, known = tuple.__new__, DueEntry, KEY.unpack, AckedIn(acks)
        found: list[DueEntry] = []
        size, keys_left = 0, most.keys
        for iterator, stop in self._stretches(start, end):
            valid, key_of, value_of, step = iterator.valid, iterator.key, iterator.value, iterator.next
            while valid() and (key := key_of()) < stop:
                if not keys_left:
                    return Unacked(found, size, key, 0)
                keys_left -= 1
                deliver_at, ledger, entry = unpack(key)
                through, single = known[ledger]
                if entry > through and entry not in single:
                    value = value_of()
                    count = value[0]
                    if count == LONG_COUNT:
                        found.append(_entry(key, value))
                    else:
                        found.append(make(cls, (key, deliver_at, ledger, entry, count, value[1:])))
                    size += len(value) - 1
                    if len(found) == most.entries or size >= most.bytes:
                        return Unacked(found, size, successor(key), keys_left)
                step()
        return Unacked(found, size, end, keys_left)

    def pairs(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the stored (key, value) pairs with start <= key < end, in order."""
        for iterator, stop in self._stretches(start, end):
            valid, key_of, value_of, step = iterator.valid, iterator.key, iterator.value, iterator.next
            while valid() and (key := key_of()) < stop:
                yield key, value_of()
                step()

    def keys(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Yield the stored keys with start <= key < end, in order."""
        for iterator, stop in self._stretches(start, end):
            valid, key_of, step = iterator.valid, iterator.key, iterator.next
            while valid() and (key := key_of()) < stop:
                yield key
                step()

    def first_key(self, start: bytes, end: bytes) -> bytes | None:
        """Return the first stored key with start <= key < end."""
        return next(self.keys(start, end), None)

    def last_key(self, number: int) -> bytes | None:
        """Return the last stored key of a partition; None when there is none, or it cannot be read."""
        iterator = self.iterate(self._families.of(number))
        start, end = time_bound(number * self._table.width_ms), time_bound((number + 1) * self._table.width_ms)
        iterator.seek_for_prev(end)
        if not iterator.valid():
            return None
        key: bytes = iterator.key()
        return key if start <= key < end else None

    def _stretches(self, start: bytes, end: bytes) -> Iterator[tuple[Any, bytes]]:
        """Yield (iterator at the first key, exclusive end) for each partition that overlaps a key range."""
        iterators: dict[int, Any] = {}
        for partition in self._table.between(start, end):
            family = self._families.of(partition.number)
            iterator = iterators.get(id(family))
            if iterator is None:
                iterator = iterators[id(family)] = self.iterate(family)
            iterator.seek(max(start, partition.first_key))
            yield iterator, min(end, partition.end_key)
            try:
                # An iterator that failed looks like one that reached the end: entries would be passed over.
                iterator.status()
            except Exception as error:
                self._handle(self._failure(error, partition.number))
                del iterators[id(family)]

    def _is_left_behind(self, number: int) -> bool:
        """Tell whether what the damaged family has of a partition is not counted, so that it is to be stored again."""
        families = self._families
        return families.damaged and not families.is_moved(number) and not self._table.entries_in(number)

    def _handle(self, failure: StoreError) -> None:
        if not isinstance(failure, DamagedPartition) or self.on_damage is None:
            raise failure
        self.on_damage(failure)

    def _failure(self, error: Exception, number: int | None = None) -> StoreError:
        message = f"cannot read the index of {self._topic}: {error}"
        return StoreError(message) if number is None or not is_damage(error) else DamagedPartition(message, number)


def _entry(key: bytes, value: bytes) -> DueEntry:
    count, raw = decode_value(value)
    deliver_at, ledger, entry = KEY.unpack(key)
    return DueEntry(key, deliver_at, ledger, entry, count, raw)
