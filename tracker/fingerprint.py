"""A checksum of a set of keys that does not depend on their order: equal sets of entries have equal ones.

Each key is hashed into 64 bits (BLAKE2b), and the results are added up modulo 2**64: parts of a set can be summed up
wherever they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from hashlib import blake2b
from typing import NamedTuple

_MASK = 2**64 - 1


class Fingerprint(NamedTuple):
    """How many entries there are, and the sum over them."""

    entries: int = 0
    checksum: int = 0

    def plus(self, other: Fingerprint) -> Fingerprint:
        """Return the fingerprint of two sets that have nothing in common."""
        return Fingerprint(self.entries + other.entries, (self.checksum + other.checksum) & _MASK)

    @classmethod
    def total(cls, parts: Iterable[Fingerprint]) -> Fingerprint:
        """Return the fingerprint of all of them together."""
        return reduce(cls.plus, parts, cls())


def fingerprint(keys: Sequence[bytes]) -> Fingerprint:
    """Return the fingerprint of stored keys, of 24 bytes each."""
    return fingerprint_of_hashes(hashes_of(keys))


def hashes_of(keys: Iterable[bytes]) -> list[int]:
    """Return what each key adds to a fingerprint: for those who need it for several sets."""
    number = int.from_bytes  # looked up once: this runs for every entry of a topic
    return [number(blake2b(key, digest_size=8).digest()) for key in keys]


def fingerprint_of_hashes(hashes: Sequence[int]) -> Fingerprint:
    """Return the fingerprint of the keys that `hashes_of` was given."""
    return Fingerprint(len(hashes), sum(hashes) & _MASK)
