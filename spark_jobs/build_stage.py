"""Second stage of a rebuild: what was kept is sorted by due time and written as files the index takes in."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from spark_jobs.plan import RangeResult, RebuildSpec
from spark_jobs.storage import Storage, StorageError
from tracker.bulk_files import Group, TableFile, write_groups
from tracker.fingerprint import Fingerprint, fingerprint

_LOADED = "bucket int, key binary, value binary"
_LOADED_ARROW = pa.schema([("bucket", pa.int32()), ("key", pa.binary()), ("value", pa.binary())])


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
    spark: Any, spec: RebuildSpec, plan: str, boundaries: list[int], results: list[RangeResult], buckets: set[int]
) -> None:
    """Write the buckets that are missing; each leaves a marker."""
    files = [one.rows for one in results if one.rows is not None]
    if not files or not buckets:
        return
    loaded = spark.range(0, len(files), 1, len(files)).mapInArrow(_loader(spec, files, boundaries, buckets), _LOADED)
    parted = loaded.repartitionById(len(boundaries) + 1, "bucket").sortWithinPartitions("key")
    parted.mapInArrow(_writer(spec, plan), "bucket int").collect()


def _loader(
    spec: RebuildSpec, files: list[str], boundaries: list[int], buckets: set[int]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    everything = len(buckets) == len(boundaries) + 1
    starts, wanted = np.array(boundaries, np.int64), np.array(sorted(buckets), np.int32)

    def load(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = Storage(spec.output)
        for number in chain.from_iterable(batch.column(0).to_pylist() for batch in batches):
            for rows in _rows(storage, files[number]):
                keys = rows.column("key")
                due = np.frombuffer(b"".join(keys.to_pylist()), ">u8")[::3].astype(np.int64)
                bucket = np.searchsorted(starts, due // spec.partition_width_ms, "right").astype(np.int32)
                found = pa.RecordBatch.from_arrays([pa.array(bucket), keys, rows.column("value")], schema=_LOADED_ARROW)
                yield found if everything else found.filter(pa.array(np.isin(bucket, wanted)))

    return load


def _rows(storage: Storage, name: str) -> Iterator[pa.RecordBatch]:
    try:
        with storage.open(name) as source, pa.ipc.open_stream(source) as batches:
            yield from batches
    except (OSError, pa.ArrowInvalid) as error:
        raise StorageError(f"cannot read {name} from {storage.uri}: {error}") from error


def _writer(spec: RebuildSpec, plan: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is not None:
            result = _write_bucket(spec, plan, first.column(0)[0].as_py(), chain([first], filled))
            yield pa.RecordBatch.from_arrays([pa.array([result.bucket], pa.int32())], names=["bucket"])

    return write


def _write_bucket(spec: RebuildSpec, plan: str, bucket: int, batches: Iterator[pa.RecordBatch]) -> BucketResult:
    storage, total = Storage(spec.output), Fingerprint()

    def pairs() -> Iterator[tuple[bytes, bytes]]:
        nonlocal total
        for batch in batches:
            keys = batch.column(1).to_pylist()
            total = total.plus(fingerprint(keys))
            yield from zip(keys, batch.column(2).to_pylist(), strict=True)

    groups: list[Group] = []
    with tempfile.TemporaryDirectory(prefix="delay-bridge-") as temporary:
        folder = Path(temporary)
        for group in write_groups(folder, uuid.uuid4().hex, pairs(), spec.partition_width_ms):
            files = [_stored(storage, folder, file) for file in group.files]
            partitions = _stored(storage, folder, group.partitions)
            groups.append(group.model_copy(update={"files": files, "partitions": partitions}))
    result = BucketResult(bucket=bucket, entries=total.entries, checksum=total.checksum, groups=groups)
    storage.write(bucket_marker(plan, bucket), result.model_dump_json().encode())
    return result


def _stored(storage: Storage, folder: Path, file: TableFile) -> TableFile:
    name = f"groups/{file.name}"
    storage.put(folder / file.name, name)
    (folder / file.name).unlink()
    return file.model_copy(update={"name": name})
