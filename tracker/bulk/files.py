"""Ready-made index files for a bulk load: sorted RocksDB tables and the manifest that describes them.

A group holds whole time partitions, in one table file or, for a partition larger than a file, in several that are
loaded together. Position files hold the records of `tracker.partitions.positions` for all entries. The manifest is
written last, by a rename: a directory without one is not a result.
"""

from __future__ import annotations

import os
import secrets
import struct
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError
from rocksdict import SstFileWriter

from tracker.bulk.counters import BulkCounters, BulkPartition
from tracker.keys import KEY_LENGTH, key_time
from tracker.limits import BulkFileLimits
from tracker.partitions.positions import BLOCK_SHIFT, PlacedEntry, encode_records
from tracker.position import Position
from tracker.store.database import table_options

MANIFEST_FORMAT = 1
MANIFEST_NAME = "manifest.json"

VERIFY_BYTES: Final = 64 * 1024
"""Read of a file before the thread that verifies lets others run: 0.05 ms, for which one that delivers may have to wait
on a busy machine."""
VERIFY_AHEAD_BYTES: Final = 4 * 1024 * 1024
"""Read from the disk ahead of that, at most twice as much."""


class BulkError(Exception):
    """Files or manifest are not what they should be; the index is as it was."""


class TableFile(BaseModel):
    """One file; `crc32` is zlib's, of the whole file."""

    model_config = ConfigDict(frozen=True)

    name: str
    bytes: int
    crc32: int


class Group(BaseModel):
    """Whole time partitions that are loaded together; keys in hexadecimal.

    `partitions` is a file of their counters, see `encode_partitions`: of a large index there are too many to name here.
    """

    model_config = ConfigDict(frozen=True)

    files: list[TableFile]
    partitions: TableFile
    entries: int
    size: int
    first_key: str
    last_key: str


