"""Each range of the ledgers is read once; a rebuild keeps in a file what it needs, an audit only what it comes to."""

from __future__ import annotations

import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path

import pyarrow as pa

from bridge.ledgers.bookies.layout import Layout
from spark_jobs.ledgers.access import ClusterAccess
from spark_jobs.ledgers.entry import deliver_at_of, message_count_of
from spark_jobs.ledgers.sources import Portion
from spark_jobs.ledgers.stats import LedgerRange
from spark_jobs.plan import Needed, RangeResult, ReadSpec, RebuildSpec, marker_name, scope_of, spread_of
from spark_jobs.stages.garbage import no_collections
from spark_jobs.stages.side_by_side import read_ranges
from spark_jobs.storage import Storage
from tracker.audit import Cell, Scope, add_up, cell_fingerprints
from tracker.bulk.files import TableFile, write_positions
from tracker.entries import encode_value
from tracker.fingerprint import Fingerprint, fingerprint_of_hashes, hashes_of
from tracker.keys import KEY, KEY_LENGTH, clamp_timestamp
from tracker.partitions.positions import PlacedEntry

ROWS = pa.schema([("key", pa.binary()), ("value", pa.binary())])
"""What is kept of an entry: its key in the index and the value stored there."""


@dataclass
class _Kept:
    """One range on its way into a file."""

    wanted: LedgerRange
    spec: ReadSpec
    scope: Scope
    path: Path
    read: int = 0
    from_bookies: int = 0
    instead: str | None = None
    size: int = 0
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    placed: list[PlacedEntry] = field(default_factory=list)
    spread: Counter[int] = field(default_factory=Counter)
    cells: dict[Cell, Fingerprint] = field(default_factory=dict)
    writer: pa.ipc.RecordBatchStreamWriter | None = None

    def add(self, portion: Portion, needed: Needed) -> None:
        entries = portion.entries
        self.read += len(entries)
        self.from_bookies += len(entries) * portion.from_bookies
        self.instead = self.instead or portion.instead
        # Lists, not a loop: this is done for every entry of a topic, and is what reading takes.
        delayed = [(clamp_timestamp(due), one) for one in entries if (due := deliver_at_of(one)) is not None]
        keys = [KEY.pack(due, one.ledger, one.entry) for due, one in delayed]
        hashes = hashes_of(keys)
        add_up(self.cells, cell_fingerprints(keys, self.scope, hashes))
        if not isinstance(self.spec, RebuildSpec):
            return
        if needed.acks:
            chosen = [(one.ledger, one.entry) in needed for _, one in delayed]
            delayed, keys = list(compress(delayed, chosen)), list(compress(keys, chosen))
            hashes = list(compress(hashes, chosen))
        values = [encode_value(message_count_of(one), one.raw) for _, one in delayed]
        sizes = [KEY_LENGTH + len(value) for value in values]
        self.placed += [
            PlacedEntry(one.ledger, one.entry, due, size) for (due, one), size in zip(delayed, sizes, strict=True)
        ]
        spread, width_ms = self.spread, self.spec.partition_width_ms
        for (due, _), size in zip(delayed, sizes, strict=True):
            spread[due // width_ms] += size
        self.size += sum(sizes)
        if keys:
            self.fingerprint = self.fingerprint.plus(fingerprint_of_hashes(hashes))
            self._write(keys, values)

    def _write(self, keys: list[bytes], values: list[bytes]) -> None:
        if self.writer is None:
            self.writer = pa.ipc.new_stream(str(self.path), ROWS, options=pa.ipc.IpcWriteOptions(compression="lz4"))
        self.writer.write_batch(pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], schema=ROWS))


def read_group(
    spec: ReadSpec, access: ClusterAccess, ranges: list[LedgerRange], layouts: Mapping[int, Layout], needed: Needed
) -> Iterator[RangeResult]:
    """Read the ranges of one task; yield each once its files and its marker are stored."""
    storage = Storage(spec.output)
    scope = scope_of(spec)
    with tempfile.TemporaryDirectory(prefix="delay-bridge-") as temporary, no_collections():
        folder = Path(temporary)
        held = [_Kept(wanted, spec, scope, folder / f"{place}.rows") for place, wanted in enumerate(ranges)]
        for place, portion in read_ranges(access, spec.topic, ranges, layouts):
            if portion is not None:
                held[place].add(portion, needed)
            else:
                yield _store(storage, folder, held[place])


def _store(storage: Storage, folder: Path, kept: _Kept) -> RangeResult:
    wanted = kept.wanted
    # A task that is tried again, or twice at a time, writes files of its own; the marker says which of them count.
    name = f"ranges/{wanted.ledger}-{wanted.first}-{uuid.uuid4().hex}"
    rows: str | None = None
    if kept.writer is not None:
        kept.writer.close()
        rows = f"{name}.arrows"
        storage.put(kept.path, rows)
        kept.path.unlink()
    positions: TableFile | None = write_positions(folder, uuid.uuid4().hex, kept.placed)
    if positions is not None:
        local = folder / positions.name
        positions = positions.model_copy(update={"name": f"{name}.positions.sst"})
        storage.put(local, positions.name)
        local.unlink()
    result = RangeResult(
        ledger=wanted.ledger,
        first=wanted.first,
        last=wanted.last,
        read=kept.read,
        from_bookies=kept.from_bookies,
        instead=kept.instead,
        kept=kept.fingerprint.entries,
        bytes=kept.size,
        checksum=kept.fingerprint.checksum,
        rows=rows,
        positions=positions,
        spread=spread_of(kept.spread),
        cells=[(*cell, *known) for cell, known in kept.cells.items()],
    )
    storage.write(marker_name(wanted), result.model_dump_json().encode())
    kept.placed.clear()
    return result
