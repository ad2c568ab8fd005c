"""A checksum of a set of keys that does not depend on their order: equal sets of entries have equal ones.

Each key's three numbers are mixed into 64 bits (the finalizer of splitmix64), and the results are added up modulo
2**64: parts of a set can be summed up wherever they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from tracker.keys import KEY_LENGTH

_MASK = 2**64 - 1
_STEPS = tuple(np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))


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
    if not keys:
        return Fingerprint()
    return Fingerprint(len(keys), int(mixed_keys(unpacked_keys(keys)).sum(dtype=np.uint64)))


def unpacked_keys(keys: Sequence[bytes]) -> np.ndarray:
    """Return the due time, ledger and entry of at least one stored key, a row each."""
    return np.frombuffer(b"".join(keys), ">u8").reshape(len(keys), KEY_LENGTH // 8).astype(np.uint64)


def mixed_keys(columns: np.ndarray) -> np.ndarray:
    """Return 64 bits for each row of `unpacked_keys`."""
    mixed = np.zeros(len(columns), np.uint64)
    for column, step in zip(columns.T, _STEPS, strict=True):
        mixed = _mix(mixed ^ (column + step))
    return mixed


def _mix(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: np.ndarray = values ^ (values >> np.uint64(31))
    return result
