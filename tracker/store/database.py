"""RocksDB as it is used here: how a database is opened, and with which options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    IngestExternalFileOptions,
    Options,
    Rdict,
    WriteBatch,
)

from tracker.errors import StoreError, is_damage
from tracker.limits import StoreLimits
from tracker.store.damage_notes import DamageNotes

_DEFAULT_FAMILY = "default"

TABLE_FORMAT: Final = 6
"""RocksDB's version of table files, readable since 8.5: a block that was put in the wrong place is noticed."""
BLOCK_BYTES: Final = 16 * 1024
"""Entries are compressed in blocks of this size: smaller ones compress worse, larger ones make look-ups slower."""


class NotOpen:
    """In the place of a database, or of a part of it, that is not open: who reads is told why."""

    def __init__(self, reason: str) -> None:
        """Say why."""
        self._reason = reason

    def __contains__(self, key: object) -> bool:
        """Raise StoreError."""
        self._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        """Raise StoreError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StoreError(self._reason)


class TopicFamily:
    """One topic's column family: `reader` for gets and iterators, `handle` for write batches.

    `Store.recover` changes both, then calls `on_recovered`: what is on disk may be less or more than was written.
    """

    def __init__(self, reader: Any, handle: Any) -> None:
        """Hold the two handles until the store drops them."""
        self.reader = reader
        self.handle = handle
        self.on_recovered: Callable[[], None] | None = None

    def close(self, reason: str) -> None:
        """Let go of the handles: RocksDB keeps its lock while any is alive."""
        self.reader, self.handle = NotOpen(reason), None


class RocksEngine:
    """See `Engine`."""

    def __init__(self, path: Path, limits: StoreLimits) -> None:
        """Nothing is opened yet."""
        self._path = path
        self._limits = limits
        self._cache = Cache(limits.block_cache_bytes)

    def families(self) -> list[str]:
        """Return the names of the column families on disk."""
        names: list[str] = Rdict.list_cf(str(self._path))
        return names

    def open(self, notes: DamageNotes, *, writable: bool | None = None) -> Any:
        """Open the database; where `writable` is None it may be nothing yet."""
        access = {None: None, True: AccessType.read_write(), False: AccessType.read_only(False)}[writable]
        return open_database(self._path, self._cache, notes, self._limits, access)

    def create_family(self, database: Any, name: str) -> None:
        """Make a column family, durably."""
        database.create_column_family(name, family_options(self._cache, self._limits))

    def new_batch(self) -> Any:
        """Return an empty write batch."""
        return WriteBatch(raw_mode=True)

    def ingest(self, reader: Any, files: list[str]) -> None:
        """Move table files into a column family, durably and all or none."""
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        reader.ingest_external_file(files, options)


def open_database(path: Path, cache: Any, notes: DamageNotes, limits: StoreLimits, access: Any = None) -> Any:
    """Open what is there; without `access` it may be nothing yet."""
    known = access is not None or (path / "CURRENT").exists()
    families = Rdict.list_cf(str(path)) if known else [_DEFAULT_FAMILY]
    access = AccessType.read_write() if access is None else access
    notes.settle(families)

    def attempt(checked: bool) -> Any:
        database_options = _database_options(cache, limits)
        database_options.set_paranoid_checks(checked)
        options = {name: family_options(cache, limits, notes.is_damaged(name) or not checked) for name in families}
        return Rdict(str(path), database_options, options, access)

    try:
        return attempt(checked=True)
    except Exception as error:
        if not is_damage(error):
            raise
        if "ahead of WALs" in str(error) or "beyond the point of corruption" in str(error):
            # The log is damaged before the end of what some files hold: which writes are missing cannot be known.
            notes.note_lost_writes(families)
        # Truncated files keep the database from opening at all; what is in the others can be read all the same.
        return attempt(checked=False)


def _database_options(cache: Any, limits: StoreLimits) -> Any:
    options = family_options(cache, limits)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_db_write_buffer_size(limits.db_write_buffer_bytes)
    options.set_max_total_wal_size(limits.max_wal_bytes)
    options.set_max_open_files(limits.max_open_files)
    options.set_keep_log_file_num(limits.info_log_files)
    options.set_max_log_file_size(limits.info_log_bytes)
    options.set_max_background_jobs(2)
    options.set_stats_dump_period_sec(0)
    options.set_allow_concurrent_memtable_write(False)  # one thread writes: no need to pay for more
    options.set_paranoid_checks(True)  # without, writes go on after a failed flush that is never taken up again
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())  # a record that was being written is left out
    options.set_skip_stats_update_on_db_open(True)  # it would read a block of every file
    return options


def table_options(cache: Any = None) -> Any:
    """Return how table files are written."""
    options = Options(raw_mode=True)
    tables = BlockBasedOptions()
    if cache is not None:
        tables.set_block_cache(cache)
    tables.set_format_version(TABLE_FORMAT)
    tables.set_block_size(BLOCK_BYTES)
    # Index blocks are read when needed: of all entries they would take more memory than everything else.
    tables.set_index_type(BlockBasedIndexType.two_level_index_search())
    tables.set_cache_index_and_filter_blocks(True)
    tables.set_pin_top_level_index_and_filter(True)
    options.set_block_based_table_factory(tables)
    options.set_compression_type(DBCompressionType.zstd())
    return options


def family_options(cache: Any, limits: StoreLimits, damaged: bool = False) -> Any:
    """Return the options of a column family; the files of a damaged one are left as they are."""
    options = table_options(cache)
    options.set_disable_auto_compactions(damaged)
    options.set_write_buffer_size(limits.write_buffer_bytes)
    options.set_max_write_buffer_number(limits.write_buffers)
    options.set_level_compaction_dynamic_level_bytes(True)
    # What was just written is rewritten soon, and again on the first levels: compressing it well each time would cost a
    # third of the rate of writing. The levels below hold nearly all of a large index.
    options.set_compression_per_level(
        [DBCompressionType.none(), DBCompressionType.lz4(), *[DBCompressionType.zstd()] * 5]
    )
    options.set_level_zero_file_num_compaction_trigger(limits.fresh_files)
    return options
