"""Metadata records of a topic: keys in the store's default column family and the structs they hold."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from tracker.errors import StoreError
from tracker.position import Position
from tracker.store.store import topic_prefix

_TOPIC, _PAGE, _JOURNAL, _VIEW, _ACKS, _COUNTS, _EXPEDITED, _BULK = b"T", b"G", b"J", b"V", b"A", b"C", b"E", b"B"
_MOVED, _QUARANTINED = b"M", b"Q"
_PARTITION = b"P"  # counters of one partition: format 1
_NUMBER = struct.Struct(">Q")
_TOPIC_RECORD = struct.Struct(">QQQq?" + "?qq" * 3 + "q")
_TOPIC_RECORD_2 = struct.Struct(">QQQq?" + "?qq" * 3)
_TOPIC_RECORD_1 = struct.Struct(">Q" + "?qq" * 3)
_PARTITION_RECORD = struct.Struct(">QQqqqq")
_VIEW_RECORD = struct.Struct(">?qq?qq")
_VIEW_RECORD_3 = struct.Struct(">?qq?q")
_VIEW_RECORD_2 = struct.Struct(">?qq?")
_VIEW_RECORD_1 = struct.Struct(">?qq")


@dataclass(frozen=True)
class TopicRecord:
    """What a topic remembers.

    `written` numbers the writes that changed entries or pages, `stored` is the last of them that all stored pages of
    partition counters include. `dropped` is the highest position that ever was in a dropped time partition,
    `dropped_number` the highest number of such a partition. `second`: entries are in the topic's second column family.
    `identity` tells this topic from another one of its name; 0 where nobody knows.
    """

    partition_width_ms: int
    harvested: Position | None = None
    floor: Position | None = None
    dropped: Position | None = None
    written: int = 0
    stored: int = 0
    dropped_number: int = -1
    second: bool = False
    identity: int = 0

    def encode(self) -> bytes:
        """Return the stored form."""
        fields: list[bool | int] = []
        for position in (self.harvested, self.floor, self.dropped):
            fields += [position is not None, *(position or (0, 0))]
        numbers = (self.partition_width_ms, self.written, self.stored, self.dropped_number)
        return _TOPIC_RECORD.pack(*numbers, self.second, *fields, self.identity)

    @classmethod
    def decode(cls, record: bytes) -> TopicRecord:
        """Read the stored form, or one of the two before it."""
        if is_first_format(record):
            width, *fields = _TOPIC_RECORD_1.unpack(record)
            written, stored, dropped_number, second, identity = 0, 0, -1, False, 0
        elif len(record) == _TOPIC_RECORD_2.size:
            width, written, stored, dropped_number, second, *fields = _TOPIC_RECORD_2.unpack(record)
            identity = 0
        else:
            width, written, stored, dropped_number, second, *fields, identity = _TOPIC_RECORD.unpack(record)
        positions = [Position(*fields[at + 1 : at + 3]) if fields[at] else None for at in (0, 3, 6)]
        harvested, floor, dropped = positions
        return cls(width, harvested, floor, dropped, written, stored, dropped_number, second, identity)


def is_first_format(record: bytes) -> bool:
    """Tell whether a topic's record is of data format 1."""
    return len(record) == _TOPIC_RECORD_1.size


