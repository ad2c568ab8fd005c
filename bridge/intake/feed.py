"""What one subscription still has to get of the immediate entries, in position order.

At the tail it takes from the buffer that all subscriptions share. Behind that it reads for itself, from the
broker, with permits tied to what its consumers take: a slow subscription holds back its own reader only.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import structlog

from bridge.broker.connection import BrokerError
from bridge.broker.reader import EntryReader
from bridge.clock import RandBits, system_randbits
from bridge.intake.tail_buffer import TailBuffer
from bridge.limits import IntakeLimits
from bridge.net.backoff import Backoff
from bridge.net.tasks import Tasks
from bridge.protocol.entries import StoredEntry
from tracker import AckSet, Position

log = structlog.get_logger(__name__)

OpenReader = Callable[
    [Position, Callable[[list[StoredEntry]], None], Callable[[Exception], None]], Awaitable[EntryReader]
]


class Feed:
    """`take` gives entries while there are any; `wake` is called when there may be more."""

    def __init__(
        self,
        start: Position,
        acks: AckSet,
        tail: TailBuffer,
        open_reader: OpenReader,
        wake: Callable[[], None],
        tasks: Tasks,
        limits: IntakeLimits,
        randbits: RandBits = system_randbits,
    ) -> None:
        """`start`: everything immediate at or below it is acked."""
        self.position = start
        self._acks = acks
        self._tail = tail
        self._open_reader = open_reader
        self._wake = wake
        self._tasks = tasks
        self._limits = limits
        self._backoff = Backoff(randbits, (limits.feed_retry_s,))
        self._number: int | None = None  # the next item of the tail buffer; None while reading for itself
        self._queue: deque[StoredEntry] = deque()
        self._queue_bytes = 0
        self._read_position = start
        self._entry_bytes = float(limits.feed_first_guess_bytes)  # what an entry weighs here, as seen lately
        self._reader: EntryReader | None = None
        self._heard = 0.0  # when the own reader last gave something
        self._opening: asyncio.Task[None] | None = None
        self._taken: deque[tuple[int, int]] = deque()
        self._join_tail()

    @property
    def at_tail(self) -> bool:
        """Whether it takes from the shared buffer."""
        return self._number is not None

    def take(self, limit: int, max_bytes: int) -> list[StoredEntry]:
        """Entries that are not acked yet: at most `limit`, and none after those so far weigh `max_bytes`.

        None available does not mean none to come.
        """
        result: list[StoredEntry] = []
        size = 0
        while len(result) < limit and size < max_bytes:
            entry = self._next()
            if entry is None:
                break
            if not self._acks.contains(entry.ledger, entry.entry):
                result.append(entry)
                size += len(entry.raw)
        if result:
            self._taken.extend((entry.ledger, entry.entry) for entry in result)
            if len(self._taken) > self._limits.feed_taken_max:
                self._taken = deque(position for position in self._taken if not self._acks.contains(*position))
        return result

    def is_past(self, position: tuple[int, int]) -> bool:
        """Whether nothing that lies before a position is to come any more; it must have been harvested."""
        if position <= self.position:
            return True
        if self._queue:
            return self._queue[0][:2] > position
        if self._number is None:
            return position <= self._read_position
        if self._number < self._tail.first:
            return False
        return self._number == self._tail.end or self._tail.item(self._number)[:2] > position

    @property
    def to_come(self) -> tuple[list[tuple[int, int]], Position | None]:
        """Where what is to come lies, acked or not; and if that is not all, the position behind which it has to read
        for the rest.
        """
        listed = [(entry.ledger, entry.entry) for entry in self._queue]
        if self._number is not None and self._number >= self._tail.first:
            listed += [each for each in self._tail.positions_from(self._number) if each > self.position]
            return listed, None
        return listed, max(self.position, self._read_position)

    def checkpoint(self) -> Position:
        """Everything immediate at or below it is acked."""
        taken, acks = self._taken, self._acks
        while taken and acks.contains(*taken[0]):
            taken.popleft()
        if taken:
            return Position(taken[0][0], taken[0][1] - 1)
        return max(self.position, acks.mark_delete_position)

    def close(self) -> None:
        """Stop reading."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # -- the next entry

    def _next(self) -> StoredEntry | None:
        if self._queue:
            entry = self._queue.popleft()
            self._queue_bytes -= len(entry.raw)
            self._grant()
        else:
            found = self._next_of_tail()
            if found is None:
                return None
            entry = found
        self.position = Position(entry.ledger, entry.entry)
        return entry

    def _next_of_tail(self) -> StoredEntry | None:
        while self._number is not None:
            if self._number < self._tail.first:
                self._number = None  # too slow for the buffer: read for itself
                self._read_position = max(self.position, self._read_position)
                break
            if self._number == self._tail.end:
                return None
            entry = self._tail.item(self._number)
            self._number += 1
            # The own reader may have been ahead of the harvester.
            if (entry.ledger, entry.entry) > self.position:
                return entry
        self._start_reading()
        return None

    def _join_tail(self) -> None:
        if self._read_position >= self._tail.floor:
            self._number = self._tail.number_after(self._read_position)
            if self._reader is not None:
                self._reader.close()
                self._reader = None

    # -- the own reader

    def _start_reading(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._reader is not None and now - self._heard > self._limits.read_stall_s:
            # Not at the tail, so there is more to read.
            log.debug("feed reads anew", after=str(self._read_position))
            self._reader.close()
            self._reader = None
        if self._reader is None and self._opening is None:
            self._heard = now
            self._opening = self._tasks.spawn(self._open())

    async def _open(self) -> None:
        try:
            reader = await self._open_reader(self._read_position, self._on_entries, self._on_closed)
        except BrokerError as error:
            log.warning("feed cannot read", after=str(self._read_position), reason=str(error))
            await asyncio.sleep(self._backoff.next_s())
            self._opening = None
            self._wake()
            return
        self._opening = None
        if reader.closed:
            self._wake()
            return
        self._reader = reader
        self._heard = asyncio.get_running_loop().time()
        self._grant()

    def _grant(self) -> None:
        """Keep what is under way plus what is queued within the queue's limits, in entries and in bytes.

        For so many permits a broker sends up to as many entries, batches or not.
        """
        if self._reader is None:
            return
        by_count = self._limits.feed_queue_entries - len(self._queue)
        by_bytes = int((self._limits.feed_queue_bytes - self._queue_bytes) / self._entry_bytes)
        allowed = max(min(by_count, by_bytes, self._limits.feed_permits), 0 if self._queue else 1)
        if allowed and self._reader.permits <= allowed // 2:
            self._reader.top_up(allowed)

    def _on_entries(self, entries: list[StoredEntry]) -> None:
        for entry in entries:
            self._entry_bytes += (len(entry.raw) - self._entry_bytes) / 4
            if entry.deliver_at_ms is None and not entry.marker:
                self._queue.append(entry)
                self._queue_bytes += len(entry.raw)
        if self._reader is not None and self._reader.permits > self._limits.feed_permits:
            # A batch that claims to be of less than no messages gave the broker more permits than the queue holds.
            self._reader.close()
            self._reader = None
        self._heard = asyncio.get_running_loop().time()
        last = entries[-1]
        self._read_position = Position(last.ledger, last.entry)
        self._join_tail()
        self._grant()
        self._wake()

    def _on_closed(self, error: Exception) -> None:
        self._reader = None
        if isinstance(error, BrokerError):
            self._wake()
        else:
            self._tasks.on_failed(error)
