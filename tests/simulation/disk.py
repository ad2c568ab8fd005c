"""A disk in memory that forgets what was not synced, and a database on it that is used as RocksDB is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sortedcontainers import SortedDict

from tracker import Store
from tracker.errors import StoreError
from tracker.store.damage_notes import DamageNotes

DEFAULT = "default"
Undo = list[tuple[str, bytes, bytes | None]]
Change = tuple[str, str, bytes, bytes | None]
"""What is done (`put`, `delete`, `range`), the family, and key and value, or begin and end."""


class DiskError(Exception):
    """What the operating system says."""


class Disk:
    """Column families by name, and how to take back what is not on the platter yet, write by write."""

    def __init__(self) -> None:
        """Empty."""
        self.families: dict[str, Any] = {DEFAULT: SortedDict()}
        self.notes: set[str] = set()
        self.full = False
        self._unsynced: list[Undo] = []
        self._doubtful: list[Change] = []
        self._failed = 0

    def write(self, changes: list[Change]) -> None:
        """Apply as one; raises DiskError when there is no room."""
        if self.full:
            self._doubtful = list(changes)
            raise DiskError("IO error: No space left on device")
        self._apply(changes)

    def open(self) -> None:
        """Read the log from its beginning: a write that failed is gone, or there as a whole."""
        doubtful, self._doubtful = self._doubtful, []
        if doubtful:
            self._failed += 1
            if self._failed % 2:
                self._apply(doubtful)

    def _apply(self, changes: list[Change]) -> None:
        undo: Undo = []
        for kind, family, first, second in changes:
            self._change(undo, kind, family, first, second)
        self._unsynced.append(undo)

    def sync(self) -> None:
        """Nothing that was written is forgotten any more."""
        if self.full:
            raise DiskError("IO error: No space left on device")
        self._unsynced.clear()

    def lose_power(self, kept: int) -> None:
        """Forget the writes since the last sync but the first `kept`. The next one is torn, and left out as a whole.

        A write is one record of the log with a checksum, and the log is read up to the first record that is not whole.
        """
        self._doubtful = []
        for undo in reversed(self._unsynced[kept:]):
            for family, key, value in reversed(undo):
                content = self.families.get(family)
                if content is None:
                    continue
                if value is None:
                    content.pop(key, None)
                else:
                    content[key] = value
        self._unsynced.clear()

    def wipe(self) -> None:
        """Nothing is left."""
        self.families = {DEFAULT: SortedDict()}
        self.notes = set()
        self._unsynced.clear()
        self._doubtful = []

    @property
    def unsynced(self) -> int:
        """Writes that may be forgotten."""
        return len(self._unsynced)

    def synced_value(self, key: bytes) -> bytes | None:
        """What would be left of a record if the power went now."""
        for undo in self._unsynced:
            for family, changed, before in undo:
                if family == DEFAULT and changed == key:
                    return before
        found: bytes | None = self.families[DEFAULT].get(key)
        return found

    def _change(self, undo: Undo, kind: Any, family: Any, first: bytes, second: bytes | None) -> None:
        content = self.families[family]
        if kind == "range":
            assert second is not None
            keys = list(content.irange(first, second, inclusive=(True, False)))
        else:
            keys = [first]
        for key in keys:
            undo.append((family, key, content.get(key)))
            if kind == "put":
                content[key] = second
            else:
                content.pop(key, None)


class Batch:
    """As `rocksdict.WriteBatch`."""

    def __init__(self) -> None:
        """Empty."""
        self.changes: list[Any] = []

    def put(self, key: bytes, value: bytes, family: str | None = None) -> None:
        """Set."""
        self.changes.append(("put", family or DEFAULT, key, value))

    def delete(self, key: bytes, family: str | None = None) -> None:
        """Remove."""
        self.changes.append(("delete", family or DEFAULT, key, None))

    def delete_range(self, begin: bytes, end: bytes, family: str | None = None) -> None:
        """Remove begin <= key < end."""
        self.changes.append(("range", family or DEFAULT, begin, end))

    def __len__(self) -> int:
        """How many changes."""
        return len(self.changes)


class Iterator:
    """As RocksDB's, over what is there now."""

    def __init__(self, content: Any) -> None:
        """Nowhere."""
        self._content = content
        self._key: bytes | None = None

    def seek(self, key: bytes) -> None:
        """To the first key at or behind."""
        self._key = next(self._content.irange(key), None)

    def seek_for_prev(self, key: bytes) -> None:
        """To the last key at or before."""
        self._key = next(self._content.irange(None, key, reverse=True), None)

    def next(self) -> None:
        """On."""
        self._key = next(self._content.irange(self._key, None, inclusive=(False, True)), None)

    def valid(self) -> bool:
        """Whether it is somewhere."""
        return self._key is not None

    def key(self) -> bytes:
        """Where it is."""
        assert self._key is not None
        return self._key

    def value(self) -> bytes:
        """What is there."""
        found: bytes = self._content[self._key]
        return found

    def status(self) -> None:
        """All is well."""


