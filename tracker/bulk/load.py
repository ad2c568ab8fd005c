"""Loading ready-made files into an index while it delivers: group by group, each wholly or not at all.

Per group: an intent is written, the files are taken in (RocksDB links them in one step), then the counters of their
time partitions are written and the intent becomes a done mark, in one batch. A crash in between leaves an intent; when
the index is opened again, the presence of the group's first key tells on which side of the middle step it happened.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tracker.bulk.counters import BulkCounters
from tracker.bulk.files import BulkError, Group, Manifest, TableFile, check_file
from tracker.errors import StoreError
from tracker.index_core import IndexCore
from tracker.keys import KEY_LENGTH, successor
from tracker.position import Position

_DONE, _BEGUN = b"done", b"begun"
_NUMBER = struct.Struct(">Q")
_POSITIONS, _ALL = 2**63 - 1, 2**63 - 2

SHORT_S: Final = 0.002
"""A step of a bulk load that holds the thread no longer makes deliveries late by no more than they are anyway."""
SHARE: Final = 1 / 250
"""Share of the time that longer steps of a bulk load hold the thread that delivers: what comes due then is late by so
much, which at less than a hundredth stays outside of the P99."""
MAX_REST_S: Final = 1.0
"""However long a step took: one that waited seconds for a disk is rare, and must not stop the load for minutes."""


class BulkLoad:
    """One manifest on its way into one index.

    Call `verify` of a group from a thread if it must not hold up others, then `load` it; `finish` when all are loaded.
    All of it may be repeated after a crash, with the same files: what is in already is passed over.
    """

    def __init__(self, records: BulkRecords, directory: Path, give_way: Callable[[], object] = lambda: None) -> None:
        """Read the manifest; raises BulkError when it does not fit the index.

        `give_way` is called now and then while files are verified: `os.sched_yield`, if others are to run.

        The files are to be on the file system of the index, else they are copied, which holds everything up. They
        stay: remove them when all is finished.
        """
        self.manifest = manifest = Manifest.read(directory)
        self._records = records
        self._directory = directory
        self._give_way = give_way
        self._prepared: dict[str, tuple[BulkCounters, list[Path]]] = {}
        """What `verify` has made ready, for `load` to touch no file itself."""
        self._position_links: list[Path] | None = None
        index = records.core
        harvested = index.record.harvested
        if manifest.topic != index.topic:
            raise BulkError(f"the files in {directory} are of {manifest.topic}, not of {index.topic}")
        if manifest.partition_width_ms != index.partition_width_ms:
            raise BulkError(
                f"the files in {directory} are cut into partitions of {manifest.partition_width_ms} ms, "
                f"the index of {index.topic} into {index.partition_width_ms} ms"
            )
        if harvested is None or manifest.upto > harvested:
            raise BulkError(
                f"the files in {directory} reach to {Position(*manifest.upto)}, "
                f"the index of {index.topic} is harvested to {harvested} only"
            )

    @property
    def finished(self) -> bool:
        """Whether all of it is in the index, now or from an earlier run."""
        return self._records.is_done(self.manifest.id, _ALL)

    def groups(self) -> Iterator[tuple[int, Group]]:
        """Yield (number, group) of what is not loaded yet, nearest due first."""
        if self.finished:
            return
        for number, group in enumerate(self.manifest.groups):
            if not self._records.is_done(self.manifest.id, number):
                yield number, group

    def verify(self, group: Group) -> None:
        """Raise BulkError when one of a group's files is missing or damaged."""
        for file in (group.partitions, *group.files):
            check_file(self._directory, file, self._give_way)
        self._prepared[group.partitions.name] = (self._counters(group), self._links(group.files))

    def verify_positions(self) -> None:
        """Raise BulkError when a position file is missing or damaged."""
        if self._needs_positions():
            for file in self.manifest.positions:
                check_file(self._directory, file, self._give_way)
            self._position_links = self._links(self.manifest.positions)

    def load_positions(self) -> None:
        """Take in the position files: before the first group. Raises StoreError."""
        if not self._needs_positions():
            return
        links = self._links(self.manifest.positions) if self._position_links is None else self._position_links
        self._records.load_positions(self.manifest.id, links)

    def _links(self, files: list[TableFile]) -> list[Path]:
        """Return links for RocksDB to take: the files themselves are needed again if this is cut short."""
        links = []
        for file in files:
            link = self._directory / f"{file.name}.loading"
            link.unlink(missing_ok=True)
            link.hardlink_to(self._directory / file.name)
            links.append(link)
        return links

    def _needs_positions(self) -> bool:
        return not self.finished and not self._records.is_done(self.manifest.id, _POSITIONS)

    def load(self, number: int, group: Group) -> int:
        """Take in a group; return how many entries it has. Raises BulkError or StoreError; then it is not in."""
        for _ in self.load_in_steps(number, group, lambda: 0.0):
            pass
        return group.entries

    def load_all(self) -> int:
        """Verify and take in whatever is not in yet, without a rest; return how many entries that is."""
        self.verify_positions()
        self.load_positions()
        entries = 0
        for number, group in self.groups():
            self.verify(group)
            entries += self.load(number, group)
        self.finish()
        return entries

    def load_in_steps(self, number: int, group: Group, clock: Callable[[], float]) -> Iterator[float]:
        """Take in a group; yield after each step, for other work, how long to rest: only once it is in.

        In seconds of the clock: a loader leaves the thread to others in proportion to how long it has held it. Whoever
        does not go on to the end has the group in or not, as a whole.
        """
        started, rest_s = clock(), 0.0
        prepared = self._prepared.pop(group.partitions.name, None)
        counters, links = prepared or (self._counters(group), self._links(group.files))
        for _ in self._records.load_group(self.manifest.id, number, group, counters, links):
            rest_s += _rest_after(clock() - started)
            yield 0.0
            started = clock()
        yield min(rest_s + _rest_after(clock() - started), MAX_REST_S)

    def _counters(self, group: Group) -> BulkCounters:
        try:
            return BulkCounters.decode((self._directory / group.partitions.name).read_bytes())
        except (OSError, ValueError) as error:
            raise BulkError(f"cannot read {self._directory / group.partitions.name}: {error}") from error

    def abandon(self) -> None:
        """Give up: what is in stays, the rest will not come. Nothing happens when all of it is in."""
        if not self.finished:
            self._records.abandon(self.manifest.id)

    def finish(self) -> None:
        """Note that everything is in. Raises BulkError when it is not."""
        left = [number for number, _ in self.groups()]
        if left:
            raise BulkError(f"{len(left)} groups of {self._directory} are not loaded, the first is number {left[0]}")
        if not self.finished:
            self._records.finish(self.manifest.id)


