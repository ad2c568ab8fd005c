"""The data directory: one RocksDB database a bridge, one column family a topic partition, one log to sync."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

from filelock import FileLock, Timeout

from tracker.errors import DataDirectoryLocked, StoreError, UnsupportedFormat
from tracker.limits import StoreLimits
from tracker.store.damage_notes import DamageNotes
from tracker.store.database import NotOpen, RocksEngine, TopicFamily
from tracker.store.engine import Engine
from tracker.store.private_files import keep_private

DATA_FORMAT = 2
"""Version of the records and keys this code writes; 1 is read, and brought up to this topic by topic."""

_FORMAT_KEY = b"!format"
_FAMILY_PREFIXES = ("topic:", "second:")
_LOCK_NAME = "bridge.lock"
_DATABASE_NAME = "CURRENT"
"""A file of RocksDB's: a copy of a data directory may lack ours."""
_PROBE_NAME = "bridge.probe"
PROBE_BYTES: Final = 8 * 1024 * 1024
"""Written to see whether a disk that failed takes data again: more than one batch of entries, quick to sync."""


class Lock(Protocol):
    """Held as long as the store is open."""

    def release(self) -> object:
        """Give it up."""


class Store:
    """An open data directory. Not for several threads, but for `sync`, `probe` and `reclaim`, safe beside the rest.

    After the first write or sync that fails nothing more is written, for `failure` is the reason then: RocksDB would
    refuse it anyway, or append it to half a record. Reads go on. `recover` ends that.
    """

    def __init__(
        self,
        path: Path,
        lock: Lock,
        engine: Engine,
        notes: DamageNotes,
        at_boundary: Callable[[str], None] | None = None,
    ) -> None:
        """Open the database of a directory whose lock is held; `Store.open` does it all."""
        self.path = path
        self.failure: str | None = None
        self.exposed: str | None = None
        """Why others may look into the data directory; None when they cannot."""
        self._lock = lock
        self._engine = engine
        self._database = engine.open(notes)
        self._at_boundary = at_boundary
        self._families: dict[str, TopicFamily] = {}
        self._notes = notes
        self._sync_lock = threading.Lock()
        self._reclaim_lock = threading.Lock()
        self._count_lock = threading.Lock()
        self._closed = False
        self._written = 1  # what the log held when it was opened may be in the machine's memory only
        self._synced = 0

    @classmethod
    def open(
        cls, path: Path, limits: StoreLimits | None = None, *, at_boundary: Callable[[str], None] | None = None
    ) -> Store:
        """Open or create a data directory; raises DataDirectoryLocked, UnsupportedFormat or StoreError.

        For tests, `at_boundary` is called "before write", "after write", and the same with "sync", "create" and
        "drop" (of a topic's column family), on the thread that does it. What it raises is taken for the disk's answer.
        """
        exposed = _made_private(path)
        # Not bound to a thread: the bridge may open and close from different ones.
        lock = FileLock(path / _LOCK_NAME, timeout=0, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            raise DataDirectoryLocked(f"the data directory {path} is in use by another process") from None
        except OSError as error:
            raise StoreError(f"cannot lock the data directory {path}: {error}") from error
        try:
            store = cls(
                path,
                lock,
                RocksEngine(path, StoreLimits() if limits is None else limits),
                DamageNotes(path),
                at_boundary,
            )
            store.exposed = exposed
        except Exception as error:
            lock.release()
            raise StoreError(f"cannot open the data directory {path}: {error}") from error
        try:
            store._check_format()
        except BaseException:
            store.close()
            raise
        return store

    def topics(self) -> list[str]:
        """Return the names of the topics that have an index here, sorted."""
        self._require_open()
        return sorted(self._stored_topics())

    @staticmethod
    def claim(path: Path) -> None:
        """Make a data directory, or find that it is one, without opening it. Raises StoreError."""
        _made_private(path)
        (path / _LOCK_NAME).touch(mode=0o600)

    def open_topic(self, topic: str) -> TopicFamily:
        """Return a topic's first column family, creating it when the topic is new. Raises StoreError."""
        self.prepare(topic)
        return self.open_family(topic)

    def prepare(self, topic: str) -> None:
        """Clear the records that a drop which did not finish left without a column family. Raises StoreError."""
        if topic not in self._stored_topics():
            self._delete_records(topic)

    def open_family(self, topic: str, second: bool = False) -> TopicFamily:
        """Return one of a topic's two column families, creating it when it is not there. Raises StoreError."""
        self._require_open()
        name = _FAMILY_PREFIXES[second] + topic
        known = self._families.get(name)
        if known is not None:
            return known
        if name not in self._stored_families():
            self._change_at_once("create", lambda: self._engine.create_family(self._database, name))
        family = TopicFamily(None, None)
        try:
            self._attach(name, family)
        except Exception as error:
            raise StoreError(f"cannot open the index of {topic}: {error}") from error
        self._families[name] = family
        return family

    def drop_family(self, topic: str, second: bool) -> None:
        """Delete one of a topic's column families with all it holds, if it is there. Raises StoreError."""
        self._require_writable()
        name = _FAMILY_PREFIXES[second] + topic
        family = self._families.pop(name, None)
        if family is not None:
            family.close(f"the index of {topic} was dropped")
        if name in self._stored_families():
            self._change_at_once("drop", lambda: self._database.drop_column_family(name))
        self._notes.set_damaged(name, False)

    def drop_topic(self, topic: str) -> None:
        """Delete a topic's index and records; nothing happens when there is none. Raises StoreError."""
        # Entries first: records without entries are cleared by the next `open_topic`, the reverse is not.
        for second in (False, True):
            self.drop_family(topic, second)
        self._delete_records(topic)

    def is_damaged(self, topic: str, second: bool) -> bool:
        """Tell whether `set_damaged` was called for a column family that is still there."""
        return self._notes.is_damaged(_FAMILY_PREFIXES[second] + topic)

    def set_damaged(self, topic: str, second: bool) -> None:
        """Have a column family's files left as they are from now on. Raises StoreError.

        RocksDB rewrites files in the background; one that it cannot read ends all writing, in every topic.
        """
        name = _FAMILY_PREFIXES[second] + topic
        self._notes.set_damaged(name, True)
        reader = self.open_family(topic, second).reader
        self._change("options", lambda: reader.set_options({"disable_auto_compactions": "true"}))

    def lost_writes(self, topic: str, second: bool) -> bool:
        """Tell whether any of a topic's writes may be missing, for the log was damaged: until `forget_lost_writes`."""
        return self._notes.has_lost_writes(_FAMILY_PREFIXES[second] + topic)

    def forget_lost_writes(self, topic: str, second: bool) -> None:
        """Note that what may be missing is known of. Raises StoreError."""
        self._notes.forget_lost_writes(_FAMILY_PREFIXES[second] + topic)

    def new_batch(self) -> Any:
        """Return an empty write batch: `put(key, value[, handle])`, `delete`, `delete_range`."""
        return self._engine.new_batch()

    def write(self, batch: Any) -> None:
        """Apply a batch atomically; it survives a crash of this process, and one of the machine after `sync`."""
        self._change("write", lambda: self._database.write(batch))
        self._note_written()

    def _note_written(self) -> None:
        with self._count_lock:  # bulk loads write from a thread of their own
            self._written += 1

    @property
    def is_synced(self) -> bool:
        """Whether every write that returned is durable, and the next one may be taken: `sync` would change nothing."""
        return self._synced == self._written and self.failure is None

    def sync(self) -> None:
        """Make every write that returned before this call durable. Blocks on the disk: call it from a thread."""
        with self._sync_lock:
            written = self._written  # a write that returns meanwhile may be in it or not
            self._change("sync", lambda: self._database.flush_wal(True))
            self._synced = written

    def ingest(self, family: TopicFamily, files: list[Path]) -> None:
        """Move table files, made with `table_options`, into a column family, durably and all or none.

        The files are to be on the file system of the data directory: then they are linked, which takes 2 ms.
        """
        reader, paths = family.reader, [str(file) for file in files]
        self._change_at_once("ingest", lambda: self._engine.ingest(reader, paths))

    def reclaim(self, family: TopicFamily, end: bytes) -> None:
        """Give back the disk space of what was deleted before a key. Blocks on the disk: call it from a thread.

        Raises StoreError, also when the store is closed or opened anew meanwhile.
        """
        with self._reclaim_lock:
            self._require_writable()
            try:
                family.reader.compact_range(None, end)
            except Exception as error:
                raise StoreError(f"cannot give back space in {self.path}: {error}") from error

    def _end_reclaiming(self) -> None:
        """Have a running `reclaim` end; to be called with whatever keeps the next one from starting."""
        if not self._reclaim_lock.acquire(blocking=False):
            with contextlib.suppress(Exception):
                self._database.cancel_all_background(True)
            self._reclaim_lock.acquire()
        self._reclaim_lock.release()

    def records(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the metadata records whose key starts with a prefix, in order."""
        self._require_open()
        try:
            iterator = self._database.iter()
            iterator.seek(prefix)
            while iterator.valid() and (key := iterator.key()).startswith(prefix):
                yield key, iterator.value()
                iterator.next()
            iterator.status()
        except Exception as error:
            raise StoreError(f"cannot read {self.path}: {error}") from error

    def probe(self) -> None:
        """Return when there seems to be room to go on after a failure, else raise StoreError. Blocks on the disk."""
        self._require_open()
        probe = self.path / _PROBE_NAME
        try:
            # Opening anew writes out what the logs hold.
            needed = sum(log.stat().st_size for log in self.path.glob("*.log")) + PROBE_BYTES
            free = shutil.disk_usage(self.path).free
            if free < needed:
                raise StoreError(f"{free} bytes are free for {self.path}, {needed} are needed")
            try:
                with probe.open("wb") as file:
                    file.write(os.urandom(PROBE_BYTES))  # nothing a file system would compress
                    file.flush()
                    os.fsync(file.fileno())
            finally:
                probe.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot write to {self.path}: {error}") from error

    def recover(self) -> None:
        """Open the database anew after a failure; then what was written before is there and `failure` is None.

        The write that failed is gone, or there as a whole; what was not synced may be gone. Raises StoreError when it
        is to be tried again later, as long as an iterator is in use among others; reads go on even then.
        """
        with self._sync_lock:
            self._require_open()
            self.failure = self.failure or "the database is being opened anew"
            self._end_reclaiming()
            try:
                self._open_anew(writable=True)
            except Exception as error:
                with contextlib.suppress(Exception):
                    self._open_anew(writable=False)
                raise StoreError(f"cannot open the data directory {self.path} anew: {error}") from error
        self.failure = None
        try:
            for family in self._families.values():
                if family.on_recovered is not None:
                    family.on_recovered()
        except Exception as error:
            self._fail(f"cannot go on after opening anew: {error}")
            raise

    def close(self) -> None:
        """Close the database and give up the lock; waits for a running `sync`. Closing twice is harmless."""
        with self._sync_lock:
            if self._closed:
                return
            self._closed = True
            self._end_reclaiming()
            database = self._let_go(f"the data directory {self.path} is closed")
            self._families.clear()
            try:
                database.close()
            except Exception as error:
                if self.failure is None:  # else it says the same again
                    raise StoreError(f"cannot close the data directory {self.path}: {error}") from error
            finally:
                self._lock.release()

    def __enter__(self) -> Store:
        """Return the store itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the store."""
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError(f"the data directory {self.path} is closed")

    def _require_writable(self) -> None:
        self._require_open()
        if self.failure is not None:
            raise StoreError(f"nothing is written to {self.path} any more: {self.failure}")

    def _fail(self, reason: str) -> None:
        if self.failure is None:
            self.failure = reason

    def _change_at_once(self, kind: str, action: Callable[[], object]) -> None:
        """Do what RocksDB makes durable at once, without the log: what was written before must not be lost then."""
        self._require_writable()
        self.sync()
        self._change(kind, action)

    def _change(self, kind: str, action: Callable[[], object]) -> None:
        """Do what changes the disk; when it fails, it is the last for now."""
        self._require_writable()
        at_boundary = self._at_boundary
        try:
            if at_boundary is not None:
                at_boundary(f"before {kind}")
            action()
            if at_boundary is not None:
                at_boundary(f"after {kind}")
        except Exception as error:
            reason = f"{kind} failed: {error}"
            self._fail(reason)
            raise StoreError(f"{self.path}: {reason}") from error

    def _open_anew(self, *, writable: bool) -> None:
        database = self._let_go(f"the data directory {self.path} could not be opened anew")
        with contextlib.suppress(Exception):  # it says again what has failed, and is closed all the same
            database.close()
        del database
        self._database = self._engine.open(self._notes, writable=writable)
        self._note_written()
        for name, family in self._families.items():
            self._attach(name, family)

    def _let_go(self, reason: str) -> Any:
        for family in self._families.values():
            family.close(reason)
        database, self._database = self._database, NotOpen(reason)
        return database

    def _attach(self, name: str, family: TopicFamily) -> None:
        family.reader = self._database.get_column_family(name)
        family.handle = self._database.get_column_family_handle(name)

    def _stored_families(self) -> list[str]:
        self._require_open()
        try:
            return self._engine.families()
        except Exception as error:
            raise StoreError(f"cannot read {self.path}: {error}") from error

    def _stored_topics(self) -> set[str]:
        names = self._stored_families()
        return {name.removeprefix(prefix) for prefix in _FAMILY_PREFIXES for name in names if name.startswith(prefix)}

    def _check_format(self) -> None:
        try:
            stored = self._database.get(_FORMAT_KEY)
        except Exception as error:
            raise StoreError(f"cannot read {self.path}: {error}") from error
        if stored is None or int(stored) < DATA_FORMAT:
            batch = self.new_batch()
            batch.put(_FORMAT_KEY, str(DATA_FORMAT).encode())
            self.write(batch)
            self.sync()
        elif int(stored) > DATA_FORMAT:
            raise UnsupportedFormat(
                f"the data directory {self.path} has format {int(stored)}, this version reads format {DATA_FORMAT}"
            )

    def _delete_records(self, topic: str) -> None:
        prefix = topic_prefix(topic)
        batch = self.new_batch()
        # No record key continues its topic's prefix with a byte above the kind letters.
        batch.delete_range(prefix, prefix + b"\xff")
        self.write(batch)


def topic_prefix(topic: str) -> bytes:
    """Return what every metadata key of a topic starts with: its length first, so that no topic prefixes another."""
    name = topic.encode()
    return b"t" + len(name).to_bytes(4, "big") + name


def _made_private(path: Path) -> str | None:
    """Why others may look into it all the same. Raises StoreError."""
    try:
        return keep_private(path, _LOCK_NAME, _DATABASE_NAME)
    except OSError as error:
        raise StoreError(f"cannot create the data directory {path}: {error}") from error