class Family:
    """As `Rdict` of one column family."""

    def __init__(self, disk: Disk, name: str) -> None:
        """Of a disk."""
        self._content = disk.families[name]

    def get(self, key: bytes) -> bytes | None:
        """Read."""
        found: bytes | None = self._content.get(key)
        return found

    def __contains__(self, key: bytes) -> bool:
        """Whether it is there."""
        return key in self._content

    def iter(self) -> Iterator:
        """Over all keys."""
        return Iterator(self._content)

    def set_options(self, _: dict[str, str]) -> None:
        """There are none."""

    def compact_range(self, begin: bytes | None, end: bytes | None) -> None:
        """There is nothing to compact."""


class Database(Family):
    """As `Rdict`."""

    def __init__(self, disk: Disk) -> None:
        """Open."""
        super().__init__(disk, DEFAULT)
        self._disk = disk

    def write(self, batch: Batch) -> None:
        """All of it, or nothing."""
        self._disk.write(batch.changes)

    def flush_wal(self, _: bool) -> None:
        """Make all writes durable."""
        self._disk.sync()

    def drop_column_family(self, name: str) -> None:
        """Durably."""
        self._disk.families.pop(name)

    def get_column_family(self, name: str) -> Family:
        """One of them."""
        return Family(self._disk, name)

    def get_column_family_handle(self, name: str) -> str:
        """For batches."""
        return name

    def cancel_all_background(self, _: bool) -> None:
        """Nothing goes on there."""

    def close(self) -> None:
        """Nothing is held."""


class MemoryEngine:
    """See `tracker.store.engine.Engine`."""

    def __init__(self, disk: Disk) -> None:
        """On a disk."""
        self._disk = disk

    def families(self) -> list[str]:
        """All there are."""
        return list(self._disk.families)

    def open(self, notes: DamageNotes, *, writable: bool | None = None) -> Database:
        """What is there."""
        self._disk.open()
        return Database(self._disk)

    def create_family(self, database: Database, name: str) -> None:
        """Durably."""
        self._disk.families[name] = SortedDict()

    def new_batch(self) -> Batch:
        """An empty one."""
        return Batch()

    def ingest(self, reader: object, files: list[str]) -> None:
        """Not on this disk."""
        raise DiskError("no files here")


class _Notes(DamageNotes):
    """On a simulated disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._names = set(disk.notes)
        self._unreadable = False

    def _write(self, names: set[str]) -> None:
        self._names = self._disk.notes = set(names)


class _Lock:
    def release(self) -> None:
        """Nobody else can open it."""


class SimulatedStore(Store):
    """A store on a simulated disk."""

    def __init__(self, disk: Disk, at_boundary: Callable[[str], None] | None = None) -> None:
        """Open what is there."""
        super().__init__(Path("/simulated"), _Lock(), MemoryEngine(disk), _Notes(disk), at_boundary)
        self._disk = disk
        self._check_format()

    def probe(self) -> None:
        """Whether there is room again."""
        if self._disk.full:
            raise StoreError("no space left on the simulated disk")
