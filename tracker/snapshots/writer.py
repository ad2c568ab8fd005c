"""Writing a snapshot: time partitions that are as they were keep the files of the snapshot before.

They are as they were when their counters are: entries come to a time partition and go with it, one by one they do not.
Of what is gone with its time partition some stays in the files, as long as it is less than what is needed of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tracker.bulk.counters import BulkCounters
from tracker.bulk.files import Group, Manifest, TableFile, describe_file, new_manifest, write_groups, write_positions
from tracker.limits import BulkFileLimits
from tracker.partitions.page import FIELDS, PAGE_PARTITIONS, PartitionPage
from tracker.position import Position
from tracker.snapshots.contents import LOAD_PREFIX, Snapshot, ViewCopy, encode_views
from tracker.snapshots.source import Begun, Ended, Pause, SnapshotSource

GROUPS: Final = 12
"""Of an index, about: who loads one leaves the thread that delivers alone for up to a second after each."""
GROUP_PARTITIONS_MIN: Final = 64
"""Fewer are not worth a file."""
GROUP_BYTES_MIN: Final = 16 * 1024 * 1024
GROUP_BYTES_MAX: Final = 256 * 1024 * 1024
WRITE_ENTRIES: Final = 50
"""Written without a pause: a tenth of a millisecond."""

Put = Callable[[TableFile], None]
"""Takes a file away to where the snapshot is to be."""


class Kept(NamedTuple):
    """What of the snapshot before holds, and the time partitions to be written anew, in order."""

    groups: list[Group]
    changed: list[int]


def sort_out(known: Iterable[tuple[Group, BulkCounters]], pages: Mapping[int, PartitionPage], pause: Pause) -> Kept:
    """Decide which groups of files are good for an index with these pages."""
    kept: list[Group] = []
    covered: set[int] = set()
    for group, counters in known:
        pause()
        numbers = _as_they_were(counters, pages)
        if numbers is not None and 2 * len(numbers) >= len(counters):
            kept.append(group)
            covered.update(numbers)
    changed = [
        number
        for page_number in sorted(pages)
        for slot in pages[page_number].slots()
        if (number := page_number * PAGE_PARTITIONS + slot) not in covered
    ]
    return Kept(kept, changed)


def _as_they_were(counters: BulkCounters, pages: Mapping[int, PartitionPage]) -> list[int] | None:
    """Return the time partitions of a group that are there; None when one of them has changed."""
    there: list[int] = []
    for page_number, first, end in counters.pages():
        page = pages.get(page_number)
        for row in counters.rows(first, end) if page is not None else ():
            at = 1 + FIELDS * (row.number % PAGE_PARTITIONS)
            now = page.values[at : at + FIELDS].tolist() if page is not None else []
            if now[0] and now != list(row[1:]):
                return None
            if now[0]:
                there.append(row.number)
    return there


def group_limits(entries_bytes: int, partitions: int) -> BulkFileLimits:
    """Return how large groups are to be: about so many that loading them all takes GROUPS seconds."""
    size = min(max(entries_bytes // GROUPS, GROUP_BYTES_MIN), GROUP_BYTES_MAX)
    return BulkFileLimits(
        bulk_file_bytes=size,
        bulk_write_entries=WRITE_ENTRIES,
        bulk_group_partitions=max(partitions // GROUPS, GROUP_PARTITIONS_MIN),
    )


class SnapshotWriter:
    """One snapshot, written into a folder of its own and taken from there file by file. For a thread."""

    def __init__(self, source: SnapshotSource, begun: Begun, folder: Path, name: str, put: Put, pause: Pause) -> None:
        """`name`: of its files, as nobody else's begin; `put` takes each that is complete out of the folder."""
        self._source = source
        self._begun = begun
        self._folder = folder
        self._put = put
        self._pause = pause
        self._name = name
        self.written = 0
        """Bytes of new files."""

    def write_groups(self, kept: Kept, width_ms: int, limits: BulkFileLimits) -> list[Group]:
        """Write what has changed; return all groups. Raises OSError, StoreError, and what `pause` raises."""
        pairs = self._source.pairs(kept.changed, self._begun.upto, self._pause)
        groups = list(kept.groups)
        for group in write_groups(self._folder, self._name, pairs, width_ms, limits):
            for file in (*group.files, group.partitions):
                self._take(file)
            groups.append(group)
        return groups

    def write_positions(self) -> list[TableFile]:
        """Write the position records. Raises as `write_groups`."""
        placed = self._source.placed(self._begun.upto, self._pause)
        file = write_positions(self._folder, f"{self._name}-positions", placed)
        return [] if file is None else [self._take(file)]

    def write_views(self, views: list[ViewCopy]) -> TableFile:
        """Write the views. Raises OSError."""
        path = self._folder / f"{self._name}.views"
        path.write_bytes(encode_views(views))
        return self._take(describe_file(path))

    def _take(self, file: TableFile) -> TableFile:
        self._put(file)
        self.written += file.bytes
        return file


def snapshot_of(load: Manifest, identity: int, made_at_ms: int, ended: Ended, views: TableFile) -> Snapshot:
    """Return what is to be said of files that are written."""
    return Snapshot(
        identity=identity,
        made_at_ms=made_at_ms,
        dropped_number=ended.dropped_number,
        views=views,
        load=load.model_copy(update={"id": LOAD_PREFIX + load.id, "after": tuple(ended.after)}),
    )


def load_of(topic: str, width_ms: int, upto: Position, positions: list[TableFile], groups: list[Group]) -> Manifest:
    """Return the bulk load that files are; its lower end is told by the end of the snapshot."""
    return new_manifest(topic, width_ms, upto, upto, positions, groups)