def _rest_after(held_s: float) -> float:
    # What is due during a short step is hardly late.
    return held_s if held_s < SHORT_S else held_s / SHARE


class BulkRecords:
    """The index's side of bulk loads."""

    def __init__(self, core: IndexCore) -> None:
        """Use `recover` before anything else."""
        self.core = core
        self._store = core.store
        self._keys = core.keys
        self._recovered = 0

    def is_done(self, load: str, number: int) -> bool:
        """Tell whether a group is in."""
        key = self._keys.bulk(load, number)
        return dict(self._store.records(key)).get(key) == _DONE

    def recover(self) -> None:
        """Settle what a crash cut short. Raises StoreError."""
        self._recovered += 1
        records = list(self._store.records(self._keys.bulks))
        for key, value in records:
            if value not in (_DONE, _BEGUN):
                self._settle(key, value)
        self.core.table.loading = self._is_under_way()
        if self.core.table.loading:
            self.core.hold_counters()

    def _is_under_way(self) -> bool:
        return any(not key.endswith(_NUMBER.pack(_ALL)) for key, _ in self._store.records(self._keys.bulks))

    def _settle(self, key: bytes, intent: bytes) -> None:
        """Count in what is left of a group, or give it up: whether it came is told by its first key."""
        first, counters = intent[:KEY_LENGTH], BulkCounters.decode(intent[KEY_LENGTH:])
        if self.core.reader.contains(first):
            for part, rest in counters.parts(len(counters)):
                self._count_in(key, first, part, rest)
            return
        batch = self._store.new_batch()
        batch.delete(key)
        self._store.write(batch)

    def load_positions(self, load: str, files: list[Path]) -> None:
        """Take in position files: what they say is a hint, and not to be relied on until the load has ended."""
        self._mark(self._keys.bulk(load, _POSITIONS), _BEGUN)
        self.core.table.loading = True
        self.core.hold_counters()
        if files:
            self._store.ingest(self.core.families.main, files)
        self._mark(self._keys.bulk(load, _POSITIONS), _DONE)

    def load_group(
        self, load: str, number: int, group: Group, counters: BulkCounters, files: list[Path]
    ) -> Iterator[None]:
        """Take in a group; yield between steps of some milliseconds. Raises BulkError, StoreError."""
        if self.is_done(load, number):
            return
        if self.core.families.damaged:
            raise BulkError(f"the index of {self.core.topic} is being moved out of damaged files: try again later")
        self._refuse_overlap(counters)
        key, first = self._keys.bulk(load, number), bytes.fromhex(group.first_key)
        batch = self._store.new_batch()
        batch.put(key, first + counters.encode())
        self._store.write(batch)
        recovered = self._recovered
        self.core.is_counting = True
        try:
            yield
            self._require_as_it_was(recovered)
            self._store.ingest(self.core.families.main, files)
            for part, rest in counters.parts(self.core.limits.bulk_step_partitions):
                yield
                self._require_as_it_was(recovered)
                self._count_in(key, first, part, rest)
        except GeneratorExit:
            with contextlib.suppress(StoreError):  # else it is settled when the store is opened anew
                if recovered == self._recovered:
                    self._settle(key, dict(self._store.records(key))[key])
            raise
        finally:
            self.core.is_counting = False
            self.core.entries_appeared(first, successor(bytes.fromhex(group.last_key)))

    def _require_as_it_was(self, recovered: int) -> None:
        if recovered != self._recovered:
            raise StoreError(f"the index of {self.core.topic} was opened anew while files were loaded into it")

    def finish(self, load: str) -> None:
        """Note that all groups are in; their own marks go."""
        batch = self._store.new_batch()
        prefix = self._keys.bulk_prefix(load)
        batch.delete_range(prefix, prefix + b"\xff")
        batch.put(self._keys.bulk(load, _ALL), _DONE)
        self._store.write(batch)
        self.core.table.loading = self._is_under_way()
        self.core.recount_views()

    def abandon(self, load: str) -> None:
        """Give up a load that is not finished: what is in stays."""
        # Positions of entries that never came are noted now. First: a crash in between leaves a load to abandon.
        self.core.distrust_positions()
        batch = self._store.new_batch()
        prefix = self._keys.bulk_prefix(load)
        batch.delete_range(prefix, prefix + b"\xff")
        self._store.write(batch)
        self.core.table.loading = self._is_under_way()
        self.core.recount_views()

    def unfinished(self) -> set[str]:
        """Return the ids of the loads that were begun and not finished."""
        keys = [key for key, _ in self._store.records(self._keys.bulks) if not key.endswith(_NUMBER.pack(_ALL))]
        return {key[len(self._keys.bulks) : -_NUMBER.size].decode() for key in keys}

    def abandon_unfinished(self) -> None:
        """Give up every load that was begun and not finished: its files are gone, or no longer wanted."""
        for load in self.unfinished():
            self.abandon(load)

    def _refuse_overlap(self, counters: BulkCounters) -> None:
        table = self.core.table
        for page_number, first, end in counters.pages():
            page = table.page(page_number)
            if page is None or not page.total:
                continue
            for new in counters.rows(first, end):
                known = table.get(new.number)
                if known is not None and known.lowest <= new.highest and new.lowest <= known.highest:
                    raise BulkError(
                        f"partition {new.number} of {self.core.topic} has entries between "
                        f"{new.lowest} and {new.highest} already"
                    )

    def _count_in(self, key: bytes, first_key: bytes, part: BulkCounters, rest: BulkCounters) -> None:
        """Add part of a group's counters to the table, on disk and in memory; note what is left to count."""
        table = self.core.table
        pages = [number for number, _, _ in part.pages()]
        before = table.copy_of(pages)
        for number, first, end in part.pages():
            table.merge(number, [column[first:end] for column in part.columns])
        try:
            batch = self._store.new_batch()
            batch.put(key, first_key + rest.encode() if len(rest) else _DONE)
            self.core.write_pages(pages, batch)
        except BaseException:
            table.put_back(before)
            raise

    def _mark(self, key: bytes, mark: bytes) -> None:
        batch = self._store.new_batch()
        batch.put(key, mark)
        self._store.write(batch)
