"""What an index holds, in a form that can be compared with what a topic holds: a fingerprint for every block of 512
positions. Equal fingerprints mean equal sets of (timestamp, ledger, entry); blocks that differ are looked into.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from tracker import limits
from tracker.fingerprint import Fingerprint, mixed_keys, unpacked_keys
from tracker.keys import FIRST_KEY, successor, time_bound
from tracker.position import Position
from tracker.positions import BLOCK_SHIFT
from tracker.topic_index import TopicIndex

Block = tuple[int, int]
"""A ledger and entry number divided by 512."""

_END = time_bound(2**64 - 1)


def block_fingerprints(keys: Sequence[bytes], after: Position, upto: Position) -> dict[Block, Fingerprint]:
    """Return the fingerprint of each block, over the stored keys whose position lies in (after, upto]."""
    if not keys:
        return {}
    columns = unpacked_keys(keys)
    ledgers, entries = columns[:, 1].astype(np.int64), columns[:, 2].astype(np.int64)
    inside = ((ledgers > after.ledger) | ((ledgers == after.ledger) & (entries > after.entry))) & (
        (ledgers < upto.ledger) | ((ledgers == upto.ledger) & (entries <= upto.entry))
    )
    places = np.stack([ledgers[inside], entries[inside] >> BLOCK_SHIFT], axis=1)
    if not len(places):
        return {}
    blocks, of_key = np.unique(places, axis=0, return_inverse=True)
    sums = np.zeros(len(blocks), np.uint64)
    np.add.at(sums, of_key.reshape(-1), mixed_keys(columns[inside]))
    counts = np.bincount(of_key.reshape(-1), minlength=len(blocks))
    return {
        (int(ledger), int(block)): Fingerprint(int(count), int(total))
        for (ledger, block), count, total in zip(blocks, counts, sums, strict=True)
    }


def index_fingerprints(index: TopicIndex, after: Position, upto: Position) -> Iterator[dict[Block, Fingerprint]]:
    """Yield parts of what an index holds in (after, upto], to be added up; others may have their turn in between.

    What is added meanwhile lies above the harvested position. What is dropped raises the floor: compare only what lies
    above it at the end.
    """
    start = FIRST_KEY
    while keys := list(islice(index.reader.keys(start, _END), limits.AUDIT_KEYS)):
        yield block_fingerprints(keys, after, upto)
        start = successor(keys[-1])


def add_up(total: dict[Block, Fingerprint], part: dict[Block, Fingerprint]) -> None:
    """Add a part to a total."""
    for block, found in part.items():
        known = total.get(block)
        total[block] = found if known is None else known.plus(found)
