"""The data source `pulsar_ledgers`: the entries of a topic partition as rows, read in parallel.

    spark.dataSource.register(PulsarLedgers)
    spark.read.format("pulsar_ledgers").option("topic", …).option("serviceUrl", …).option("webUrl", …).load()

Options: `topic`, `serviceUrl`, `webUrl`; `readFrom` (`auto`, `bookies`, `broker`); `after` and `upto` (positions, the
first not included; default: everything); `splitEntries` (entries of a range), `rangesPerTask` (read side by side by one
task); `columns` (comma-separated, in the order wanted), `delayedOnly` (`true`: only entries with a due time);
`authToken` or `authTokenFile`, `tlsTrustCerts`, `tlsVerifyHostname`. Times are epoch milliseconds, for a due time may
lie beyond what a timestamp holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bridge.ledgers.bookies.layout import Layout
from bridge.notation.numbers import whole_number
from bridge.protocol.frames import as_text
from bridge.protocol.names import TopicName
from spark_jobs import limits
from spark_jobs.errors import LedgerReadError
from spark_jobs.ledgers.access import ClusterAccess, access_from
from spark_jobs.ledgers.entry import LedgerEntry, deliver_at_of, message_count_of
from spark_jobs.ledgers.sources import state_to_read
from spark_jobs.ledgers.stats import LedgerRange, grouped, ranges_of
from spark_jobs.stages.side_by_side import read_ranges
from tracker import EARLIEST, Position

_COUNT_MAX = 10**12
_PROPERTIES = pa.map_(pa.string(), pa.string())

COLUMNS: dict[str, tuple[str, pa.DataType, Callable[[LedgerEntry], Any]]] = {
    "ledger": ("bigint", pa.int64(), lambda one: one.ledger),
    "entry": ("bigint", pa.int64(), lambda one: one.entry),
    "publish_time": ("bigint", pa.int64(), lambda one: one.metadata.publish_time if one.metadata else None),
    "deliver_at": ("bigint", pa.int64(), deliver_at_of),
    "message_count": ("int", pa.int32(), lambda one: message_count_of(one)),
    "key": ("string", pa.string(), lambda one: key_of(one)),
    "properties": ("map<string,string>", _PROPERTIES, lambda one: properties_of(one)),
    "size": ("bigint", pa.int64(), lambda one: len(one.raw)),
    "raw": ("binary", pa.binary(), lambda one: one.raw),
}
"""Spark's type, Arrow's type and the value of each column. `raw`: headers, metadata and payload as stored."""


def key_of(entry: LedgerEntry) -> str | None:
    """Return the key of a message; None for one without, and for batches, which have one a message."""
    metadata = entry.metadata
    return as_text(metadata.partition_key) if metadata is not None and metadata.HasField("partition_key") else None


def properties_of(entry: LedgerEntry) -> list[tuple[str, str]]:
    """Return the properties of a message; none for batches, which have them message by message."""
    if entry.metadata is None:
        return []
    # A map has each key once; the last one counts, as in Pulsar's clients.
    return list({as_text(one.key): as_text(one.value) for one in entry.metadata.properties}.items())


class PulsarLedgers(DataSource):
    """Register it with `spark.dataSource.register`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.read.format`."""
        return "pulsar_ledgers"

    def schema(self) -> str:
        """Return the columns asked for."""
        return ", ".join(f"{name} {COLUMNS[name][0]}" for name in _columns(self.options))

    def reader(self, schema: StructType) -> LedgerDataReader:
        """Return what plans and reads."""
        return LedgerDataReader(self.options)


class LedgerDataReader(DataSourceReader):
    """Plans on the driver, reads in the tasks. Raises LedgerReadError for options that are wrong."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._access = access_from(options)
        self._columns = _columns(options)
        self._delayed_only = options.get("delayedOnly", "false").lower() == "true"
        self._after = _position(options, "after", EARLIEST)
        self._upto = _position(options, "upto", Position(2**63 - 1, -1))
        self._split_entries = _count(options, "splitEntries", limits.SPLIT_ENTRIES)
        self._ranges_per_task = _count(options, "rangesPerTask", limits.RANGES_PER_TASK)
        try:
            self._topic = str(TopicName.parse(options.get("topic", "")))
        except ValueError as error:
            raise LedgerReadError(f"option topic: {error}") from error

    def partitions(self) -> list[InputPartition]:
        """Ask the broker for the ledgers, once, and cut them into ranges."""
        state = state_to_read(self._access, self._topic)
        ranges = ranges_of(state, self._after, self._upto, self._split_entries)
        return [
            InputPartition((group, {one.ledger: state.layouts[one.ledger] for one in group}))
            for group in grouped(ranges, self._ranges_per_task)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the ranges of one task."""
        # A topic without entries has one partition, of nothing.
        group, layouts = partition.value or ([], {})
        yield from batches(self._access, self._topic, group, layouts, self._columns, self._delayed_only)


def batches(
    access: ClusterAccess,
    topic: str,
    ranges: list[LedgerRange],
    layouts: Mapping[int, Layout],
    columns: list[str],
    delayed_only: bool,
) -> Iterator[pa.RecordBatch]:
    """Yield Arrow batches, each of entries of one range, in order within it."""
    held: list[list[LedgerEntry]] = [[] for _ in ranges]
    sizes = [0] * len(ranges)
    for place, portion in read_ranges(access, topic, ranges, layouts):
        entries = [] if portion is None else portion.entries
        kept = [one for one in entries if deliver_at_of(one) is not None] if delayed_only else entries
        held[place] += kept
        sizes[place] += sum([len(one.raw) for one in kept])
        if held[place] and (
            portion is None or len(held[place]) >= limits.BATCH_ENTRIES or sizes[place] >= limits.BATCH_BYTES
        ):
            yield _batch(held[place], columns)
            held[place], sizes[place] = [], 0


def _batch(entries: list[LedgerEntry], columns: list[str]) -> pa.RecordBatch:
    arrays = []
    for name in columns:
        _, kind, value = COLUMNS[name]
        arrays.append(pa.array([value(one) for one in entries], kind))
    return pa.RecordBatch.from_arrays(arrays, names=columns)


def _columns(options: Mapping[str, str]) -> list[str]:
    names = [name.strip() for name in options.get("columns", ",".join(COLUMNS)).split(",")]
    for name in names:
        if name not in COLUMNS:
            raise LedgerReadError(f"option columns: no column {name!r}, there are {', '.join(COLUMNS)}")
    return names


def _position(options: Mapping[str, str], name: str, default: Position) -> Position:
    try:
        return Position.parse(options[name]) if options.get(name) else default
    except ValueError as error:
        raise LedgerReadError(f"option {name}: {error}") from error


def _count(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name) or str(default)
    try:
        return whole_number(text, 1, _COUNT_MAX)
    except ValueError as error:
        raise LedgerReadError(f"option {name}: {error}") from None
