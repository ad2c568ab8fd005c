"""What a bookie stores in front of an entry, and whether it is still what was written.

Source: `DigestManager`: ledger, entry, last confirmed entry and length so far, of 8 bytes each, then the digest of
these and of the entry.
"""

from __future__ import annotations

import zlib
from enum import Enum
from struct import Struct

import google_crc32c

from bridge.ledgers.bookies.errors import DamagedEntry

_HEADER = Struct(">QQQQ")
_CRC32C_HEADER = Struct(">QQQQI")
_CRC32_HEADER = Struct(">QQQQQ")
_extend = google_crc32c.extend


class Digest(Enum):
    """Kinds of digests that can be checked; those of kind MAC need the ledger's password."""

    CRC32C = "CRC32C"
    CRC32 = "CRC32"
    DUMMY = "DUMMY"


def checked_entry(data: bytes, ledger: int, entry: int, digest: Digest) -> bytes:
    """Return the entry without what stands in front of it. Raises DamagedEntry unless it is that one, and whole."""
    if digest is Digest.CRC32C and len(data) >= 36:
        found_ledger, found_entry, _, _, sum_stored = _CRC32C_HEADER.unpack_from(data)
        content = data[36:]
        sound = _extend(google_crc32c.value(data[:32]), content) == sum_stored
    elif digest is Digest.CRC32 and len(data) >= 40:
        found_ledger, found_entry, _, _, sum_stored = _CRC32_HEADER.unpack_from(data)
        content = data[40:]
        sound = zlib.crc32(content, zlib.crc32(data[:32])) == sum_stored
    elif digest is Digest.DUMMY and len(data) >= 32:
        found_ledger, found_entry, _, _ = _HEADER.unpack_from(data)
        content, sound = data[32:], True
    else:
        raise DamagedEntry(f"{ledger}:{entry} is stored in {len(data)} bytes")
    if found_ledger != ledger or found_entry != entry:
        raise DamagedEntry(f"{found_ledger}:{found_entry} came for {ledger}:{entry}")
    if not sound:
        raise DamagedEntry(f"{ledger}:{entry} does not fit its digest")
    return content
