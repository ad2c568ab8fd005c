"""The data directory is for its owner alone: it holds payloads, and whoever may list it could read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tracker.errors import StoreError

UMASK = 0o077
"""For the process that serves: what it makes, RocksDB and its Spark jobs included, is readable by its user alone."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_NOBODYS = ("lost+found",)
"""What a file system has in its root."""


def keep_private(path: Path, *known_by: str) -> str | None:
    """Make a directory, or take all rights of others away, from it and all below; links are left as they are.

    Returns why others may still look into it, None when they cannot. `known_by`: names, of which a data directory
    holds one. Raises StoreError for a directory that is not to be touched, OSError when it cannot be made.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    user = os.geteuid()
    held = {each.name for each in path.iterdir()} - set(_NOBODYS)
    if user == 0 and held and held.isdisjoint(known_by):
        # As root nothing would keep `/var/lib` from being closed to everybody else.
        raise StoreError(f"the data directory {path} holds other files: give the bridge one of its own")
    if found.st_uid == user and not found.st_mode & stat.S_ISVTX:
        _tighten(path, found)
    for folder, _, names in os.walk(path):
        for each in (Path(folder), *(Path(folder, name) for name in names)):
            _tighten_own(each, user)
    if (mode := stat.S_IMODE(path.stat().st_mode)) & _OTHERS:
        return f"others may look into the data directory {path}: its mode is {mode:04o}, its owner user {found.st_uid}"
    return None


def _tighten_own(path: Path, user: int) -> None:
    """Another user's files are left, and so is what is gone by now."""
    try:
        found = path.lstat()
        if found.st_uid == user and (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            _tighten(path, found)
    except FileNotFoundError:
        pass


def _tighten(path: Path, found: os.stat_result) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if mode & _OTHERS and not mode & stat.S_ISVTX:
        path.chmod(mode & ~_OTHERS)
