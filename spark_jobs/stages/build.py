"""Second stage of a rebuild: what was kept is sorted by due time and written as files the index takes in."""

from __future__ import annotations

import mmap
import operator
import tempfile
import uuid
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from spark_jobs.plan import RangeResult, RebuildSpec
from spark_jobs.stages.garbage import no_collections
from spark_jobs.storage import Storage, StorageError
from tracker.bulk.files import Group, TableFile, write_groups
from tracker.fingerprint import Fingerprint, fingerprint
from tracker.keys import KEY_LENGTH
from tracker.limits import BulkFileLimits

_Part = tuple[bytes, bytes, bytes]
"""Rows of one bucket on their way to who writes it: keys, values, and the lengths of the values. Spark would take
longer to move and sort rows one by one than it takes to write them."""
_PART_BYTES = 4 * 1024 * 1024
"""Key and value bytes that are cut into the parts of buckets at a time."""
_SLICE = 2_000
"""Entries that are brought into order at a time."""


class BucketResult(BaseModel):
    """One bucket as written."""

    model_config = ConfigDict(frozen=True)

    bucket: int
    entries: int
    checksum: int
    groups: list[Group]

    @property
    def fingerprint(self) -> Fingerprint:
        """Of its entries."""
        return Fingerprint(self.entries, self.checksum)


def bucket_marker(plan: str, bucket: int) -> str:
    """Return the name of the file that says that a bucket is written."""
    return f"groups/{plan}-{bucket:06d}.json"


def build(
    context: Any, spec: RebuildSpec, plan: str, boundaries: list[int], results: list[RangeResult], buckets: set[int]
) -> None:
    """Write the buckets that are missing; each leaves a marker."""
    files = [one.rows for one in results if one.rows is not None]
    if not files or not buckets:
        return
    # Not a DataFrame: the first query of a session takes Spark seconds to get ready for.
    # Few tasks: Spark takes longer to begin and end one than it takes to cut a file.
    tasks = min(len(files), context.defaultParallelism)
    parts = context.parallelize(files, tasks).flatMap(_loader(spec, boundaries, buckets))
    gathered = parts.partitionBy(len(boundaries) + 1, operator.index)
    gathered.mapPartitionsWithIndex(_writer(spec, plan)).collect()


def _loader(
    spec: RebuildSpec, boundaries: list[int], buckets: set[int]
) -> Callable[[str], Iterator[tuple[int, _Part]]]:
    starts = np.array(boundaries, np.int64)

    def load(name: str) -> Iterator[tuple[int, _Part]]:
        for rows in _merged(_rows(Storage(spec.output), name)):
            due = np.frombuffer(_packed(rows.column("key"))[0], ">u8")[::3].astype(np.int64)
            found = np.searchsorted(starts, due // spec.partition_width_ms, "right")
            order = np.argsort(found, kind="stable")
            bounds = np.searchsorted(found[order], np.arange(len(starts) + 2)).tolist()
            ordered = rows.take(pa.array(order)) if len(starts) else rows
            for bucket, (first, end) in enumerate(pairwise(bounds)):
                if first < end and bucket in buckets:
                    part = ordered.slice(first, end - first)
                    yield bucket, (_packed(part.column("key"))[0], *_packed(part.column("value")))

    return load


def _rows(storage: Storage, name: str) -> Iterator[pa.RecordBatch]:
    try:
        with storage.open(name) as source, pa.ipc.open_stream(source) as batches:
            yield from batches
    except (OSError, pa.ArrowInvalid) as error:
        raise StorageError(f"cannot read {name} from {storage.uri}: {error}") from error


def _merged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches of about _PART_BYTES: each is cut into as many parts as there are buckets."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _PART_BYTES:
            yield pa.concat_batches(held)
            held, size = [], 0
    if held:
        yield pa.concat_batches(held)


def _packed(column: pa.BinaryArray) -> tuple[bytes, bytes]:
    """Return the values of a column without nulls, one after the other, and their lengths, of 4 bytes each."""
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    return data[int(bounds[0]) : int(bounds[-1])].to_pybytes(), np.diff(bounds).tobytes()


def _writer(spec: RebuildSpec, plan: str) -> Callable[[int, Iterator[tuple[int, _Part]]], Iterator[int]]:
    def write(bucket: int, parts: Iterator[tuple[int, _Part]]) -> Iterator[int]:
        first = next(parts, None)
        if first is not None:
            yield _write_bucket(spec, plan, bucket, (part for _, part in chain([first], parts))).entries

    return write


def _write_bucket(spec: RebuildSpec, plan: str, bucket: int, parts: Iterator[_Part]) -> BucketResult:
    storage, total = Storage(spec.output), Fingerprint()

    def pairs(folder: Path) -> Iterator[tuple[bytes, bytes]]:
        nonlocal total
        for keys, values in _in_order(folder / "values", parts):
            total = total.plus(fingerprint(keys))
            yield from zip(keys, values, strict=True)

    groups: list[Group] = []
    with tempfile.TemporaryDirectory(prefix="delay-bridge-") as temporary, no_collections():
        folder = Path(temporary)
        for group in write_groups(folder, uuid.uuid4().hex, pairs(folder), spec.partition_width_ms, BulkFileLimits()):
            files = [_stored(storage, folder, file) for file in group.files]
            partitions = _stored(storage, folder, group.partitions)
            groups.append(group.model_copy(update={"files": files, "partitions": partitions}))
    result = BucketResult(bucket=bucket, entries=total.entries, checksum=total.checksum, groups=groups)
    storage.write(bucket_marker(plan, bucket), result.model_dump_json().encode())
    return result


def _in_order(path: Path, parts: Iterator[_Part]) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Yield keys and values of all parts in key order, some at a time.

    Held in memory are the keys; values wait in the file `path`: a bucket cannot be cut within a time partition, so it
    may be larger than memory.
    """
    packed, lengths = [], []
    with path.open("wb") as file:
        for some_keys, some_values, some_lengths in parts:
            packed.append(some_keys)
            lengths.append(some_lengths)
            file.write(some_values)
    keys = np.frombuffer(b"".join(packed), ">u8").reshape(-1, KEY_LENGTH // 8)
    ends = np.cumsum(np.frombuffer(b"".join(lengths), np.int32), dtype=np.int64)
    starts = np.concatenate(([0], ends[:-1]))
    order = np.lexsort(keys.astype(np.uint64).T[::-1])
    with path.open("rb") as stored, mmap.mmap(stored.fileno(), 0, access=mmap.ACCESS_READ) as values:
        for first in range(0, len(order), _SLICE):
            some = order[first : first + _SLICE]
            names = keys[some].tobytes()
            yield (
                [names[at : at + KEY_LENGTH] for at in range(0, len(names), KEY_LENGTH)],
                [values[start:end] for start, end in zip(starts[some].tolist(), ends[some].tolist(), strict=True)],
            )


def _stored(storage: Storage, folder: Path, file: TableFile) -> TableFile:
    name = f"groups/{file.name}"
    storage.put(folder / file.name, name)
    (folder / file.name).unlink()
    return file.model_copy(update={"name": name})
