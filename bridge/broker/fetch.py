"""Single entries read again from the broker, for redelivery and for gaps."""

import asyncio
from collections.abc import Callable, Sequence

from bridge import limits
from bridge.broker.connection import BrokerConnection, BrokerError
from bridge.broker.reader import open_reader
from bridge.protocol.entries import StoredEntry
from tracker import Position

MAX_SKIP = 64
"""Entries nobody asked for that are read along, rather than starting another reader."""


async def read_range(
    connection: BrokerConnection,
    topic: str,
    after: Position,
    to: Position,
    on_entries: Callable[[list[StoredEntry]], None],
    permits: int = limits.FEED_PERMITS,
) -> None:
    """Give every entry in (after, to] to `on_entries`, in order; `to` must exist. Raises BrokerError."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    received = 0

    def receive(entries: list[StoredEntry]) -> None:
        nonlocal received
        received += len(entries)
        if done.done():
            return
        wanted = [entry for entry in entries if (entry.ledger, entry.entry) <= to]
        if wanted:
            on_entries(wanted)
        if (entries[-1].ledger, entries[-1].entry) >= to:
            done.set_result(None)
        else:
            reader.grant(sum(entry.message_count for entry in entries))

    def lost(reason: str) -> None:
        if not done.done():
            done.set_exception(BrokerError(reason))

    reader = await open_reader(connection, topic, after, receive, lost)
    try:
        reader.grant(permits)
        while not done.done():
            before = received
            await asyncio.wait({done}, timeout=limits.REQUEST_TIMEOUT_S)
            if not done.done() and received == before:
                raise BrokerError(f"{topic}: nothing read behind {after} for {limits.REQUEST_TIMEOUT_S:g} s")
        await done
    finally:
        reader.close()
        done.cancel()


async def fetch_entries(
    connection: BrokerConnection, topic: str, positions: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], StoredEntry]:
    """The entries at `positions` (ascending); those the broker has deleted are missing. Raises BrokerError."""
    wanted = set(positions)
    found: dict[tuple[int, int], StoredEntry] = {}

    def keep(entries: list[StoredEntry]) -> None:
        for entry in entries:
            if (entry.ledger, entry.entry) in wanted:
                found[entry.ledger, entry.entry] = entry

    for first, last in _runs(positions):
        after = Position(first[0], first[1] - 1)
        span = last[1] - first[1] + 1
        await read_range(connection, topic, after, Position(*last), keep, permits=max(span, 1))
    return found


def _runs(positions: Sequence[tuple[int, int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Neighbours in the same ledger, joined over gaps of up to MAX_SKIP entries."""
    runs: list[tuple[tuple[int, int], tuple[int, int]]] = []
    for position in positions:
        if runs:
            first, last = runs[-1]
            if last[0] == position[0] and position[1] - last[1] <= MAX_SKIP:
                runs[-1] = (first, position)
                continue
        runs.append((position, position))
    return runs
