"""Entries as a reader receives them: where they are stored, and what their metadata says of delay."""

from typing import NamedTuple

from bridge.protocol.frames import Frame, entry_metadata
from bridge.protocol.pulsar_pb2 import CommandMessage


class StoredEntry(NamedTuple):
    """One stored unit of a topic partition: a message, or a batch.

    `deliver_at_ms` is None for an immediate entry. `marker`: a record of the broker's own (replication,
    transactions), never for consumers. `raw`: headers and payload, byte for byte.
    """

    ledger: int
    entry: int
    deliver_at_ms: int | None
    message_count: int
    marker: bool
    raw: bytes


def stored_entry(frame: Frame, message: CommandMessage) -> StoredEntry:
    """Read a MESSAGE frame. Raises MalformedFrame when its metadata is unreadable."""
    raw = frame.entry()
    metadata = entry_metadata(raw)
    message_id = message.message_id
    return StoredEntry(
        message_id.ledgerId,
        message_id.entryId,
        metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None,
        metadata.num_messages_in_batch,
        metadata.HasField("marker_type"),
        raw,
    )
