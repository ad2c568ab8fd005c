"""Where the files of a job go: a local path, or anything pyarrow's file systems reach (`s3://…`, `hdfs://…`)."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from pyarrow import fs

from spark_jobs.errors import LedgerReadError


class StorageError(LedgerReadError):
    """Files of a job cannot be read or written."""


class Storage:
    """A folder; names in it may contain `/`. Raises StorageError."""

    def __init__(self, uri: str) -> None:
        """`uri`: an absolute path or a URI."""
        self.uri = uri
        try:
            self._files, self._root = fs.FileSystem.from_uri(uri if "://" in uri else Path(uri).absolute().as_uri())
        except (OSError, ValueError) as error:
            raise StorageError(f"not a place for files: {uri!r}: {error}") from error

    def put(self, source: Path, name: str) -> None:
        """Copy a local file into the storage."""
        try:
            self._make_folder(name)
            with source.open("rb") as data, self._files.open_output_stream(self._path(name)) as target:
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
            with self._files.open_input_stream(self._path(name)) as source, draft.open("wb") as data:
                shutil.copyfileobj(source, data, 1 << 20)
            draft.rename(target)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise StorageError(f"cannot fetch {name} from {self.uri}: {error}") from error

    def remove(self) -> None:
        """Delete the folder with all that is in it, if it is there."""
        try:
            self._files.delete_dir(self._root)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StorageError(f"cannot delete {self.uri}: {error}") from error

    def write(self, name: str, data: bytes) -> None:
        """Write a small file that is there as a whole or not at all."""
        draft = f"{self._path(name)}.{uuid.uuid4().hex}.new"
        try:
            self._make_folder(name)
            with self._files.open_output_stream(draft) as target:
                target.write(data)
            self._files.move(draft, self._path(name))
        except OSError as error:
            raise StorageError(f"cannot write {name} to {self.uri}: {error}") from error

    def read(self, name: str) -> bytes | None:
        """Return a small file, None when there is none."""
        try:
            with self._files.open_input_stream(self._path(name)) as source:
                data: bytes = source.read()
                return data
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"cannot read {name} from {self.uri}: {error}") from error

    def open(self, name: str) -> fs.NativeFile:
        """Open a file for reading; OSError when it cannot be read."""
        return self._files.open_input_file(self._path(name))

    def names(self, folder: str, suffix: str) -> list[str]:
        """Return the names of the files in a folder that end with a suffix, sorted; none without the folder."""
        try:
            found = self._files.get_file_info(fs.FileSelector(self._path(folder), allow_not_found=True))
        except OSError as error:
            raise StorageError(f"cannot list {folder} in {self.uri}: {error}") from error
        return sorted(f"{folder}/{one.base_name}" for one in found if one.base_name.endswith(suffix))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _make_folder(self, name: str) -> None:
        folder = self._path(name).rpartition("/")[0]
        self._files.create_dir(folder, recursive=True)
