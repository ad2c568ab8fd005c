"""The data directory: one RocksDB database a bridge, one column family a topic partition, one log to sync."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout
from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
)

from tracker import limits

DATA_FORMAT = 1
"""Version of the records and keys this code writes."""

_FORMAT_KEY = b"!format"
_FAMILY_PREFIX = "topic:"
_DEFAULT_FAMILY = "default"
_LOCK_NAME = "bridge.lock"


class StoreError(Exception):
    """The data directory cannot be used as asked."""


class DataDirectoryLocked(StoreError):
    """Another process holds the data directory."""


class UnsupportedFormat(StoreError):
    """The data directory was written by a newer version."""


class TopicFamily:
    """One topic's column family: `reader` for gets and iterators, `handle` for write batches."""

    def __init__(self, reader: Any, handle: Any) -> None:
        """Hold the two handles until the store drops them."""
        self.reader = reader
        self.handle = handle

    def close(self) -> None:
        """Let go of the handles: RocksDB keeps its lock while any is alive."""
        self.reader = self.handle = None


class Store:
    """An open data directory. Not for several threads, but for `sync`, which may run beside everything but `close`."""

    def __init__(self, path: Path, lock: FileLock, database: Any, cache: Any) -> None:
        """Use `Store.open`."""
        self.path = path
        self._lock = lock
        self._database = database
        self._cache = cache
        self._families: dict[str, TopicFamily] = {}
        self._sync_lock = threading.Lock()
        self._closed = False

    @classmethod
    def open(cls, path: Path) -> Store:
        """Open or create a data directory; raises DataDirectoryLocked, UnsupportedFormat or StoreError."""
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot create the data directory {path}: {error}") from error
        # Not bound to a thread: the bridge may open and close from different ones.
        lock = FileLock(path / _LOCK_NAME, timeout=0, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            raise DataDirectoryLocked(f"the data directory {path} is in use by another process") from None
        except OSError as error:
            raise StoreError(f"cannot lock the data directory {path}: {error}") from error
        try:
            cache = Cache(limits.BLOCK_CACHE_BYTES)
            store = cls(path, lock, _open_database(path, cache), cache)
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
        return sorted(_topic_families(self.path))

    def open_topic(self, topic: str) -> TopicFamily:
        """Return a topic's column family, creating it when it is new. Raises StoreError."""
        self._require_open()
        known = self._families.get(topic)
        if known is not None:
            return known
        name = _FAMILY_PREFIX + topic
        try:
            if topic not in _topic_families(self.path):
                # A drop that did not finish may have left records without a column family.
                self._delete_records(topic)
                self._database.create_column_family(name, _family_options(self._cache))
            family = TopicFamily(self._database.get_column_family(name), self._database.get_column_family_handle(name))
        except Exception as error:
            raise StoreError(f"cannot open the index of {topic}: {error}") from error
        self._families[topic] = family
        return family

    def drop_topic(self, topic: str) -> None:
        """Delete a topic's index and records; nothing happens when there is none. Raises StoreError."""
        self._require_open()
        family = self._families.pop(topic, None)
        if family is not None:
            family.close()
        try:
            # Entries first: records without entries are cleared by the next `open_topic`, the reverse is not.
            if topic in _topic_families(self.path):
                self._database.drop_column_family(_FAMILY_PREFIX + topic)
            self._delete_records(topic)
        except Exception as error:
            raise StoreError(f"cannot drop the index of {topic}: {error}") from error

    def new_batch(self) -> Any:
        """Return an empty write batch: `put(key, value[, handle])`, `delete`, `delete_range`."""
        return WriteBatch(raw_mode=True)

    def write(self, batch: Any) -> None:
        """Apply a batch atomically; it survives a crash of this process, and one of the machine after `sync`."""
        self._require_open()
        try:
            self._database.write(batch)
        except Exception as error:
            raise StoreError(f"cannot write to {self.path}: {error}") from error

    def sync(self) -> None:
        """Make every write that returned before this call durable. Blocks on the disk: call it from a thread."""
        with self._sync_lock:
            self._require_open()
            try:
                self._database.flush_wal(True)
            except Exception as error:
                raise StoreError(f"cannot sync {self.path}: {error}") from error

    def records(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the metadata records whose key starts with a prefix, in order."""
        self._require_open()
        iterator = self._database.iter()
        iterator.seek(prefix)
        while iterator.valid() and (key := iterator.key()).startswith(prefix):
            yield key, iterator.value()
            iterator.next()
        iterator.status()

    def close(self) -> None:
        """Close the database and give up the lock; waits for a running `sync`. Closing twice is harmless."""
        with self._sync_lock:
            if self._closed:
                return
            self._closed = True
            for family in self._families.values():
                family.close()
            self._families.clear()
            try:
                self._database.close()
            finally:
                self._database = None
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

    def _check_format(self) -> None:
        stored = self._database.get(_FORMAT_KEY)
        if stored is None:
            self._database.put(_FORMAT_KEY, str(DATA_FORMAT).encode())
            self.sync()
        elif int(stored) != DATA_FORMAT:
            raise UnsupportedFormat(
                f"the data directory {self.path} has format {int(stored)}, this version reads format {DATA_FORMAT}"
            )

    def _delete_records(self, topic: str) -> None:
        prefix = topic_prefix(topic)
        batch = self.new_batch()
        # No record key continues its topic's prefix with a byte above the kind letters.
        batch.delete_range(prefix, prefix + b"\xff")
        self._database.write(batch)


def topic_prefix(topic: str) -> bytes:
    """Return what every metadata key of a topic starts with: its length first, so that no topic prefixes another."""
    name = topic.encode()
    return b"t" + len(name).to_bytes(4, "big") + name


def _topic_families(path: Path) -> set[str]:
    names = Rdict.list_cf(str(path))
    return {name.removeprefix(_FAMILY_PREFIX) for name in names if name.startswith(_FAMILY_PREFIX)}


def _open_database(path: Path, cache: Any) -> Any:
    options = _database_options(cache)
    families = Rdict.list_cf(str(path)) if (path / "CURRENT").exists() else [_DEFAULT_FAMILY]
    return Rdict(str(path), options, {name: _family_options(cache) for name in families})


def _database_options(cache: Any) -> Any:
    options = _family_options(cache)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_db_write_buffer_size(limits.DB_WRITE_BUFFER_BYTES)
    options.set_max_total_wal_size(limits.MAX_WAL_BYTES)
    options.set_max_open_files(limits.MAX_OPEN_FILES)
    options.set_keep_log_file_num(limits.INFO_LOG_FILES)
    options.set_max_log_file_size(limits.INFO_LOG_BYTES)
    options.set_max_background_jobs(2)
    options.set_stats_dump_period_sec(0)
    return options


def _family_options(cache: Any) -> Any:
    options = Options(raw_mode=True)
    tables = BlockBasedOptions()
    tables.set_block_cache(cache)
    options.set_block_based_table_factory(tables)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(limits.WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(limits.WRITE_BUFFERS)
    options.set_level_compaction_dynamic_level_bytes(True)
    return options
