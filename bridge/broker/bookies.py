"""Entries read from the bookies that store them, in turns of the event loop; see `bridge.ledgers.bookies`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

from bridge.ledgers.bookies.errors import BookieError
from bridge.ledgers.bookies.layout import Bookie, LedgerLayout
from bridge.ledgers.bookies.reading import Ask, EntryReads, Told
from bridge.ledgers.bookies.wire import ANSWER_LENGTH, Answer, next_answer
from bridge.limits import RefillLimits


class Bookies:
    """An asynchronous context manager: one reader and its connections."""

    def __init__(self, limits: RefillLimits) -> None:
        """There are no connections yet."""
        self._limits = limits
        self._connections: dict[Bookie, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._unreached: dict[Bookie, str] = {}
        self._reads = EntryReads(limits.bookie_batch_entries, limits.bookie_batch_bytes, limits.bookie_single_reads)

    async def __aenter__(self) -> Self:
        """Return the reader itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        for _, writer in self._connections.values():
            writer.close()
        for _, writer in self._connections.values():
            with suppress(OSError):
                await writer.wait_closed()

    async def read(self, layout: LedgerLayout, ledger: int, first: int, last: int) -> list[bytes]:
        """Return some entries: see `EntryReads.read`. Raises BookieError."""
        reads = self._reads.read(layout, ledger, first, last)
        try:
            ask = next(reads)
            while True:
                ask = reads.send(await self._told(ask))
        except StopIteration as done:
            entries: list[bytes] = done.value
            return entries

    async def _told(self, ask: Ask) -> Told:
        try:
            async with asyncio.timeout(self._limits.bookie_timeout_s):
                reader, writer = await self._connection(ask.bookie)
                writer.write(ask.requests)
                return [await _answer(reader) for _ in range(ask.answers)]
        except BookieError as error:
            await self._drop(ask.bookie)
            return error
        except (OSError, EOFError) as error:  # TimeoutError is an OSError, IncompleteReadError an EOFError
            await self._drop(ask.bookie)
            return BookieError(f"the connection is lost: {str(error) or type(error).__name__}")

    async def _connection(self, bookie: Bookie) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if bookie in self._unreached:
            raise BookieError(self._unreached[bookie])
        if bookie not in self._connections:
            try:
                async with asyncio.timeout(self._limits.bookie_connect_timeout_s):
                    self._connections[bookie] = await asyncio.open_connection(*bookie)
            except OSError as error:
                reason = f"it cannot be reached: {str(error) or type(error).__name__}"
                self._unreached[bookie] = reason
                raise BookieError(reason) from error
        return self._connections[bookie]

    async def _drop(self, bookie: Bookie) -> None:
        _, writer = self._connections.pop(bookie, (None, None))
        if writer is not None:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _answer(reader: asyncio.StreamReader) -> Answer:
    """Raises BookieError, OSError, EOFError."""
    data = await reader.readexactly(ANSWER_LENGTH)
    found, size = next_answer(memoryview(data))
    if found is None:
        data += await reader.readexactly(size - len(data))
        found, size = next_answer(memoryview(data))
    assert found is not None, "it says how many bytes it needs"
    return found
