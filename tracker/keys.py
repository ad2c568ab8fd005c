"""Keys of the delayed index: 24 bytes, big-endian, so that byte order is (due time, ledger, entry) order."""

from __future__ import annotations

import struct

KEY_LENGTH = 24
MAX_TIMESTAMP_MS = 2**63 - 1
_MAX_BOUND_MS = MAX_TIMESTAMP_MS + 1  # other records come after all entries
KEY = struct.Struct(">QQQ")
KEY_TIME = struct.Struct(">Q")
FIRST_KEY = bytes(KEY_LENGTH)
"""At or before every key."""


def clamp_timestamp(deliver_at_ms: int) -> int:
    """Return the timestamp forced into what a key can hold: a negative one is due since 0."""
    if deliver_at_ms < 0:
        return 0
    return min(deliver_at_ms, MAX_TIMESTAMP_MS)


def encode_key(deliver_at_ms: int, ledger: int, entry: int) -> bytes:
    """Return the 24-byte key; timestamps outside [0, 2**63-1] are clamped."""
    return KEY.pack(clamp_timestamp(deliver_at_ms), ledger, entry)


def decode_key(key: bytes) -> tuple[int, int, int]:
    """Return (deliver_at_ms, ledger, entry) of a 24-byte key."""
    return KEY.unpack(key)


def key_time(key: bytes) -> int:
    """Return deliver_at_ms of a key, or of a bound made by `successor` or `time_bound`."""
    time: int = KEY_TIME.unpack_from(key)[0]
    return time


def time_bound(timestamp_ms: int) -> bytes:
    """Return the first possible key at or after a time: the exclusive end of everything before it."""
    return KEY.pack(min(max(timestamp_ms, 0), _MAX_BOUND_MS), 0, 0)


def successor(key: bytes) -> bytes:
    """Return a bound that sorts right after a key and before every later key. It is no key itself: one byte longer."""
    return key + b"\0"
