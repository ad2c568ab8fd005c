"""What goes into the index and what comes out, and the stored form of a value."""

from __future__ import annotations

import struct
from typing import NamedTuple

LONG_COUNT = 255
"""First byte of a stored value whose message count does not fit into that byte."""

_LONG_HEADER = struct.Struct(">BI")
_SHORT_PREFIXES = [bytes([count]) for count in range(LONG_COUNT)]


class NewEntry(NamedTuple):
    """A delayed entry as harvested. `message_count` is at least 1; `raw` is metadata and payload as received."""

    deliver_at_ms: int
    ledger: int
    entry: int
    message_count: int
    raw: bytes


class DueEntry(NamedTuple):
    """A delayed entry as stored, with its key in the index."""

    key: bytes
    deliver_at_ms: int
    ledger: int
    entry: int
    message_count: int
    raw: bytes


def encode_value(message_count: int, raw: bytes) -> bytes:
    """Return the stored value: the message count (one byte up to 254, else 255 and four bytes), then raw.

    A count below 1 is stored as 1: dispatching an entry costs at least one permit.
    """
    if 0 < message_count < LONG_COUNT:
        return _SHORT_PREFIXES[message_count] + raw
    if message_count < 1:
        return _SHORT_PREFIXES[1] + raw
    return _LONG_HEADER.pack(LONG_COUNT, message_count) + raw


def decode_value(value: bytes) -> tuple[int, bytes]:
    """Return (message_count, raw) of a stored value."""
    if value[0] != LONG_COUNT:
        return value[0], value[1:]
    count: int = _LONG_HEADER.unpack_from(value)[1]
    return count, value[_LONG_HEADER.size :]
