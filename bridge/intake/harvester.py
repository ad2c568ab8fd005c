"""Reads a topic partition to its end and on: delayed entries into the index, immediate ones to the tail buffer.

The rule is by content only: an entry with `deliver_at_time` always goes through the index, even when it is due
already, so that harvester and feeds never disagree about whose an entry is.

While the index cannot be written nothing is read: what was not stored is in the broker, behind the index's harvested
position, and read from there when the disk takes it again. So nothing has to be kept here, however long that lasts.
"""

import asyncio
from collections.abc import Callable

import structlog

from bridge.broker.connection import BrokerConnection
from bridge.broker.reader import EntryReader, open_reader
from bridge.intake.given import Given
from bridge.intake.tail_buffer import TailBuffer
from bridge.limits import IntakeLimits
from bridge.net.backoff import Backoff
from bridge.protocol.entries import StoredEntry
from tracker import EARLIEST, NewEntry, Position, StoreError, TopicIndex

log = structlog.get_logger(__name__)


class Harvester:
    """One per owned topic partition."""

    def __init__(
        self,
        topic: str,
        index: TopicIndex,
        tail: TailBuffer,
        on_harvested: Callable[[], None],
        on_closed: Callable[[Exception], None],
        on_stalled: Callable[[StoreError], None],
        backoff: Backoff,
        limits: IntakeLimits,
    ) -> None:
        """Harvest into an index and a tail buffer; `start` begins.

        `on_harvested`: something is new in them; `on_closed`: reading ended, by an error; `on_stalled`: nothing
        can be stored, `resume` is to be called.
        """
        self._topic = topic
        self._index = index
        self._tail = tail
        self._on_harvested = on_harvested
        self._on_closed = on_closed
        self._on_stalled = on_stalled
        self._backoff = backoff
        self._limits = limits
        self._resume_at: float | None = None  # on the event loop's clock; None unless stalled
        self._tailed = tail.floor  # up to where the tail buffer has got everything
        self._connection: BrokerConnection | None = None
        self._reader: EntryReader | None = None
        self._seen_at_check: tuple[Position | None, bool] = (None, False)
        self.entries_read = 0
        self.position = index.harvested_position
        self.given = Given(self.position or EARLIEST, limits.withheld_max)

    async def start(self, connection: BrokerConnection) -> None:
        """Read on behind the index's harvested position. Raises BrokerError."""
        self._connection = connection
        await self._open()

    @property
    def stalled(self) -> bool:
        """Whether it waits for the index to take entries again."""
        return self._resume_at is not None

    async def resume(self) -> None:
        """Read on where the index ends if it is time to try again; may be called often. Raises BrokerError."""
        if self._resume_at is not None and asyncio.get_running_loop().time() >= self._resume_at:
            self._resume_at = None
            await self._open()

    def on_recovered(self) -> None:
        """The store was opened anew: `resume` at once, and do not skip what the index may have lost."""
        if self.stalled or self.position != self._index.harvested_position:
            self.close()
            self._resume_at = 0.0

    async def check(self) -> None:
        """Open the reader anew when it is stuck; to be called every `read_stall_s`. Raises BrokerError."""
        if self.stalled:
            return
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
        harvested = self._index.harvested_position
        assert harvested is not None
        # A write that failed may be there once the store was opened anew: what is immediate in it was not passed on.
        self.position = min(harvested, self._tailed)
        self._reader = await open_reader(connection, self._topic, self.position, self._on_entries, self._on_closed)
        if self.stalled:  # the index went back meanwhile
            self._reader.close()
        self._reader.top_up(self._limits.harvest_permits)

    def close(self) -> None:
        """Stop reading."""
        if self._reader is not None:
            self._reader.close()

    def _on_entries(self, entries: list[StoredEntry]) -> None:
        assert self._reader is not None
        try:
            for start in range(0, len(entries), self._limits.harvest_slice):
                self._store(entries[start : start + self._limits.harvest_slice])
        except StoreError as error:
            self._stall(error)
            return
        # Granted only when stored: a disk that fails or lags holds the broker back, not memory.
        if self._reader.permits <= self._limits.harvest_permits * 3 // 4:
            self._reader.top_up(self._limits.harvest_permits)
        self._on_harvested()

    def _stall(self, error: StoreError) -> None:
        self.close()
        self._resume_at = asyncio.get_running_loop().time() + self._backoff.next_s()
        self._on_stalled(error)

    def _store(self, entries: list[StoredEntry]) -> None:
        last = Position(entries[-1].ledger, entries[-1].entry)
        self._index.add(new_entries(entries), last)
        immediate = [entry for entry in entries if entry.deliver_at_ms is None and not entry.marker]
        if entries[0][:2] <= self._tailed:  # read again because the index had lost it
            immediate = [entry for entry in immediate if entry[:2] > self._tailed]
        if immediate:
            self._tail.push(immediate)
        self._tailed = max(self._tailed, last)
        self._note_given(entries)
        self._backoff.reset()
        self.position = last
        self.entries_read += len(entries)

    def _note_given(self, entries: list[StoredEntry]) -> None:
        self.given.note(entries)
        for entry in entries:
            if entry.marker:
                self.given.marker(Position(entry.ledger, entry.entry))


def new_entries(entries: list[StoredEntry]) -> list[NewEntry]:
    """The delayed ones, as the index takes them."""
    return [
        NewEntry(entry.deliver_at_ms, entry.ledger, entry.entry, entry.message_count, entry.raw)
        for entry in entries
        if entry.deliver_at_ms is not None and not entry.marker
    ]
