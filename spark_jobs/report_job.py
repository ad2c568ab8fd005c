"""Counting what is delayed with Spark, and writing the report."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from spark_jobs import limits
from spark_jobs.command import reason_of
from spark_jobs.errors import LedgerReadError
from spark_jobs.ledgers.access import access_from
from spark_jobs.ledgers.admin import topic_state
from spark_jobs.ledgers.stats import TopicState, ranges_of
from spark_jobs.plan import Needed
from spark_jobs.report_spec import ReportSpec
from spark_jobs.stages.source import PulsarLedgers
from spark_jobs.storage import StorageError
from tracker import EARLIEST

SIZE_BOUNDS = [256 * 4**power for power in range(13)]
"""Size classes in bytes: an entry is in the first that is not below its size. The last is beyond what a frame holds."""
LAST_TIME_MS = 253_402_300_799_999
"""The end of the year 9999: what reads Parquet often has no later timestamp."""

READ = "deliver_at bigint, message_count int, size bigint, key string"
"""What is read of an entry, its topic aside."""
COLUMNS = [
    "topic",
    "due_from",
    "due_from_time",
    "key_prefix",
    "size_up_to",
    "entries",
    "messages",
    "bytes",
]
"""`due_from`: start of the step the entries are due in, epoch ms, and as a timestamp, null after the year 9999;
`key_prefix`: null without a key, for batches, and when keys are not told apart; `size_up_to`: one of SIZE_BOUNDS;
`bytes`: headers, metadata and payload as stored."""
_WRITTEN = re.compile(r"part-.*\.parquet|_SUCCESS|_temporary|\..*\.crc")


class Totals(NamedTuple):
    """What a report comes to."""

    rows: int
    entries: int


def write_report(spark: Any, spec: ReportSpec) -> Totals:
    """Read, count and write, in a session whose timestamps in Parquet are microseconds from then on.

    Raises LedgerReadError, StorageError when the output cannot be used, and what Spark raises.
    """
    check_output(spark, spec.output, spec.overwrite)
    # The older default is nanoseconds to many readers, which end in the year 2262.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    spark.dataSource.register(PulsarLedgers)
    nothing = spark.createDataFrame([], f"topic string, {READ}")
    entries = reduce(lambda one, other: one.unionByName(other), _entries(spark, spec), nothing)
    rows = counted(entries, spec).orderBy("topic", "due_from", "key_prefix", "size_up_to")
    try:
        rows.write.mode("overwrite" if spec.overwrite else "error").parquet(spec.output)
        totals = spark.read.parquet(spec.output).agg(F.count("*"), F.sum("entries")).first()
    except (Py4JJavaError, PySparkException) as error:
        if re.search("(LedgerReadError|NotYet): ", str(error)):
            raise LedgerReadError(reason_of(error)) from error  # what a task met, without what is around it
        if isinstance(error, PySparkException):
            raise
        raise StorageError(f"cannot write {spec.output}: {_first_cause(error)}") from error
    return Totals(totals[0], totals[1] or 0)


def check_output(spark: Any, output: str, overwrite: bool) -> None:
    """Raise StorageError when there is something that must not be replaced: any file that no report has, to be sure."""
    try:
        path = spark._jvm.org.apache.hadoop.fs.Path(output)
        files = path.getFileSystem(spark._jsc.hadoopConfiguration())
        if not files.exists(path):
            return
        names = [one.getPath().getName() for one in files.listStatus(path)]
    except (Py4JError, PySparkException) as error:
        raise StorageError(f"not a place for files: {output!r}: {_first_cause(error)}") from error
    if not overwrite:
        raise StorageError(f"{output} exists: name another folder, or replace the report in it with --overwrite")
    strangers = sorted(name for name in names if not _WRITTEN.fullmatch(name))
    if strangers:
        raise StorageError(f"{output} is not replaced: it holds {strangers[0]!r}, which no report has")


def counted(entries: Any, spec: ReportSpec) -> Any:
    """Group a DataFrame of `topic` and READ; returns one of COLUMNS, in no order."""
    # As in an index: what is due before 1970 is due since 1970.
    due = F.greatest(F.col("deliver_at"), F.lit(0).cast("bigint"))
    if spec.from_ms is not None:
        entries = entries.where(F.col("deliver_at") >= spec.from_ms)
    if spec.to_ms is not None:
        entries = entries.where(F.col("deliver_at") < spec.to_ms)
    placed = entries.select(
        "topic",
        (due - due % F.lit(spec.step_ms).cast("bigint")).alias("due_from"),
        _key_prefix(spec).alias("key_prefix"),
        _size_up_to().alias("size_up_to"),
        "message_count",
        "size",
    )
    groups = placed.groupBy("topic", "due_from", "key_prefix", "size_up_to").agg(
        F.count("*").alias("entries"), F.sum("message_count").alias("messages"), F.sum("size").alias("bytes")
    )
    time = F.when(F.col("due_from") <= LAST_TIME_MS, F.timestamp_millis("due_from"))
    return groups.withColumn("due_from_time", time).select(COLUMNS)


def _key_prefix(spec: ReportSpec) -> Any:
    # A batch may carry the key of its first message, which says nothing of the others.
    key = F.when(F.col("message_count") == 1, F.col("key"))
    if spec.prefix_length is not None:
        return F.substring(key, 1, spec.prefix_length)
    if spec.delimiter is not None:
        return F.substring_index(key, spec.delimiter, 1)
    return F.lit(None).cast("string")


def _size_up_to() -> Any:
    found = F.lit(SIZE_BOUNDS[-1])
    for bound in reversed(SIZE_BOUNDS[:-1]):
        found = F.when(F.col("size") <= bound, F.lit(bound)).otherwise(found)
    return found.cast("bigint")


def _entries(spark: Any, spec: ReportSpec) -> Iterator[Any]:
    """Yield a DataFrame of `topic` and READ for each topic that holds anything."""
    access = access_from(spec.source)
    by_key = spec.prefix_length is not None or spec.delimiter is not None
    columns = ["deliver_at", "message_count", "size"] + ["key"] * by_key
    for topic in spec.topics:
        state = topic_state(access, topic)
        needed = _needed(state, topic, spec.subscription)
        if not ranges_of(state, EARLIEST, state.last_confirmed, limits.SPLIT_ENTRIES):
            continue  # a topic without entries has no ranges, and Spark makes no plan of none
        wanted = columns if needed is None else [*columns, "ledger", "entry"]
        given = {**spec.source, "topic": topic, "delayedOnly": "true", "columns": ",".join(wanted)}
        frame = spark.read.format(PulsarLedgers.name()).options(**given).load()
        if needed is not None:
            # The acks travel with the function, as they do in a rebuild.
            frame = frame.mapInArrow(_not_acked(needed, columns), frame.select(columns).schema)
        if not by_key:
            frame = frame.withColumn("key", F.lit(None).cast("string"))
        yield frame.withColumn("topic", F.lit(topic))


def _needed(state: TopicState, topic: str, subscription: str | None) -> Needed | None:
    if subscription is None:
        return None
    if subscription not in state.cursors:
        raise LedgerReadError(f"{topic} has no subscription {subscription!r}")
    return Needed((state.cursors[subscription],))


def _not_acked(needed: Needed, columns: list[str]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def kept(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            positions = zip(batch.column("ledger").to_pylist(), batch.column("entry").to_pylist(), strict=True)
            yield batch.filter(pa.array([one in needed for one in positions], pa.bool_())).select(columns)

    return kept


def _first_cause(error: Exception) -> str:
    """Return what the innermost of nested Java errors says, in one line."""
    cause = getattr(error, "java_exception", None)
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    text = str(cause.toString() if cause is not None else error).strip()
    return text.splitlines()[0] if text else type(error).__name__
