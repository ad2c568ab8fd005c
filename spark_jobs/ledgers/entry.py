"""One stored unit of a ledger."""

from __future__ import annotations

from typing import NamedTuple

from bridge.protocol.entries import metadata_of
from bridge.protocol.pulsar_pb2 import MessageMetadata


class LedgerEntry(NamedTuple):
    """A message or a batch. `metadata` is None when it cannot be read; `raw`: headers, metadata, payload as stored."""

    ledger: int
    entry: int
    metadata: MessageMetadata | None
    raw: bytes


def ledger_entry(ledger: int, entry: int, raw: bytes) -> LedgerEntry:
    """Return what a broker or a bookie gave, read as far as is needed."""
    return LedgerEntry(ledger, entry, metadata_of(raw), raw)


def batch_size(entry: LedgerEntry) -> int:
    """Return how many messages the broker counts for an entry."""
    return entry.metadata.num_messages_in_batch if entry.metadata is not None else 1


def message_count_of(entry: LedgerEntry) -> int:
    """Return how many messages an entry holds: a batch has several."""
    return max(batch_size(entry), 1)


def deliver_at_of(entry: LedgerEntry) -> int | None:
    """Return when an entry is due, in epoch ms; None for one that is due at once."""
    metadata = entry.metadata
    return metadata.deliver_at_time if metadata is not None and metadata.HasField("deliver_at_time") else None
