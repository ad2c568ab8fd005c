"""The owner of a topic partition takes a snapshot of its index now and then, in a thread, behind deliveries."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from bridge.ledgers.cursor_history import UNKNOWN
from bridge.refill.snapshots.folder import SnapshotFolder
from bridge.refill.snapshots.share import Pauses, SnapshotShare
from tracker import StoreError, TopicIndex
from tracker.bulk.counters import BulkCounters
from tracker.bulk.files import BulkError, Group, Manifest, TableFile
from tracker.partitions.page import PartitionPage
from tracker.snapshots.contents import Snapshot
from tracker.snapshots.source import Abandoned, Begun, Ended
from tracker.snapshots.writer import SnapshotWriter, group_limits, load_of, snapshot_of, sort_out

log = structlog.get_logger(__name__)

PAGES_AT_ONCE = 256
"""Pages of partition counters copied before others get their turn: a millisecond."""
LOOK_S = 1.0
"""Between two looks at whether a snapshot is due, and the index whole."""
WAIT_MAX_S = 60.0
"""Clocks are set."""
AGAIN_MS = 60_000
"""After an attempt that came to nothing, at least: a fraction of the interval if that is less."""


@dataclass
class SnapshotStatus:
    """The newest snapshot of a topic partition, as far as its owner knows; times are epoch milliseconds."""

    made_at_ms: int | None = None
    entries: int = 0
    bytes: int = 0
    written: int = 0
    """Bytes of the last one that the one before did not have."""
    error: str | None = None
    """Why the last attempt came to nothing; None when it did not."""
    since_ms: int = 0
    """Since when this bridge is to take some."""

    def age_ms(self, now_ms: int) -> int:
        """How old the newest is; how long there has been none."""
        return max(now_ms - (self.since_ms if self.made_at_ms is None else self.made_at_ms), 0)


class _Written(NamedTuple):
    name: str
    load: Manifest
    writer: SnapshotWriter
    folder: SnapshotFolder
    local: Path


class SnapshotTaker:
    """One per time as owner."""

    def __init__(self, topic: str, index: TopicIndex, share: SnapshotShare, now_ms: Callable[[], int]) -> None:
        """Nothing is written before `run`."""
        self.status = SnapshotStatus(since_ms=now_ms())
        self._topic = topic
        self._index = index
        self._share = share
        self._now_ms = now_ms
        self._tried_ms = 0

    async def run(self) -> None:
        """Until cancelled."""
        looked = False
        while True:
            await asyncio.sleep(self._wait_s())
            if self._index.identity == UNKNOWN:
                continue  # nothing would tell it from a snapshot of another topic of this name
            if not looked:
                looked = True
                await self._look()
            if self._is_due() and self._index.source.is_whole:
                self._tried_ms = self._now_ms()
                await self._try()

    async def _look(self) -> None:
        """Who was the owner before may have taken one lately."""
        folder = SnapshotFolder(self._share.shared, self._topic, self._index.identity)
        with contextlib.suppress(OSError, BulkError):
            newest = await self._share.read(lambda _: folder.newest())
            if newest is not None:
                self._note(newest, 0)

    def _wait_s(self) -> float:
        """Bridges may have thousands of topics: none looks often for nothing."""
        if self._is_due() or self.status.made_at_ms is None:
            return LOOK_S
        left_ms = self.status.made_at_ms + self._share.interval_ms - self._now_ms()
        return min(max(left_ms / 1000, LOOK_S), WAIT_MAX_S)

    def _is_due(self) -> bool:
        now_ms, interval_ms, made_ms = self._now_ms(), self._share.interval_ms, self.status.made_at_ms
        if 0 <= now_ms - self._tried_ms < min(AGAIN_MS, interval_ms):
            return False
        return made_ms is None or not 0 <= now_ms - made_ms < interval_ms

    async def _try(self) -> None:
        try:
            async with self._share.turn:
                snapshot, written = await self.take()
        except (OSError, BulkError, StoreError, Abandoned) as error:
            reason = str(error) or "it was ended"
            if reason != self.status.error:
                log.warning("no snapshot of the index", topic=self._topic, reason=reason)
            self.status.error = reason
            return
        self.status.error = None
        self._note(snapshot, written)
        places = {"topic": self._topic, "harvested_position": str(snapshot.upto)}
        log.info("snapshot of the index", **places, entries=snapshot.entries, bytes=snapshot.size, written=written)

    def _note(self, snapshot: Snapshot, written: int) -> None:
        status = self.status
        status.made_at_ms, status.entries = snapshot.made_at_ms, snapshot.entries
        status.bytes, status.written = snapshot.size, written

    async def take(self) -> tuple[Snapshot, int]:
        """Write one; return it, and how many bytes are new. Raises OSError, BulkError, StoreError, Abandoned."""
        identity, made_at_ms, source = self._index.identity, self._now_ms(), self._index.source
        begun = source.begin()
        if begun is None:
            raise BulkError("the index is being filled")
        pages: dict[int, PartitionPage] = {}
        numbers = source.page_numbers()
        for first in range(0, len(numbers), PAGES_AT_ONCE):
            pages.update((page.number, page) for page in source.copies(numbers[first : first + PAGES_AT_ONCE]))
            await asyncio.sleep(0)
        folder = SnapshotFolder(self._share.shared, self._topic, identity)
        local = await self._share.write(lambda _: self._share.folder())
        try:
            written = await self._share.write(partial(self._write, begun, pages, folder, local))
            ended = source.end(begun)
            if ended is None or self._index.identity != identity:
                raise BulkError("the index changed in an unusual way meanwhile")
            finish = partial(_finished, written, identity, made_at_ms, ended)
            return await self._share.write(finish)
        finally:
            self._share.discard(local)

    def _write(
        self, begun: Begun, pages: dict[int, PartitionPage], folder: SnapshotFolder, local: Path, pauses: Pauses
    ) -> _Written:
        folder.make()
        before = _before(folder)
        kept = sort_out([] if before is None else _known(folder, before.load.groups), pages, pauses)
        width_ms = self._index.partition_width_ms
        name = self._share.new_name()

        def put(file: TableFile) -> None:
            folder.put(local / file.name, pauses)

        writer = SnapshotWriter(self._index.source, begun, local, name, put, pauses)
        limits = group_limits(sum(page.size for page in pages.values()), sum(map(len, pages.values())))
        groups = writer.write_groups(kept, width_ms, limits)
        if before is not None and (before.upto, kept.changed) == (begun.upto, []) and _has_positions(folder, before):
            positions = before.load.positions
        else:
            positions = writer.write_positions()
        return _Written(name, load_of(self._topic, width_ms, begun.upto, positions, groups), writer, folder, local)


def _finished(written: _Written, identity: int, made_at_ms: int, ended: Ended, pauses: Pauses) -> tuple[Snapshot, int]:
    views = written.writer.write_views(ended.views)
    snapshot = snapshot_of(written.load, identity, made_at_ms, ended, views)
    pauses()  # who is no owner any more leaves no manifest
    written.folder.publish(snapshot, written.name)
    with contextlib.suppress(OSError, BulkError):
        written.folder.prune(made_at_ms / 1000)
    return snapshot, written.writer.written


def _has_positions(folder: SnapshotFolder, snapshot: Snapshot) -> bool:
    return all(map(folder.has, snapshot.load.positions))


def _before(folder: SnapshotFolder) -> Snapshot | None:
    """What there is to build on."""
    try:
        return folder.newest()
    except BulkError as error:
        log.warning("the snapshot before is not used", folder=str(folder.path), reason=str(error))
        return None


def _known(folder: SnapshotFolder, groups: list[Group]) -> Iterator[tuple[Group, BulkCounters]]:
    """Groups whose files are there, with their counters."""
    for group in groups:
        if not all(map(folder.has, group.files)):
            continue
        try:
            yield group, BulkCounters.decode(folder.read(group.partitions))
        except (OSError, BulkError, ValueError) as error:
            log.warning("files of the snapshot before are not used", folder=str(folder.path), reason=str(error))
