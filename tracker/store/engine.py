"""What a store needs of the database below it: RocksDB, or one in memory that a test may make forget and fail."""

from __future__ import annotations

from typing import Any, Protocol

from tracker.store.damage_notes import DamageNotes


class Engine(Protocol):
    """Opens a database with column families, again and again.

    Databases, families, iterators and batches are used as `rocksdict` has them in raw mode: `write`, `flush_wal`,
    `get`, `iter` with `seek`, `valid`, `key`, `value`, `next` and `status`, `put(key, value[, handle])` and so on.
    """

    def families(self) -> list[str]:
        """Return the names of the column families on disk."""

    def open(self, notes: DamageNotes, *, writable: bool | None = None) -> Any:
        """Open the database; where `writable` is None it may be nothing yet."""

    def create_family(self, database: Any, name: str) -> None:
        """Make a column family, durably."""

    def new_batch(self) -> Any:
        """Return an empty write batch."""

    def ingest(self, reader: Any, files: list[str]) -> None:
        """Move table files into a column family, durably and all or none."""
