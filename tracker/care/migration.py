"""Bringing a topic's records of an older data format up to this one, when the topic is opened."""

from __future__ import annotations

from dataclasses import replace

from tracker.errors import StoreError
from tracker.keys import KEY, KEY_LENGTH
from tracker.partitions.page import PAGE_PARTITIONS, PartitionCounters, PartitionPage
from tracker.partitions.positions import PlacedEntry, encode_records
from tracker.partitions.table import ANY_PARTITION
from tracker.store.database import TopicFamily
from tracker.store.records import TopicKeys, TopicRecord, decode_counters, is_first_format, number_of
from tracker.store.store import Store

_SLICE = 10_000


def migrate(store: Store, family: TopicFamily, keys: TopicKeys, stored: bytes) -> TopicRecord:
    """Return a topic's record, after rewriting what format 1 stored differently. Raises StoreError.

    Format 1 had a record of counters for each time partition and none of the positions. The topic's own record is
    written last: an upgrade that was cut short starts again.
    """
    record = TopicRecord.decode(stored)
    if not is_first_format(stored):
        return record
    written = _write_positions(store, family)
    batch = store.new_batch()
    pages: dict[int, PartitionPage] = {}
    for key, counters in store.records(keys.partitions):
        number = number_of(key)
        page = pages.setdefault(number // PAGE_PARTITIONS, PartitionPage(number // PAGE_PARTITIONS))
        page.put(PartitionCounters(number, *decode_counters(counters), b"", b""))
        batch.delete(key)
    for page in pages.values():
        batch.put(keys.page(page.number), page.encode(written))
    dropped_number = ANY_PARTITION if record.dropped else -1
    record = replace(record, written=written, stored=written, dropped_number=dropped_number)
    batch.put(keys.topic, record.encode())
    store.write(batch)
    return record


def _write_positions(store: Store, family: TopicFamily) -> int:
    written = 0
    try:
        iterator = family.reader.iter()
        iterator.seek(b"")
        placed: list[PlacedEntry] = []
        while iterator.valid() and len(key := iterator.key()) == KEY_LENGTH:
            deliver_at, ledger, entry = KEY.unpack(key)
            placed.append(PlacedEntry(ledger, entry, deliver_at, KEY_LENGTH + len(iterator.value())))
            iterator.next()
            if len(placed) == _SLICE or not iterator.valid():
                written += 1
                _write_slice(store, family, sorted(placed), written)
                placed = []
        iterator.status()
    except StoreError:
        raise
    except Exception as error:
        raise StoreError(f"cannot bring {store.path} up to the present data format: {error}") from error
    if placed:
        written += 1
        _write_slice(store, family, sorted(placed), written)
    return written


def _write_slice(store: Store, family: TopicFamily, placed: list[PlacedEntry], number: int) -> None:
    batch = store.new_batch()
    for key, value in encode_records(placed, number):
        batch.put(key, value, family.handle)
    store.write(batch)
