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
    """Give every entry in (after, to] to `on_entries`, in order. Raises BrokerError.

    A reader that gives nothing for READ_STALL_S is replaced by another one behind what was read.
    """
    silent_s = 0.0
    while after < to:
        reached = await _read_until_silent(connection, topic, after, to, on_entries, permits)
        silent_s = silent_s + limits.READ_STALL_S if reached == after else 0.0
        if silent_s >= limits.REQUEST_TIMEOUT_S:
            raise BrokerError(f"{topic}: nothing read behind {after} for {silent_s:g} s")
        after = reached


async def _read_until_silent(
    connection: BrokerConnection,
    topic: str,
    after: Position,
    to: Position,
    on_entries: Callable[[list[StoredEntry]], None],
    permits: int,
) -> Position:
    """Read towards `to`; returns how far it came."""
    reached = after
    progress = asyncio.Event()
    lost: list[str] = []

    def receive(entries: list[StoredEntry]) -> None:
        nonlocal reached
        wanted = [entry for entry in entries if (entry.ledger, entry.entry) <= to]
        if wanted and reached < to:
            on_entries(wanted)
        reached = Position(entries[-1].ledger, entries[-1].entry)
        progress.set()
        if reached < to:
            reader.grant(sum(entry.message_count for entry in entries))

    def on_closed(reason: str) -> None:
        lost.append(reason)
        progress.set()

    reader = await open_reader(connection, topic, after, receive, on_closed)
    try:
        reader.grant(permits)
        while reached < to:
            progress.clear()
            try:
                async with asyncio.timeout(limits.READ_STALL_S):
                    await progress.wait()
            except TimeoutError:
                break
            if lost:
                raise BrokerError(lost[0])
    finally:
        reader.close()
    return reached


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
