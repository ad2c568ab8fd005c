"""Searching what is not delivered yet: a page at a time, beside live delivery."""

import asyncio
import base64
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from bridge import answers
from bridge.answers.values import EntryState
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.limits import OperatorLimits
from bridge.protocol.errors import MalformedFrame
from bridge.protocol.frames import as_text, entry_metadata, entry_parts
from bridge.protocol.pulsar_pb2 import CompressionType, MessageMetadata
from tracker import DueEntry, Position, SubscriptionView, TopicIndex
from tracker.keys import KEY_LENGTH, MAX_TIMESTAMP_MS
from tracker.search import Found, Query


@dataclass(frozen=True)
class Wanted:
    """What to look for: due in [due_from_ms, due_to_ms), and whatever else is given, all of it at once."""

    due_from_ms: int = 0
    due_to_ms: int = MAX_TIMESTAMP_MS + 1
    position: Position | None = None
    key: str | None = None
    properties: tuple[tuple[str, str], ...] = ()

    def query(self) -> Query:
        """Return it as the index understands it."""
        return Query(self.due_from_ms, self.due_to_ms, self.position, self._matcher())

    def _matcher(self) -> Callable[[DueEntry], bool] | None:
        if self.key is None and not self.properties:
            return None
        key = None if self.key is None else self.key.encode()

        def matches(entry: DueEntry) -> bool:
            # Most entries have other keys: a look for the bytes spares reading their metadata.
            if key is not None and key not in entry.raw:
                return False
            metadata = _metadata(entry.raw)
            if metadata is None or (self.key is not None and metadata.partition_key != self.key):
                return False
            known = {(as_text(each.key), as_text(each.value)) for each in metadata.properties}
            return all(each in known for each in self.properties)

        return matches


class Pending:
    """The pending entries of one subscription; without `subscription` nobody is connected."""

    def __init__(
        self,
        index: TopicIndex,
        view: SubscriptionView,
        subscription: TrackedSubscription | None,
        limits: OperatorLimits,
    ) -> None:
        """Use `search`."""
        self._index = index
        self._view = view
        self._subscription = subscription
        self._limits = limits

    async def search(self, wanted: Wanted, cursor: str | None, limit: int, *, payload: bool) -> answers.Pending:
        """Return at most `limit` entries in due order, after looking at a bounded number; others get their turn.

        A page may be empty although more follow. Raises ValueError for a cursor that is none, StoreError.
        """
        query, at = wanted.query(), parse_cursor(cursor)
        entries: list[answers.Entry] = []
        at_a_time = self._limits.search_slice
        for _ in range(self._limits.search_scan // at_a_time):
            page = self._index.search.page(self._view, query, at, limit - len(entries), at_a_time)
            entries += [self._entry(found, payload) for found in page.found]
            at = page.cursor
            if at is None or len(entries) >= limit:
                break
            await asyncio.sleep(0)
        return {"entries": entries, "cursor": None if at is None else at.hex()}

    def _entry(self, found: Found, payload: bool) -> answers.Entry:
        entry = found.entry
        position = (entry.ledger, entry.entry)
        metadata, body = _parts(entry.raw)
        answer: answers.Entry = {
            "position": f"{entry.ledger}:{entry.entry}",
            "deliverAt": entry.deliver_at_ms,
            "publishTime": None if metadata is None else metadata.publish_time,
            "key": _key(metadata),
            "properties": {} if metadata is None else {as_text(x.key): as_text(x.value) for x in metadata.properties},
            "producerName": None if metadata is None else as_text(metadata.producer_name),
            "messages": entry.message_count,
            "size": len(entry.raw),
            "redeliveryCount": 0 if self._subscription is None else self._subscription.redelivery_count(position),
            "tier": "disk" if self._index.window.get(entry.key) is None else "memory",
            "state": self._state(position),
        }
        return {**answer, **_payload(metadata, body, self._limits.payload_peek_bytes)} if payload else answer

    def _state(self, position: tuple[int, int]) -> EntryState:
        """`ready` waits for permits, `in-flight`: a consumer has it."""
        if self._subscription is not None and position in self._subscription.dispatcher.unacked:
            return "in-flight"
        if position in self._view.outstanding:
            return "ready"
        return "expedited" if self._view.is_expedited(position) else "pending"


def parse_cursor(text: str | None) -> bytes | None:
    """The place a page ended at. Raises ValueError naming the value."""
    if not text:
        return None
    try:
        cursor = bytes.fromhex(text)
    except ValueError:
        cursor = b""
    if not KEY_LENGTH <= len(cursor) <= KEY_LENGTH + 1:
        raise ValueError(f"not a cursor: {text!r}")
    return cursor


def _metadata(raw: bytes) -> MessageMetadata | None:
    try:
        return entry_metadata(raw)
    except MalformedFrame:
        return None


def _key(metadata: MessageMetadata | None) -> str | None:
    return as_text(metadata.partition_key) if metadata is not None and metadata.HasField("partition_key") else None


def _parts(raw: bytes) -> tuple[MessageMetadata | None, bytes]:
    try:
        return entry_parts(raw)
    except MalformedFrame:
        return None, raw


def _payload(metadata: MessageMetadata | None, body: bytes, most: int) -> answers.Payload:
    """The payload in base64, cut to a bound, uncompressed where the standard library can."""
    compression = CompressionType.NONE if metadata is None else metadata.compression
    if compression == CompressionType.ZLIB:
        try:
            body = zlib.decompressobj().decompress(body, most)
            compression = CompressionType.NONE
        except zlib.error:
            pass
    return {
        "payload": base64.b64encode(body[:most]).decode(),
        "payloadSize": len(body) if metadata is None else metadata.uncompressed_size or len(body),
        "compression": CompressionType.Name(compression),
        "encrypted": metadata is not None and bool(metadata.encryption_keys),
    }
