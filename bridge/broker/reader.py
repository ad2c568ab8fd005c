"""A non-durable, Exclusive reader: entries of a topic partition from a position on, as fast as permits are given.

Exclusive, because a non-durable Shared consumer would delay too (broker-side); raw entries, because
nothing is decoded here but the metadata.
"""

from collections.abc import Callable

from bridge.broker.connection import BrokerConnection, BrokerError
from bridge.clock import token
from bridge.protocol import commands
from bridge.protocol.entries import StoredEntry
from bridge.protocol.permits import Permits
from tracker import EARLIEST, Position

READER_NAME_PREFIX = "__delay-bridge-reader-"


class EntryReader:
    """Created by `open_reader`. Entries at or below the start position are dropped before `on_entries` sees them."""

    def __init__(
        self,
        connection: BrokerConnection,
        after: Position,
        on_entries: Callable[[list[StoredEntry]], None],
        on_closed: Callable[[Exception], None],
    ) -> None:
        """Register with the connection; nothing is sent yet."""
        self._connection = connection
        self._after = after
        self._on_entries = on_entries
        self._on_closed = on_closed
        self._permits = Permits()
        self.consumer_id = connection.register(self)
        self.closed = False

    @property
    def permits(self) -> int:
        """Messages that the broker may still send, in its own count: below zero after a batch larger than that."""
        return self._permits.count

    def top_up(self, permits: int) -> None:
        """Let the broker send so many messages from now on; ignored when the reader is closed."""
        if self.closed or self._connection.is_closed:
            return
        for grant in self._permits.top_up(permits):
            self._connection.send(commands.flow(self.consumer_id, grant))

    async def subscribe(self, topic: str) -> None:
        """Send SUBSCRIBE. Raises BrokerError."""
        request_id = self._connection.next_request_id()
        subscription = f"{READER_NAME_PREFIX}{token(self._connection.randbits)}"
        command = commands.subscribe_reader(topic, subscription, self.consumer_id, request_id, self._after)
        try:
            await self._connection.request(command, request_id)
        except BaseException:  # also when nobody waits any more: the broker may have opened it, or be about to
            self.close()
            raise

    async def last_position(self) -> Position:
        """Where the topic ends now; before its first entry the entry is -1. Raises BrokerError."""
        request_id = self._connection.next_request_id()
        command = commands.last_message_id(self.consumer_id, request_id)
        answer = (await self._connection.request(command, request_id)).getLastMessageIdResponse.last_message_id
        if answer.ledgerId >= 1 << 63:
            return EARLIEST
        return Position(answer.ledgerId, -1 if answer.entryId >= 1 << 63 else answer.entryId)

    def close(self) -> None:
        """Stop reading; sends CLOSE_CONSUMER without waiting for the answer."""
        if self.closed:
            return
        self._forget()
        if not self._connection.is_closed:
            self._connection.send(commands.close_consumer(self.consumer_id, self._connection.next_request_id()))

    def on_entries(self, entries: list[StoredEntry]) -> None:
        """From the connection."""
        if self.closed:
            return
        before = self._permits.count
        self._permits.use(sum([entry.batch_size for entry in entries]))
        if (entries[0].ledger, entries[0].entry) <= self._after:
            entries = [entry for entry in entries if (entry.ledger, entry.entry) > self._after]
            if not entries:
                self.top_up(before)
        if entries:
            self._give(entries)

    def _give(self, entries: list[StoredEntry]) -> None:
        try:
            self._on_entries(entries)
        except Exception as error:  # theirs alone: others read by the same connection
            self.close()
            self._on_closed(error)

    def on_active(self, active: bool) -> None:
        """Readers are always active."""

    def on_closed(self, reason: str) -> None:
        """From the connection."""
        if not self.closed:
            self.closed = True
            self._on_closed(BrokerError(reason))

    def _forget(self) -> None:
        self.closed = True
        self._connection.unregister(self.consumer_id)


async def open_reader(
    connection: BrokerConnection,
    topic: str,
    after: Position,
    on_entries: Callable[[list[StoredEntry]], None],
    on_closed: Callable[[Exception], None],
) -> EntryReader:
    """Start reading `topic` behind `after`, with no permits yet. Raises BrokerError.

    `on_closed`: nothing more comes, for a BrokerError, or for whatever else `on_entries` has raised.
    """
    reader = EntryReader(connection, after, on_entries, on_closed)
    await reader.subscribe(topic)
    return reader
