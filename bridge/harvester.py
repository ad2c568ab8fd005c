"""Reads a topic partition to its end and on: delayed entries into the index, immediate ones to the tail buffer.

The rule is by content only: an entry with `deliver_at_time` always goes through the index, even when it is due
already, so that harvester and feeds never disagree about whose an entry is.
"""

from collections.abc import Callable

import structlog

from bridge import limits
from bridge.broker.connection import BrokerConnection
from bridge.broker.reader import EntryReader, open_reader
from bridge.protocol.entries import StoredEntry
from bridge.tail_buffer import TailBuffer
from tracker import EARLIEST, NewEntry, Position, StoreError, TopicIndex

log = structlog.get_logger(__name__)


class Harvester:
    """One per owned topic partition."""

    def __init__(
        self,
        topic: str,
        index: TopicIndex,
        tail: TailBuffer,
        now_ms: Callable[[], int],
        on_harvested: Callable[[], None],
        on_closed: Callable[[str], None],
    ) -> None:
        """`on_harvested`: something is new in index or tail buffer; `on_closed`: reading ended, with the reason."""
        self._topic = topic
        self._index = index
        self._tail = tail
        self._now_ms = now_ms
        self._on_harvested = on_harvested
        self._on_closed = on_closed
        self._connection: BrokerConnection | None = None
        self._reader: EntryReader | None = None
        self._seen_at_check: tuple[Position | None, bool] = (None, False)
        self._owed = 0  # permits used up and not given again yet
        self.entries_read = 0
        self.position = index.harvested_position

    async def start(self, connection: BrokerConnection) -> None:
        """Read on behind the index's harvested position. Raises BrokerError."""
        self._connection = connection
        await self._open()

    async def check(self) -> None:
        """Open the reader anew when it is stuck; to be called every READ_STALL_S. Raises BrokerError."""
        assert self._reader is not None
        behind = await self._reader.last_position() > (self.position or EARLIEST)
        if behind and self._seen_at_check == (self.position, True):
            log.warning("harvester is stuck, reading anew", topic=self._topic, after=str(self.position))
            self._reader.close()
            await self._open()
            behind = False
        self._seen_at_check = (self.position, behind)

    async def _open(self) -> None:
        connection = self._connection
        assert connection is not None
        assert self.position is not None
        self._owed = 0
        self._reader = await open_reader(connection, self._topic, self.position, self._on_entries, self._on_closed)
        self._reader.grant(limits.HARVEST_PERMITS)

    def close(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            self._reader.close()

    def _on_entries(self, entries: list[StoredEntry]) -> None:
        assert self._reader is not None
        try:
            for start in range(0, len(entries), limits.HARVEST_SLICE):
                self._store(entries[start : start + limits.HARVEST_SLICE])
        except StoreError as error:
            # What was not stored will be read again: the harvested position has not moved past it.
            self._reader.close()
            self._on_closed(f"cannot store: {error}")
            return
        # Granted only when stored: a disk that fails or lags holds the broker back, not memory.
        self._owed += sum([entry.message_count for entry in entries])
        if self._owed >= limits.HARVEST_PERMITS // 4:
            self._reader.grant(self._owed)
            self._owed = 0
        self._on_harvested()

    def _store(self, entries: list[StoredEntry]) -> None:
        last = Position(entries[-1].ledger, entries[-1].entry)
        self._index.add(new_entries(entries), last, self._now_ms())
        immediate = [entry for entry in entries if entry.deliver_at_ms is None and not entry.marker]
        if immediate:
            self._tail.push(immediate)
        self.position = last
        self.entries_read += len(entries)


def new_entries(entries: list[StoredEntry]) -> list[NewEntry]:
    """The delayed ones, as the index takes them."""
    return [
        NewEntry(entry.deliver_at_ms, entry.ledger, entry.entry, entry.message_count, entry.raw)
        for entry in entries
        if entry.deliver_at_ms is not None and not entry.marker
    ]
