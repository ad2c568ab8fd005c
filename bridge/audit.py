"""Comparing an index with its topic: the same entries, at the same due times, or a list of those that differ."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import structlog

from bridge import limits
from bridge.broker.connection import BrokerConnection, BrokerError
from bridge.broker.fetch import read_range
from bridge.harvester import new_entries
from bridge.protocol.entries import StoredEntry
from tracker import Position, StoreError, TopicIndex, encode_key
from tracker.audit import Block, add_up, block_fingerprints, index_fingerprints
from tracker.fingerprint import Fingerprint
from tracker.positions import BLOCK_ENTRIES, BLOCK_SHIFT

log = structlog.get_logger(__name__)


@dataclass
class AuditStatus:
    """One audit. `missing`: in the topic and not in the index at that due time; `unexpected`: the other way round."""

    started_ms: int
    entries_read: int = 0
    compared: int = 0
    checksum: int = 0
    differing_blocks: int = 0
    missing: list[Position] = field(default_factory=list)
    unexpected: list[Position] = field(default_factory=list)
    finished_ms: int | None = None
    error: str | None = None

    @property
    def state(self) -> str:
        """One of running, succeeded (all is equal), differs, failed."""
        if self.finished_ms is None:
            return "running"
        if self.error is not None:
            return "failed"
        return "differs" if self.differing_blocks else "succeeded"

    def answer(self) -> dict[str, Any]:
        """Return what REST says."""
        return {
            "state": self.state,
            "entriesRead": self.entries_read,
            "compared": self.compared,
            "checksum": f"{self.checksum:016x}",
            "differingBlocks": self.differing_blocks,
            "missing": [str(one) for one in self.missing],
            "unexpected": [str(one) for one in self.unexpected],
            "startedAt": self.started_ms,
            "finishedAt": self.finished_ms,
            "error": self.error,
        }


class Audit:
    """Reads the topic once and all keys of the index; memory grows with the positions compared, 512 a fingerprint."""

    def __init__(self, topic: str, connection: BrokerConnection, index: TopicIndex, status: AuditStatus) -> None:
        """Use `run`."""
        self._topic = topic
        self._connection = connection
        self._index = index
        self._status = status

    async def run(self) -> None:
        """Compare what lies above the floor and above what all subscriptions have: the broker may delete the rest."""
        status = self._status
        try:
            await self._compare()
        except (BrokerError, StoreError) as error:
            status.error = str(error)
        if status.state != "succeeded":
            log.warning("audit", topic=self._topic, **status.answer() | {"state": status.error or "differs"})

    async def _compare(self) -> None:
        after, upto = self._lowest(), self._index.harvested_position
        if upto is None or after >= upto:
            return
        in_topic = await self._topic_side(after, upto)
        in_index: dict[Block, Fingerprint] = {}
        for part in index_fingerprints(self._index, after, upto):
            add_up(in_index, part)
            await asyncio.sleep(0)
        # What went meanwhile may be in one and not in the other.
        lowest = self._lowest()
        if lowest > after:
            passed = (lowest.ledger, lowest.entry >> BLOCK_SHIFT)
            in_topic = {block: found for block, found in in_topic.items() if block > passed}
            in_index = {block: found for block, found in in_index.items() if block > passed}
        total = Fingerprint()
        for found in in_topic.values():
            total = total.plus(found)
        self._status.compared, self._status.checksum = total
        differing = sorted(block for block in {*in_topic, *in_index} if in_topic.get(block) != in_index.get(block))
        self._status.differing_blocks = len(differing)
        for block in differing[: limits.AUDIT_BLOCKS_MAX]:
            await self._look_into(block, after, upto)

    def _lowest(self) -> Position:
        marks = [view.mark_delete_position for view in self._index.views().values()]
        floor = self._index.floor
        assert floor is not None
        return max(floor, min(marks, default=floor))

    async def _topic_side(self, after: Position, upto: Position) -> dict[Block, Fingerprint]:
        found: dict[Block, Fingerprint] = {}

        def take(entries: list[StoredEntry]) -> None:
            keys = [encode_key(*new[:3]) for new in new_entries(entries)]
            add_up(found, block_fingerprints(keys, after, upto))
            self._status.entries_read += len(entries)

        await read_range(self._connection, self._topic, after, upto, take)
        return found

    async def _look_into(self, block: Block, after: Position, upto: Position) -> None:
        """List the positions of one block that differ."""
        ledger, first = block[0], block[1] << BLOCK_SHIFT
        start = max(after, Position(ledger, first - 1))
        end = min(upto, Position(ledger, first + BLOCK_ENTRIES - 1))
        in_topic: dict[Position, int] = {}

        def take(entries: list[StoredEntry]) -> None:
            in_topic.update({Position(new.ledger, new.entry): new.deliver_at_ms for new in new_entries(entries)})

        await read_range(self._connection, self._topic, start, end, take)
        noted = {Position(ledger, entry) for _, times in self._index.positions.blocks(start, end) for entry in times}
        in_index = dict(self._located({*noted, *in_topic}))
        for position in sorted({*in_topic, *in_index}):
            if in_topic.get(position) == in_index.get(position):
                continue
            if position in in_topic:
                self._status.missing.append(position)
            if position in in_index:
                self._status.unexpected.append(position)

    def _located(self, positions: Iterable[Position]) -> Iterable[tuple[Position, int]]:
        for position in positions:
            entry = self._index.search.locate(position)
            if entry is not None:
                yield position, entry.deliver_at_ms
