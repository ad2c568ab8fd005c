"""Where what is missing is read: from the bookies as far as they give it, else through the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from bridge.broker.admin import AdminClient, AdminError
from bridge.broker.bookies import Bookies
from bridge.broker.connection import BrokerConnection, BrokerError
from bridge.broker.fetch import read_until
from bridge.ledgers.bookies.errors import BookieError
from bridge.ledgers.bookies.layout import Layout
from bridge.ledgers.bookies.read_from import ReadFrom
from bridge.limits import RefillLimits
from bridge.protocol.entries import StoredEntry, entry_from_bookie
from bridge.refill.rebuild_status import NOTHING_READ
from tracker import EARLIEST, Position

log = structlog.get_logger(__name__)

OnEntries = Callable[[list[StoredEntry]], None]


class TopicSource:
    """Reads ranges of one topic partition, one at a time; the caller sees to that."""

    def __init__(
        self,
        topic: str,
        connection: BrokerConnection,
        admin: AdminClient,
        read_from: ReadFrom,
        limits: RefillLimits,
    ) -> None:
        """Nothing is read yet."""
        self._topic = topic
        self._connection = connection
        self._admin = admin
        self._read_from = read_from
        self._limits = limits
        self.sources = NOTHING_READ
        """Of the last range, as far as it is read."""
        self._reached = EARLIEST

    async def read(self, after: Position, to: Position, on_entries: OnEntries, enough: Callable[[], bool]) -> Position:
        """Give the entries in (after, to] to `on_entries`, in order, until there is `enough`; return how far it came.

        Raises BrokerError.
        """
        self.sources = NOTHING_READ
        if self._read_from is not ReadFrom.broker:
            after = await self._read_there(after, to, on_entries, enough)
            if after >= to or enough():
                return after
            log.info("reading through the broker", topic=self._topic, reason=self.sources.not_from_bookies)
        limits = self._connection.limits
        return await read_until(
            self._connection, self._topic, after, to, on_entries, enough, limits.range_permits, limits.request_timeout_s
        )

    async def _read_there(
        self, after: Position, to: Position, on_entries: OnEntries, enough: Callable[[], bool]
    ) -> Position:
        """Raises BrokerError when nobody else is to be asked."""
        self._reached = after
        try:
            sizes, layouts = await self._admin.ledger_layouts(self._topic)
            if to.ledger > max(sizes, default=-1):
                raise BookieError(f"ledger {to.ledger} is not listed")
            async with Bookies(self._limits) as bookies:
                for ledger in sorted(sizes):
                    first = after.entry + 1 if ledger == after.ledger else 0
                    last = to.entry if ledger == to.ledger else sizes[ledger] - 1
                    if after.ledger <= ledger <= to.ledger and not enough():
                        await self._read_ledger(bookies, layouts[ledger], (ledger, first, last), on_entries, enough)
        except (AdminError, BookieError) as error:
            self.sources = self.sources._replace(not_from_bookies=str(error))
            if self._read_from is ReadFrom.bookies:
                raise BrokerError(f"{self._topic}: not read from the bookies: {error}") from error
            return self._reached
        # Ledgers that are gone have nothing, and the last position may be in one of them.
        return self._reached if enough() else to

    async def _read_ledger(
        self,
        bookies: Bookies,
        layout: Layout,
        wanted: tuple[int, int, int],
        on_entries: OnEntries,
        enough: Callable[[], bool],
    ) -> None:
        """Read (ledger, first entry, last entry), giving way in between: deliveries come first. Raises BookieError."""
        if isinstance(layout, str):
            raise BookieError(layout)
        time = asyncio.get_running_loop().time
        ledger, first, last = wanted
        while first <= last and not enough():
            raws = await bookies.read(layout, ledger, first, last)
            began = time()
            entries = _before_a_transaction(ledger, first, raws)
            if entries:
                self.sources = self.sources._replace(from_bookies=self.sources.from_bookies + len(entries))
                on_entries(entries)
                self._reached = Position(ledger, first + len(entries) - 1)
            first += len(entries)
            if len(entries) < len(raws):
                raise BookieError(f"{ledger}:{first} is of a transaction")
            await asyncio.sleep((time() - began) * self._limits.bookie_rest)


def _before_a_transaction(ledger: int, first: int, raws: list[bytes]) -> list[StoredEntry]:
    entries: list[StoredEntry] = []
    for raw in raws:
        entry = entry_from_bookie(ledger, first + len(entries), raw)
        if entry is None:
            break
        entries.append(entry)
    return entries
