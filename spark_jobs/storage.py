"""Where the files of a job go: a local path, or anything pyarrow's file systems reach (`s3://…`, `hdfs://…`).

A bridge has to do with storage as well, and takes pyarrow for places elsewhere only: for them, and for jobs, it has to
be installed.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from bridge.extras import ExtraMissing, need
from spark_jobs.errors import LedgerReadError


class StorageError(LedgerReadError):
    """Files of a job cannot be read or written."""


class _Files(Protocol):
    """Files below one folder, by name; every call may raise OSError."""

    def open(self, name: str) -> BinaryIO: ...

    def create(self, name: str) -> BinaryIO:
        """Make the folders that are missing, too."""
        ...

    def move(self, name: str, to: str) -> None: ...

    def names(self, folder: str) -> list[str]:
        """Names in the folder, none without it."""
        ...

    def delete(self) -> None:
        """All of it."""
        ...


class _LocalFiles:
    """On this machine, or mounted here."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self, name: str) -> BinaryIO:
        return (self._root / name).open("rb")

    def create(self, name: str) -> BinaryIO:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("wb")

    def move(self, name: str, to: str) -> None:
        (self._root / name).replace(self._root / to)

    def names(self, folder: str) -> list[str]:
        try:
            return [each.name for each in (self._root / folder).iterdir()]
        except FileNotFoundError:
            return []

    def delete(self) -> None:
        shutil.rmtree(self._root)


class _RemoteFiles:
    """Elsewhere, by pyarrow."""

    def __init__(self, uri: str) -> None:
        """Raises ExtraMissing, OSError, ValueError."""
        need("spark", f"storage at {uri}")
        from pyarrow import fs

        self._system, self._root = fs.FileSystem.from_uri(uri)

    def open(self, name: str) -> BinaryIO:
        return cast("BinaryIO", self._system.open_input_file(self._path(name)))

    def create(self, name: str) -> BinaryIO:
        path = self._path(name)
        self._system.create_dir(path.rpartition("/")[0], recursive=True)
        return cast("BinaryIO", self._system.open_output_stream(path))

    def move(self, name: str, to: str) -> None:
        self._system.move(self._path(name), self._path(to))

    def names(self, folder: str) -> list[str]:
        from pyarrow import fs

        found: list[Any] = self._system.get_file_info(fs.FileSelector(self._path(folder), allow_not_found=True))
        return [one.base_name for one in found]

    def delete(self) -> None:
        self._system.delete_dir(self._root)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


class Storage:
    """A folder; names in it may contain `/`. Raises StorageError."""

    def __init__(self, uri: str) -> None:
        """`uri`: an absolute path or a URI."""
        self.uri = uri
        try:
            self._files: _Files = _RemoteFiles(uri) if "://" in uri else _LocalFiles(Path(uri).absolute())
        except ExtraMissing as error:
            raise StorageError(str(error)) from error
        except (OSError, ValueError) as error:
            raise StorageError(f"not a place for files: {uri!r}: {error}") from error

    def put(self, source: Path, name: str) -> None:
        """Copy a local file into the storage."""
        try:
            with source.open("rb") as data, self._files.create(name) as target:
                shutil.copyfileobj(data, target, 1 << 20)
        except OSError as error:
            raise StorageError(f"cannot write {name} to {self.uri}: {error}") from error

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file out of the storage, as a whole or not at all, unless it is there. May raise OSError too."""
        if target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f"{target.name}.{uuid.uuid4().hex}.new")
        try:
            with self._files.open(name) as source, draft.open("wb") as data:
                shutil.copyfileobj(source, data, 1 << 20)
            draft.rename(target)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise StorageError(f"cannot fetch {name} from {self.uri}: {error}") from error

    def remove(self) -> None:
        """Delete the folder with all that is in it, if it is there."""
        try:
            self._files.delete()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StorageError(f"cannot delete {self.uri}: {error}") from error

    def write(self, name: str, data: bytes) -> None:
        """Write a small file that is there as a whole or not at all."""
        draft = f"{name}.{uuid.uuid4().hex}.new"
        try:
            with self._files.create(draft) as target:
                target.write(data)
            self._files.move(draft, name)
        except OSError as error:
            raise StorageError(f"cannot write {name} to {self.uri}: {error}") from error

    def read(self, name: str) -> bytes | None:
        """Return a small file, None when there is none."""
        try:
            with self._files.open(name) as source:
                return source.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"cannot read {name} from {self.uri}: {error}") from error

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading; OSError when it cannot be read."""
        return self._files.open(name)

    def names(self, folder: str, suffix: str) -> list[str]:
        """Return the names of the files in a folder that end with a suffix, sorted; none without the folder."""
        try:
            return sorted(f"{folder}/{name}" for name in self._files.names(folder) if name.endswith(suffix))
        except OSError as error:
            raise StorageError(f"cannot list {folder} in {self.uri}: {error}") from error
