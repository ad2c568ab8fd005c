"""Which key an entry has on a Key_Shared subscription, its hash, and how consumers ask for keys to be shared."""

import base64
import binascii
from typing import Final, NamedTuple

import mmh3

from bridge.protocol.errors import MalformedFrame
from bridge.protocol.frames import as_text, entry_metadata
from bridge.protocol.pulsar_pb2 import CommandSubscribe, KeySharedMode

HASHES: Final = 1 << 16
"""Hashes of keys are below it; 0 means that there is none (source: `StickyKeyConsumerSelector`)."""


class KeySharing(NamedTuple):
    """How keys are shared; all consumers of a subscription agree on it, the broker sees to that.

    `sticky`: each consumer names its ranges of hashes, rather than that the ring splits them.
    `out_of_order`: a key may be with its next consumer before the last one has acked.
    """

    sticky: bool = False
    out_of_order: bool = False

    @classmethod
    def of(cls, subscribe: CommandSubscribe) -> "KeySharing | None":
        """As a consumer asks for it; None for other types than Key_Shared."""
        if subscribe.subType != CommandSubscribe.Key_Shared:
            return None
        asked = subscribe.keySharedMeta
        return cls(asked.keySharedMode == KeySharedMode.STICKY, asked.allowOutOfOrderDelivery)

    def hash_of(self, raw: bytes) -> int:
        """The hash of an entry's key, 1 to 65535 (source: `StickyKeyConsumerSelectorUtils.makeStickyKeyHash`)."""
        value = hashed(sticky_key(raw))
        return (value % HASHES or 1) if self.sticky else value % (HASHES - 1) + 1


def ranges_of(subscribe: CommandSubscribe) -> tuple[tuple[int, int], ...]:
    """The ranges of hashes that a consumer asks for, both ends included, as far as there are such hashes."""
    asked = ((max(each.start, 0), min(each.end, HASHES - 1)) for each in subscribe.keySharedMeta.hashRanges)
    return tuple((start, end) for start, end in asked if start <= end)


def sticky_key(raw: bytes) -> bytes:
    """The key that decides which consumer gets an entry; a batch has one (source: `Commands.resolveStickyKey`)."""
    try:
        metadata = entry_metadata(raw)
    except MalformedFrame:
        return b"NONE_KEY"
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if not metadata.HasField("partition_key"):
        return f"{as_text(metadata.producer_name)}-{metadata.sequence_id}".encode()
    key = as_text(metadata.partition_key).encode()
    return _decoded(key) if metadata.partition_key_b64_encoded else key


def _decoded(key: bytes) -> bytes:
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error:
        return key


def ring_hash(hashed_key: int) -> int:
    """Where on the ring something with this hash is."""
    return hashed_key % (HASHES - 1) + 1


def hashed(key: bytes) -> int:
    """As the broker hashes: MurmurHash3, 31 bits of the 32-bit x86 variant, seed 0 (source: `Murmur3_32Hash`)."""
    return mmh3.hash(key, 0, signed=False) & 0x7FFFFFFF
