"""Single entries read again from the broker, for redelivery and for gaps."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bridge.broker.connection import BrokerConnection, BrokerError
from bridge.broker.reader import open_reader
from bridge.net.tasks import all_of
from bridge.net.waiting import is_set_within
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
) -> None:
    """Give every entry in (after, to] to `on_entries`, in order. Raises BrokerError.

    A reader that gives nothing for `range_stall_s` is replaced by another one behind what was read.
    """
    await read_until(
        connection,
        topic,
        after,
        to,
        on_entries,
        lambda: False,
        connection.limits.range_permits,
        connection.limits.request_timeout_s,
    )


async def read_until(
    connection: BrokerConnection,
    topic: str,
    after: Position,
    to: Position,
    on_entries: Callable[[list[StoredEntry]], None],
    enough: Callable[[], bool],
    permits: int,
    patience_s: float,
) -> Position:
    """`read_range` until there is `enough`; returns how far it came. Raises BrokerError.

    `patience_s`: how long readers may give nothing.
    """
    silent_s = 0.0
    while after < to and not enough():
        reached = await _read_until_silent(connection, topic, after, to, on_entries, permits, enough)
        silent_s = silent_s + connection.limits.range_stall_s if reached == after else 0.0
        if silent_s >= patience_s:
            raise BrokerError(f"{topic}: nothing read behind {after} for {silent_s:g} s")
        after = reached
    return after


async def _read_until_silent(
    connection: BrokerConnection,
    topic: str,
    after: Position,
    to: Position,
    on_entries: Callable[[list[StoredEntry]], None],
    permits: int,
    enough: Callable[[], bool],
) -> Position:
    """Read towards `to`; returns how far it came."""
    reached = after
    progress = asyncio.Event()
    lost: list[Exception] = []

    def receive(entries: list[StoredEntry]) -> None:
        nonlocal reached
        wanted = [entry for entry in entries if (entry.ledger, entry.entry) <= to]
        if wanted and reached < to:
            on_entries(wanted)
        reached = Position(entries[-1].ledger, entries[-1].entry)
        progress.set()
        if reached < to and not enough():
            reader.top_up(permits)

    def on_closed(error: Exception) -> None:
        lost.append(error)
        progress.set()

    reader = await open_reader(connection, topic, after, receive, on_closed)
    try:
        reader.top_up(permits)
        while reached < to and not enough():
            progress.clear()
            if not await is_set_within(progress, connection.limits.range_stall_s):
                break
            if lost:
                raise lost[0]
    finally:
        reader.close()
    return reached


class Fetched(NamedTuple):
    """What became of the positions asked for; the bytes of others were not read, for there was enough already."""

    found: dict[tuple[int, int], StoredEntry]
    gone: list[tuple[int, int]]
    """Deleted in the broker."""
    failed: list[tuple[int, int]]
    """Could not be read this time."""
    errors: list[BrokerError]
    """Why."""


async def fetch_entries(
    connection: BrokerConnection,
    topic: str,
    positions: Sequence[tuple[int, int]],
    max_bytes: float = math.inf,
    patience_s: float | None = None,
) -> Fetched:
    """Read the entries at `positions` (ascending), and stop when those found weigh `max_bytes`.

    `patience_s`: how long the broker may give nothing before a position counts as failed; by default as long as a
    request may take.
    """
    patience_s = connection.limits.request_timeout_s if patience_s is None else patience_s
    wanted = set(positions)
    fetched = Fetched({}, [], [], [])
    size = 0

    def keep(entries: list[StoredEntry]) -> None:
        nonlocal size
        for entry in entries:
            if entry[:2] in wanted:
                fetched.found[entry.ledger, entry.entry] = entry
                size += len(entry.raw)

    def enough() -> bool:
        return size >= max_bytes

    async def read(run: list[tuple[int, int]]) -> BrokerError | None:
        after, to = Position(run[0][0], run[0][1] - 1), Position(*run[-1])
        span = run[-1][1] - run[0][1] + 1
        try:
            reached = await read_until(connection, topic, after, to, keep, enough, span, patience_s)
        except BrokerError as error:
            return error
        fetched.gone.extend(one for one in run if one <= reached and one not in fetched.found)
        return None

    runs, readers = _runs(positions), connection.limits.range_readers
    for start in range(0, len(runs), readers):
        if enough():
            break
        together = runs[start : start + readers]
        for run, error in zip(together, await all_of(map(read, together)), strict=True):
            if error is not None and error.code is not None and len(together) > 1:
                # The broker refused it: a policy may leave room for one reader, and not for so many.
                error = await read(run)
            if error is not None:
                fetched.failed.extend(one for one in run if one not in fetched.found)
                fetched.errors.append(error)
    return fetched


def _runs(positions: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Neighbours in the same ledger, joined over gaps of up to MAX_SKIP entries."""
    runs: list[list[tuple[int, int]]] = []
    for position in positions:
        last = runs[-1][-1] if runs else (-1, 0)
        if last[0] == position[0] and position[1] - last[1] <= MAX_SKIP:
            runs[-1].append(position)
        else:
            runs.append([position])
    return runs
