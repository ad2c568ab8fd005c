"""Both who read from bookies, a job's and the bridge's, with one that answers as it should, and in other ways."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from struct import Struct

import pytest

from bridge.broker import bookies as in_bridge
from bridge.ledgers.bookies.digests import Digest
from bridge.ledgers.bookies.errors import BookieError
from bridge.ledgers.bookies.layout import Bookie, Ensemble, LedgerLayout
from bridge.limits import RefillLimits
from spark_jobs.ledgers import bookies as in_job
from tests.unit.test_bookie_reading import LEDGER, Store, content

LIMITS = RefillLimits(bookie_timeout_s=0.3, bookie_connect_timeout_s=0.3, bookie_batch_entries=7, bookie_single_reads=5)
Read = Callable[[LedgerLayout, int], Awaitable[list[bytes]]]
Answers = Callable[[bytes], bytes | None]
"""Of a request; None for no word and no end."""


@contextlib.asynccontextmanager
async def bookie(answers: Answers) -> AsyncIterator[LedgerLayout]:
    """Where one listens."""
    busy: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        busy.add(asyncio.current_task())
        try:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    size = await reader.readexactly(4)
                    answer = answers(size + await reader.readexactly(Struct(">I").unpack(size)[0]))
                    if answer is None:
                        await reader.read()
                        return
                    if not answer:
                        return
                    for part in (answer[:5], answer[5:]):
                        writer.write(part)
                        await writer.drain()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield LedgerLayout(1, Digest.CRC32C, (Ensemble(0, (Bookie("127.0.0.1", port),)),))
    finally:
        server.close()
        await asyncio.wait([task for task in busy if task is not None] or [asyncio.ensure_future(asyncio.sleep(0))])


async def by_bridge(layout: LedgerLayout, last: int) -> list[bytes]:
    found: list[bytes] = []
    async with in_bridge.Bookies(LIMITS) as reader:
        while len(found) <= last:
            found += await reader.read(layout, LEDGER, len(found), last)
    return found


async def by_job(layout: LedgerLayout, last: int) -> list[bytes]:
    def read() -> list[bytes]:
        found: list[bytes] = []
        with in_job.Bookies(7, 5, 0.3) as reader:
            while len(found) <= last:
                found += reader.read(layout, LEDGER, len(found), last)
                if len(found) <= last:
                    reader.ask_ahead(layout, LEDGER, len(found), last)
        return found

    return await asyncio.to_thread(read)


@pytest.fixture(params=[by_bridge, by_job])
def read(request: pytest.FixtureRequest) -> Read:
    found: Read = request.param
    return found


@pytest.mark.parametrize("batches", [True, False])
async def test_all_entries_come(read: Read, batches: bool) -> None:
    async with bookie(Store(*range(50), batches=batches).answer) as layout:
        assert await read(layout, 49) == [content(entry) for entry in range(50)]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "closed the connection|the connection is lost"),
        (None, "the connection is lost: .*[Tt]ime"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it answered with a frame of 1213486160 bytes"),
        (Struct(">I").pack(24) + bytes(24), "0:0, which was not asked for|answered 0:0 when asked for 17:0"),
    ],
)
async def test_what_is_no_answer(read: Read, answer: bytes | None, said: str) -> None:
    async with bookie(lambda _: answer) as layout:
        with pytest.raises(BookieError, match=said):
            await read(layout, 3)


async def test_one_that_closes_in_between_is_asked_again(read: Read) -> None:
    store, asked = Store(*range(50)), 0

    def answer(request: bytes) -> bytes:
        nonlocal asked
        asked += 1
        return b"" if asked == 3 else store.answer(request)

    async with bookie(answer) as layout:
        assert await read(layout, 49) == [content(entry) for entry in range(50)]
    assert asked > 3


async def test_nobody_listens(read: Read) -> None:
    async with bookie(lambda _: b"") as layout:
        pass
    with pytest.raises(BookieError, match="it cannot be reached: "):
        await read(layout, 3)
