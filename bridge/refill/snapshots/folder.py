"""The folder of one topic partition's snapshots: files that are never changed, and manifests that name them.

It may be on a file system of another machine: whatever is done here may take long, or fail by OSError; it is for
threads. Everybody writes files of names of their own, and a manifest of its own, by a rename; the one that goes
furthest is the snapshot.
"""

import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tracker import Position
from tracker.bulk.files import BulkError, TableFile
from tracker.snapshots.contents import Snapshot
from tracker.store.durable_files import sync_folder

_MANIFEST = re.compile(r"(\d{20})-(\d{20})-(\d{20})-[0-9a-f]{32}\.manifest")
"""Harvested position, when it was made in epoch ms, whose it is."""
KEPT: Final = 2
"""Manifests that stay: whoever reads the one before the last goes on with it."""
COPY_BYTES: Final = 64 * 1024
GRACE_S: Final = 3600.0
"""A file that nobody names may be somebody's who is about to, for so long."""
DEAD_S: Final = 30 * 24 * 3600.0
"""Snapshots of a topic that was replaced by another one of its name are removed, by that one's, after so long."""


class SnapshotFolder:
    """Of a topic partition and its identity: one that was deleted and made anew has another folder."""

    def __init__(self, shared: Path, topic: str, identity: int) -> None:
        """`shared` is the setting `snapshot_dir`; nothing is looked at yet."""
        self._topic = topic
        self._identity = identity
        self._of_name = shared / quote(topic.replace("://", "/"), safe="")[:200]
        self.path = self._of_name / f"{identity:016x}"

    # -- reading

    def manifests(self) -> list[str]:
        """The names of the manifests, the one that goes furthest first. Raises OSError."""
        try:
            names = [each.name for each in self.path.iterdir()]
        except FileNotFoundError:
            return []
        return sorted((name for name in names if _MANIFEST.fullmatch(name)), reverse=True)

    def newest(self) -> Snapshot | None:
        """The snapshot that goes furthest. Raises OSError; BulkError when it is not to be used."""
        for name in self.manifests():
            snapshot = Snapshot.decode((self.path / name).read_bytes())
            told = (snapshot.load.topic, snapshot.identity)
            if told != (self._topic, self._identity):
                raise BulkError(f"the snapshot {name} is of another topic: {told[0]}, {told[1]:x}")
            return snapshot
        return None

    def read(self, file: TableFile) -> bytes:
        """A small file as it was written. Raises OSError, BulkError."""
        data = (self.path / file.name).read_bytes()
        if (len(data), zlib.crc32(data)) != (file.bytes, file.crc32):
            raise BulkError(f"{self.path / file.name} is damaged")
        return data

    def has(self, file: TableFile) -> bool:
        """Whether a file is there, as long as it was."""
        try:
            return (self.path / file.name).stat().st_size == file.bytes
        except OSError:
            return False

    def fetch(self, file: TableFile, into: Path, pause: Callable[[], None]) -> None:
        """Copy a file to a folder of this machine's. Raises OSError, BulkError, and what `pause` raises."""
        crc = _copied(self.path / file.name, into / file.name, pause)
        if crc != file.crc32:
            raise BulkError(f"{self.path / file.name} is damaged: checksum {crc}, expected {file.crc32}")

    # -- writing

    def make(self) -> None:
        """Have the folder there; nobody else may look into it. Raises OSError.

        The one that all share is not made: what is not mounted would be made on the local disk.
        """
        for folder in (self._of_name, self.path):
            folder.mkdir(mode=0o700, exist_ok=True)

    def put(self, source: Path, pause: Callable[[], None]) -> None:
        """Move a file of this machine's here, on disk when it returns. Raises OSError, and what `pause` raises."""
        _copied(source, self.path / source.name, pause)
        source.unlink()

    def publish(self, snapshot: Snapshot, name: str) -> None:
        """Make files that are here a snapshot; `name`: as theirs begin. Raises OSError."""
        name = f"{_padded(snapshot.upto)}-{snapshot.made_at_ms:020d}-{name}.manifest"
        draft = self.path / f"{name}.new"
        with draft.open("wb") as file:
            file.write(snapshot.encode())
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self.path)
        draft.replace(self.path / name)
        sync_folder(self.path)

    def prune(self, now_s: float) -> int:
        """Remove what no manifest that stays names; return how many files. Epoch seconds. Raises OSError, BulkError."""
        manifests = self.manifests()
        named = {*manifests[:KEPT]}
        for name in manifests[:KEPT]:
            named.update(file.name for file in Snapshot.decode((self.path / name).read_bytes()).files)
        removed = 0
        for entry in _entries(self.path):
            old = entry.name in manifests or now_s - entry.stat().st_mtime > GRACE_S
            if entry.name not in named and old:
                Path(entry.path).unlink(missing_ok=True)
                removed += 1
        self._remove_dead(now_s)
        return removed

    def _remove_dead(self, now_s: float) -> None:
        for entry in _entries(self._of_name):
            if entry.is_dir() and Path(entry.path) != self.path:
                times = [each.stat().st_mtime for each in _entries(Path(entry.path))]
                if now_s - max(times, default=entry.stat().st_mtime) > DEAD_S:
                    shutil.rmtree(entry.path, ignore_errors=True)


def _padded(position: Position) -> str:
    return f"{max(position.ledger, 0):020d}-{max(position.entry, 0):020d}"


def _entries(path: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(path) as found:
        yield from list(found)


def _copied(source: Path, target: Path, pause: Callable[[], None]) -> int:
    """Copy durably, and return the checksum."""
    crc = 0
    with source.open("rb", buffering=0) as read, target.open("wb", buffering=0) as written:
        while block := read.read(COPY_BYTES):
            crc = zlib.crc32(block, crc)
            written.write(block)
            pause()
        os.fsync(written.fileno())
    return crc
