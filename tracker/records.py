"""Metadata records of a topic: keys in the store's default column family and the structs they hold."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tracker.position import Position
from tracker.store import StoreError, topic_prefix

_TOPIC, _PARTITION, _VIEW, _ACKS = b"T", b"P", b"V", b"A"
_NUMBER = struct.Struct(">Q")
_TOPIC_RECORD = struct.Struct(">Q" + "?qq" * 3)
_PARTITION_RECORD = struct.Struct(">QQqqqq")
_VIEW_RECORD = struct.Struct(">?qq")


@dataclass
class TopicRecord:
    """What a topic remembers. `dropped` is the highest position that ever was in a dropped time partition."""

    partition_width_ms: int
    harvested: Position | None = None
    floor: Position | None = None
    dropped: Position | None = None

    def encode(self) -> bytes:
        """Return the stored form."""
        fields: list[bool | int] = []
        for position in (self.harvested, self.floor, self.dropped):
            fields += [position is not None, *(position or (0, 0))]
        return _TOPIC_RECORD.pack(self.partition_width_ms, *fields)

    @classmethod
    def decode(cls, record: bytes) -> TopicRecord:
        """Read the stored form."""
        width, *fields = _TOPIC_RECORD.unpack(record)
        positions = [Position(*fields[at + 1 : at + 3]) if fields[at] else None for at in (0, 3, 6)]
        return cls(width, *positions)


class TopicKeys:
    """The record keys of one topic."""

    def __init__(self, topic: str) -> None:
        """Precompute the prefixes."""
        prefix = topic_prefix(topic)
        self.topic = prefix + _TOPIC
        self.partitions = prefix + _PARTITION
        self.views = prefix + _VIEW
        self._acks = prefix + _ACKS

    def partition(self, number: int) -> bytes:
        """Return the key of one time partition's counters."""
        return self.partitions + _NUMBER.pack(number)

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


def number_of(key: bytes) -> int:
    """Return the number (of a partition, of a ledger) a record key ends with."""
    number: int = _NUMBER.unpack(key[-_NUMBER.size :])[0]
    return number


def encode_counters(entries: int, size: int, lowest: Position, highest: Position) -> bytes:
    """Return the stored counters of a time partition."""
    return _PARTITION_RECORD.pack(entries, size, *lowest, *highest)


def decode_counters(record: bytes) -> tuple[int, int, Position, Position]:
    """Return (entries, bytes, lowest position, highest position)."""
    entries, size, *positions = _PARTITION_RECORD.unpack(record)
    return entries, size, Position(*positions[:2]), Position(*positions[2:])


def encode_view(covered: bool, mark_delete: Position) -> bytes:
    """Return the stored form of a view without its acks."""
    return _VIEW_RECORD.pack(covered, *mark_delete)


def decode_view(record: bytes) -> tuple[bool, Position]:
    """Return (covered, mark-delete position)."""
    covered, ledger, entry = _VIEW_RECORD.unpack(record)
    return covered, Position(ledger, entry)


def check_width(record: TopicRecord, topic: str, width_ms: int) -> None:
    """Raise StoreError when a topic was stored with another partition width."""
    if record.partition_width_ms != width_ms:
        raise StoreError(
            f"the index of {topic} has time partitions of {record.partition_width_ms} ms, "
            f"it cannot be opened with {width_ms} ms"
        )
