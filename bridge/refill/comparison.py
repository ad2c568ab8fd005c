"""Comparing an index with its topic: the same entries, at the same due times, or a list of those that differ."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

from bridge.broker.connection import BrokerConnection
from bridge.broker.fetch import read_range
from bridge.intake.harvester import new_entries
from bridge.limits import RefillLimits
from bridge.protocol.entries import StoredEntry
from tracker import Position, TopicIndex, decode_key, encode_key
from tracker.audit import (
    PARTITION,
    Cell,
    Scope,
    add_up,
    audit_scope,
    block_range,
    cell_fingerprints,
    index_fingerprints,
    noted_fingerprints,
    partition_keys,
)
from tracker.fingerprint import Fingerprint
from tracker.keys import clamp_timestamp

TopicSide = dict[Cell, Fingerprint]
"""What the topic holds."""


@dataclass
class ComparisonResult:
    """Of `compared` entries of the topic; `differing` is how many cells differ.

    `missing`: in the topic and not in the index at that due time; `unexpected`: the other way round.
    """

    compared: int = 0
    checksum: int = 0
    differing: int = 0
    missing: list[Position] = field(default_factory=list)
    unexpected: list[Position] = field(default_factory=list)
    ranges: list[tuple[Position, Position]] = field(default_factory=list)
    """Positions (after, upto] in which all that differs lies."""

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differing


class Comparison:
    """Reads a topic and its index; memory grows with the positions compared, 512 a fingerprint."""

    def __init__(self, topic: str, connection: BrokerConnection, index: TopicIndex, limits: RefillLimits) -> None:
        """Use `scope` first."""
        self._topic = topic
        self._connection = connection
        self._index = index
        self._limits = limits

    def lowest(self) -> Position:
        """Return the position up to which all subscriptions have everything: the broker may delete what is below."""
        marks = [view.mark_delete_position for view in self._index.views().values()]
        harvested = self._index.harvested_position
        assert harvested is not None
        return min(marks, default=harvested)

    def upto(self) -> Position | None:
        """Return the position up to which the index has the topic."""
        return self._index.harvested_position

    def lasts_ms(self, entries: int, *, by_job: bool) -> int:
        """How long it may take at most to read so many entries of the topic, here or by a job."""
        starts_ms = self._limits.audit_job_starts_ms if by_job else 0
        return starts_ms + self._limits.audit_ahead_ms + entries * 1000 // self._limits.audit_entries_per_s

    def scope(self, after: Position, upto: Position, now_ms: int, lasts_ms: int) -> Scope:
        """Return what can be compared, if the topic is read within `lasts_ms`."""
        return audit_scope(self._index, after, upto, now_ms, lasts_ms)

    async def topic_side(self, scope: Scope, on_read: Callable[[int], None]) -> TopicSide:
        """Read the topic here. `on_read` is told of entries as they come. Raises BrokerError."""
        found: TopicSide = {}

        def take(entries: list[StoredEntry]) -> None:
            add_up(found, fingerprints_of(entries, scope))
            on_read(len(entries))

        await read_range(self._connection, self._topic, scope.after, scope.upto, take)
        return found

    async def compare(self, in_topic: TopicSide, scope: Scope) -> ComparisonResult:
        """Compare what was read with the index. Raises BrokerError, StoreError."""
        total = Fingerprint.total(in_topic.values())
        result = ComparisonResult(*total)
        in_index: TopicSide = {}
        few = total.entries * self._limits.audit_few < self._index.entries
        index = self._index
        for part in noted_fingerprints(index, scope, in_topic) if few else index_fingerprints(index, scope):
            add_up(in_index, part)
            await asyncio.sleep(0)
        differing = sorted(cell for cell in {*in_topic, *in_index} if in_topic.get(cell) != in_index.get(cell))
        blocks = [cell for cell in differing if cell[0] != PARTITION]
        held = {number for kind, number in differing if kind == PARTITION and not self._is_dropped(number)}
        for block in blocks[: self._limits.audit_blocks_max]:
            after, upto = block_range(scope, block)
            if await self._list(after, upto, scope, result, None):
                result.ranges.append((after, upto))
        result.differing = len(result.ranges)
        if len(blocks) > self._limits.audit_blocks_max:
            result.differing += len(blocks) - self._limits.audit_blocks_max
            result.ranges = [(scope.after, scope.upto)]
        if held and await self._list(scope.after, scope.upto, scope, result, held):
            result.differing += len(held)
            result.ranges = [(scope.after, scope.upto)]
        return result

    async def _list(
        self, after: Position, upto: Position, scope: Scope, result: ComparisonResult, numbers: set[int] | None
    ) -> bool:
        """List the positions in (after, upto] that differ, of these time partitions or of what is ahead."""

        def is_meant(due_ms: int) -> bool:
            number = due_ms // scope.width_ms
            return number >= scope.cut if numbers is None else number in numbers

        in_topic = await self._due_times_in_topic(after, upto, is_meant)
        noted = (
            self._noted(after, upto) if numbers is None else [time async for time in self._stored(after, upto, numbers)]
        )
        in_index = await self._confirmed({*noted, *in_topic.items()}, is_meant)
        lowest, differs = self.lowest(), False
        for position in sorted({*in_topic, *in_index}):
            known, stored = in_topic.get(position), in_index.get(position)
            if (
                known == stored
                or position <= lowest
                or (known is not None and self._is_dropped(known // scope.width_ms))
            ):
                continue
            differs = True
            if known is not None and len(result.missing) < self._limits.audit_listed_max:
                result.missing.append(position)
            if stored is not None and len(result.unexpected) < self._limits.audit_listed_max:
                result.unexpected.append(position)
        return differs

    async def _due_times_in_topic(
        self, after: Position, upto: Position, is_meant: Callable[[int], bool]
    ) -> dict[Position, int]:
        found: dict[Position, int] = {}

        def take(entries: list[StoredEntry]) -> None:
            for new in new_entries(entries):
                due = clamp_timestamp(new.deliver_at_ms)
                if is_meant(due):
                    found[Position(new.ledger, new.entry)] = due

        await read_range(self._connection, self._topic, after, upto, take)
        return found

    def _noted(self, after: Position, upto: Position) -> list[tuple[Position, int]]:
        blocks = self._index.positions.blocks(after, upto)
        return [(Position(ledger, entry), due) for ledger, times in blocks for entry, due in times.items()]

    async def _stored(self, after: Position, upto: Position, numbers: set[int]) -> AsyncIterator[tuple[Position, int]]:
        for number in numbers:
            for keys in partition_keys(self._index, number):
                for due, ledger, entry in map(decode_key, keys):
                    if after < (ledger, entry) <= upto:
                        yield Position(ledger, entry), due
                await asyncio.sleep(0)

    async def _confirmed(
        self, times: Iterable[tuple[Position, int]], is_meant: Callable[[int], bool]
    ) -> dict[Position, int]:
        """Return those that are stored."""
        found: dict[Position, int] = {}
        for place, (position, due) in enumerate(times):
            if is_meant(due) and self._index.reader.contains(encode_key(due, *position)):
                found[position] = due
            if place % self._limits.audit_lookups == 0:
                await asyncio.sleep(0)
        return found

    def _is_dropped(self, number: int) -> bool:
        """Whether a time partition is gone: everything in it was delivered and acked."""
        table = self._index.table
        return number <= table.dropped_number and table.get(number) is None


def fingerprints_of(entries: list[StoredEntry], scope: Scope) -> TopicSide:
    """Return the fingerprints of entries of the topic."""
    return cell_fingerprints([encode_key(*new[:3]) for new in new_entries(entries)], scope)