class Manifest(BaseModel):
    """A bulk load: every delayed entry of `topic` with a position in (after, upto] that is still needed."""

    model_config = ConfigDict(frozen=True)

    format: int = MANIFEST_FORMAT
    id: str
    topic: str
    partition_width_ms: int
    after: tuple[int, int]
    upto: tuple[int, int]
    positions: list[TableFile]
    groups: list[Group]

    @property
    def entries(self) -> int:
        """How many entries there are in all."""
        return sum(group.entries for group in self.groups)

    def write(self, directory: Path) -> None:
        """Make the directory a result."""
        draft = directory / f"{MANIFEST_NAME}.new"
        draft.write_text(self.model_dump_json())
        draft.replace(directory / MANIFEST_NAME)

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read a manifest; raises BulkError naming what is wrong."""
        path = directory / MANIFEST_NAME
        try:
            text = path.read_text()
        except OSError as error:
            raise BulkError(f"no bulk load in {directory}: {error}") from error
        try:
            manifest = cls.model_validate_json(text)
        except ValidationError as error:
            raise BulkError(f"{path} is not a manifest: {error}") from error
        if manifest.format > MANIFEST_FORMAT:
            raise BulkError(f"{path} has format {manifest.format}, this version reads {MANIFEST_FORMAT}")
        return manifest


def new_manifest(
    topic: str,
    partition_width_ms: int,
    after: Position,
    upto: Position,
    positions: list[TableFile],
    groups: list[Group],
) -> Manifest:
    """Return a manifest with an id of its own, its groups in due order."""
    return Manifest(
        id=uuid.uuid4().hex,
        topic=topic,
        partition_width_ms=partition_width_ms,
        after=after,
        upto=upto,
        positions=positions,
        groups=sorted(groups, key=lambda group: group.first_key),
    )


def check_file(directory: Path, file: TableFile, give_way: Callable[[], object]) -> None:
    """Raise BulkError when a file is not the one the manifest speaks of.

    Reads all of it and has it on disk, which RocksDB would wait for otherwise: call it from a thread. `give_way` is
    called often: on a busy machine a thread that delivers would wait until this one has used up its slice of time.
    """
    path, crc = directory / file.name, 0
    try:
        size = path.stat().st_size
        with path.open("rb", buffering=0) as source:
            read = 0
            while block := source.read(VERIFY_BYTES):
                if read % VERIFY_AHEAD_BYTES == 0 and hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(source.fileno(), read, 2 * VERIFY_AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
                crc, read = zlib.crc32(block, crc), read + len(block)
                give_way()
            os.fsync(source.fileno())
    except OSError as error:
        raise BulkError(f"cannot read {path}: {error}") from error
    if (size, crc) != (file.bytes, file.crc32):
        raise BulkError(f"{path} is damaged: {size} bytes, checksum {crc}; expected {file.bytes} and {file.crc32}")


_POSITION = struct.Struct(">QQ")
_PLACE = KEY_LENGTH - _POSITION.size


def write_groups(
    directory: Path,
    name: str,
    pairs: Iterable[tuple[bytes, bytes]],
    partition_width_ms: int,
    limits: BulkFileLimits,
) -> Iterator[Group]:
    """Write (key, stored value) pairs, in key order, as groups named `name-N`; yield each when it is complete."""
    writer = _GroupWriter(directory, name, limits)
    for number, part in groupby(pairs, lambda pair: key_time(pair[0]) // partition_width_ms):
        yield from writer.begin(number)
        while some := list(islice(part, limits.bulk_write_entries)):
            writer.put(some)
    yield from writer.finish()


def write_positions(directory: Path, name: str, placed: Iterable[PlacedEntry]) -> TableFile | None:
    """Write the position records of entries in position order into one file; None when there are no entries."""
    table: _Table | None = None
    block: list[PlacedEntry] = []
    # As of a write no index ever comes to: another load may bring other positions of the same blocks.
    number = 2**63 | secrets.randbits(63)
    for entry in placed:
        if block and (block[0].ledger, block[0].entry >> BLOCK_SHIFT) != (entry.ledger, entry.entry >> BLOCK_SHIFT):
            table = table or _Table(directory, f"{name}.sst")
            table.put(*encode_records(block, number)[0])
            block = []
        block.append(entry)
    if block:
        table = table or _Table(directory, f"{name}.sst")
        table.put(*encode_records(block, number)[0])
    return None if table is None else table.finish()


class _Table:
    def __init__(self, directory: Path, name: str) -> None:
        self.size = 0
        self._path = directory / name
        self._writer = SstFileWriter(table_options())
        self._writer.open(str(self._path))

    def put(self, key: bytes, value: bytes) -> None:
        self._writer[key] = value
        self.size += len(key) + len(value)

    def put_all(self, pairs: list[tuple[bytes, bytes]]) -> int:
        writer, size = self._writer, 0
        for key, value in pairs:
            writer[key] = value
            size += len(value)
        size += len(pairs) * KEY_LENGTH
        self.size += size
        return size

    def finish(self) -> TableFile:
        self._writer.finish()
        return describe_file(self._path)


def describe_file(path: Path) -> TableFile:
    """Return what a manifest says of a file."""
    crc = 0
    with path.open("rb") as source:
        while block := source.read(1 << 16):
            crc = zlib.crc32(block, crc)
    return TableFile(name=path.name, bytes=path.stat().st_size, crc32=crc)


class _GroupWriter:
    """Starts a new group at the first partition after a file is full; within a partition only when it must."""

    def __init__(self, directory: Path, name: str, limits: BulkFileLimits) -> None:
        self._directory = directory
        self._name = name
        self._limits = limits
        self._count = 0
        self._table: _Table | None = None
        self._files: list[TableFile] = []
        self._partitions: list[BulkPartition] = []
        self._number = -1
        self._entries = self._size = 0
        self._lowest = self._highest = b""
        self._first = self._last = b""

    def begin(self, number: int) -> Iterator[Group]:
        """Start a partition; yields the group before it when that is complete."""
        self._end_partition()
        many = len(self._partitions) >= self._limits.bulk_group_partitions
        if many or self._files or self._written >= self._limits.bulk_file_bytes:
            yield from self.finish()
        self._number = number

    def put(self, some: list[tuple[bytes, bytes]]) -> None:
        """Write entries of the partition begun."""
        if self._written >= self._limits.bulk_file_max_bytes:
            self._end_file()
        if self._table is None:
            self._table = _Table(self._directory, f"{self._name}-{self._count}.sst")
            self._count += 1
        size = self._table.put_all(some)
        # A key ends with ledger and entry, in the order of positions.
        places = [key[_PLACE:] for key, _ in some]
        lowest, highest = min(places), max(places)
        if not self._entries or lowest < self._lowest:
            self._lowest = lowest
        if not self._entries or highest > self._highest:
            self._highest = highest
        self._first = self._first or some[0][0]
        self._last = some[-1][0]
        self._entries += len(some)
        self._size += size

    @property
    def _written(self) -> int:
        return 0 if self._table is None else self._table.size

    def finish(self) -> Iterator[Group]:
        self._end_partition()
        self._end_file()
        if self._partitions:
            path = self._directory / f"{self._name}-{self._count}.partitions"
            path.write_bytes(BulkCounters.of(self._partitions).encode())
            yield Group(
                files=self._files,
                partitions=describe_file(path),
                entries=sum(known.entries for known in self._partitions),
                size=sum(known.size for known in self._partitions),
                first_key=self._first.hex(),
                last_key=self._last.hex(),
            )
        self._files, self._partitions, self._first = [], [], b""

    def _end_partition(self) -> None:
        if self._entries:
            places = (*_POSITION.unpack(self._lowest), *_POSITION.unpack(self._highest))
            self._partitions.append(BulkPartition(self._number, self._entries, self._size, *places))
        self._entries = self._size = 0
        self._number = -1

    def _end_file(self) -> None:
        if self._table is not None:
            self._files.append(self._table.finish())
            self._table = None
