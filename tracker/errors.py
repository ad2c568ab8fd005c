"""What goes wrong with a data directory."""

from __future__ import annotations


class StoreError(Exception):
    """The data directory cannot be used as asked."""


class DataDirectoryLocked(StoreError):
    """Another process holds the data directory."""


class UnsupportedFormat(StoreError):
    """The data directory was written by a newer version."""


def is_damage(error: Exception) -> bool:
    """Tell whether RocksDB speaks of files that are not as it wrote them."""
    text = str(error)
    return "Corruption" in text or "No such file" in text or "too short" in text
