"""What is known to be damaged: in a file beside the database, for it must be known before that is opened."""

from __future__ import annotations

import json
from pathlib import Path

from tracker.errors import StoreError
from tracker.store.durable_files import replace_file

_NAME = "bridge.damaged"
_LOG_PREFIX = "log:"


class DamageNotes:
    """Names of column families whose files are damaged, and of those whose last writes are missing."""

    def __init__(self, path: Path) -> None:
        """Read the notes of a data directory, if there are any."""
        self._path = path
        self._names: set[str] = set()
        self._unreadable = False
        try:
            self._names = set(json.loads((path / _NAME).read_text()))
        except FileNotFoundError:
            pass
        except (ValueError, TypeError):
            self._unreadable = True

    def settle(self, families: list[str]) -> None:
        """Note, where notes cannot be read, that last writes of all column families may be missing. Raises StoreError.

        Files that are damaged are found again when they are read.
        """
        if self._unreadable:
            self.note_lost_writes(families)

    def is_damaged(self, family: str) -> bool:
        """Tell whether a column family's files are damaged."""
        return family in self._names

    def set_damaged(self, family: str, damaged: bool) -> None:
        """Note that a column family's files are damaged, or gone. Raises StoreError."""
        self._write(self._names | {family} if damaged else self._names - {family})

    def has_lost_writes(self, family: str) -> bool:
        """Tell whether a column family's last writes may be missing."""
        return _LOG_PREFIX + family in self._names

    def note_lost_writes(self, families: list[str]) -> None:
        """Note that the last writes of column families may be missing. Raises StoreError."""
        self._write(self._names | {_LOG_PREFIX + family for family in families})

    def forget_lost_writes(self, family: str) -> None:
        """Note that somebody knows what may be missing. Raises StoreError."""
        self._write(self._names - {_LOG_PREFIX + family})

    def _write(self, names: set[str]) -> None:
        if names == self._names and not self._unreadable:
            return
        try:
            replace_file(self._path / _NAME, json.dumps(sorted(names)).encode())
        except OSError as error:
            raise StoreError(f"cannot write to {self._path}: {error}") from error
        self._names, self._unreadable = names, False