class TopicKeys:
    """The record keys of one topic."""

    def __init__(self, topic: str) -> None:
        """Precompute the prefixes."""
        prefix = topic_prefix(topic)
        self.topic = prefix + _TOPIC
        self.partitions = prefix + _PARTITION
        self.pages = prefix + _PAGE
        self.journal = prefix + _JOURNAL
        self.bulks = prefix + _BULK
        self.moved = prefix + _MOVED
        self.quarantined = prefix + _QUARANTINED
        self.views = prefix + _VIEW
        self._acks = prefix + _ACKS
        self._counts = prefix + _COUNTS
        self._expedited = prefix + _EXPEDITED

    def move(self, number: int) -> bytes:
        """Return the key that says that a time partition was moved out of a damaged column family."""
        return self.moved + _NUMBER.pack(number)

    def quarantine(self, number: int) -> bytes:
        """Return the key of what is known of a damaged time partition."""
        return self.quarantined + _NUMBER.pack(number)

    def page(self, number: int) -> bytes:
        """Return the key of one page of partition counters."""
        return self.pages + _NUMBER.pack(number)

    def write(self, number: int) -> bytes:
        """Return the key of one write's journal record."""
        return self.journal + _NUMBER.pack(number)

    def view(self, subscription: str) -> bytes:
        """Return the key of one subscription's record."""
        return self.views + subscription.encode()

    def acks(self, subscription: str) -> bytes:
        """Return what the keys of a subscription's ack records start with."""
        name = subscription.encode()
        return self._acks + len(name).to_bytes(4, "big") + name

    def ack(self, subscription: str, ledger: int) -> bytes:
        """Return the key of one ledger's acks."""
        return self.acks(subscription) + _NUMBER.pack(ledger)

    def counts(self, subscription: str) -> bytes:
        """Return what the keys of a subscription's counters start with."""
        name = subscription.encode()
        return self._counts + len(name).to_bytes(4, "big") + name

    def count(self, subscription: str, page_number: int) -> bytes:
        """Return the key of one page of a subscription's counters."""
        return self.counts(subscription) + _NUMBER.pack(page_number)

    def bulk_prefix(self, load: str) -> bytes:
        """Return what the keys of a bulk load's records start with."""
        return self.bulks + load.encode()

    def bulk(self, load: str, number: int) -> bytes:
        """Return the key of what is known of one group of a bulk load."""
        return self.bulk_prefix(load) + _NUMBER.pack(number)

    def expedited(self, subscription: str) -> bytes:
        """Return the key of what is to be delivered without regard to its due time."""
        return self._expedited + subscription.encode()


def number_of(key: bytes) -> int:
    """Return the number (of a partition, of a ledger) a record key ends with."""
    number: int = _NUMBER.unpack(key[-_NUMBER.size :])[0]
    return number


def encode_counters(entries: int, size: int, lowest: Position, highest: Position) -> bytes:
    """Return the stored counters of a quarantined time partition."""
    return _PARTITION_RECORD.pack(entries, size, *lowest, *highest)


def decode_counters(record: bytes) -> tuple[int, int, Position, Position]:
    """Return (entries, bytes, lowest position, highest position); format 1 stored every partition so."""
    entries, size, *positions = _PARTITION_RECORD.unpack(record)
    return entries, size, Position(*positions[:2]), Position(*positions[2:])


class StoredView(NamedTuple):
    """A view without its acks; `counted`: its stored counters include all stored acks.

    `dispatched_until_ms`: nothing was handed to a consumer later than that; -1 where nobody knows. `history`: of which
    history of the broker's cursor the acks are; 0 where nobody knows.
    """

    covered: bool
    mark_delete: Position
    counted: bool
    dispatched_until_ms: int = -1
    history: int = 0

    def encode(self) -> bytes:
        """Return the stored form."""
        fields = (*self.mark_delete, self.counted, self.dispatched_until_ms, self.history)
        return _VIEW_RECORD.pack(self.covered, *fields)

    @classmethod
    def decode(cls, record: bytes) -> StoredView:
        """Read the stored form, or one of the three before it, which ended sooner."""
        if len(record) == _VIEW_RECORD_1.size:
            covered, ledger, entry = _VIEW_RECORD_1.unpack(record)
            return cls(covered, Position(ledger, entry), False)
        if len(record) == _VIEW_RECORD_2.size:
            covered, ledger, entry, counted = _VIEW_RECORD_2.unpack(record)
            return cls(covered, Position(ledger, entry), counted)
        if len(record) == _VIEW_RECORD_3.size:
            covered, ledger, entry, counted, until = _VIEW_RECORD_3.unpack(record)
            return cls(covered, Position(ledger, entry), counted, until)
        covered, ledger, entry, counted, until, history = _VIEW_RECORD.unpack(record)
        return cls(covered, Position(ledger, entry), counted, until, history)


def check_width(record: TopicRecord, topic: str, width_ms: int) -> None:
    """Raise StoreError when a topic was stored with another partition width."""
    if record.partition_width_ms != width_ms:
        raise StoreError(
            f"the index of {topic} has time partitions of {record.partition_width_ms} ms, "
            f"it cannot be opened with {width_ms} ms"
        )
