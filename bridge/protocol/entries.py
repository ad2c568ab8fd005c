"""Entries as a reader receives them: where they are stored, and what their metadata says of delay."""

from typing import NamedTuple

from bridge.protocol.errors import MalformedFrame
from bridge.protocol.frames import Frame, entry_metadata
from bridge.protocol.pulsar_pb2 import CommandMessage, MessageMetadata


class StoredEntry(NamedTuple):
    """One stored unit of a topic partition: a message, or a batch.

    `deliver_at_ms` is None for an immediate entry. `batch_size`: what its producer wrote, which may be anything.
    `marker`: a record of the broker's own (replication, transactions), never for consumers. `raw`: headers and
    payload, byte for byte.
    """

    ledger: int
    entry: int
    deliver_at_ms: int | None
    batch_size: int
    marker: bool
    raw: bytes

    @property
    def message_count(self) -> int:
        """Messages in it, as far as one can believe its producer: at least 1."""
        return max(self.batch_size, 1)


class Chunk(NamedTuple):
    """Which part of a chunked message an entry is. All parts have to reach the same consumer."""

    uuid: str
    last: bool


def chunk_of(raw: bytes) -> Chunk | None:
    """What the metadata of `raw` says of chunking; None for a message in one piece."""
    metadata = metadata_of(raw)
    if metadata is None or metadata.num_chunks_from_msg <= 1:
        return None
    return Chunk(metadata.uuid, metadata.chunk_id == metadata.num_chunks_from_msg - 1)


def stored_entry(frame: Frame, message: CommandMessage) -> StoredEntry:
    """Read a MESSAGE frame.

    An entry whose metadata is unreadable is passed on as one immediate message: what to make of it is up
    to the consumer, and refusing it would stop everything stored behind it.
    """
    message_id = message.message_id
    raw = frame.entry()
    return _read(message_id.ledgerId, message_id.entryId, raw, metadata_of(raw))


def entry_from_bookie(ledger: int, entry: int, raw: bytes) -> StoredEntry | None:
    """Read an entry as a bookie gives it; None for one of a transaction: whether it counts is known to the broker."""
    metadata = metadata_of(raw)
    if metadata is not None and is_of_transaction(metadata):
        return None
    return _read(ledger, entry, raw, metadata)


def is_of_transaction(metadata: MessageMetadata) -> bool:
    """Whether it is a message of one; what marks its end in the topic names it too, and is no message."""
    named = metadata.HasField("txnid_most_bits") or metadata.HasField("txnid_least_bits")
    return named and not metadata.HasField("marker_type")


def metadata_of(raw: bytes) -> MessageMetadata | None:
    """The metadata of an entry; None when it cannot be read."""
    try:
        return entry_metadata(raw)
    except MalformedFrame:
        return None


def _read(ledger: int, entry: int, raw: bytes, metadata: MessageMetadata | None) -> StoredEntry:
    if metadata is None:
        return StoredEntry(ledger, entry, None, 1, False, raw)
    return StoredEntry(
        ledger,
        entry,
        metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None,
        metadata.num_messages_in_batch,
        metadata.HasField("marker_type"),
        raw,
    )
