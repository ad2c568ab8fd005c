"""The report job: what is due when, by topic, key prefix and size, as Parquet.

    python -m spark_jobs.report --service-url … --web-url … --output FOLDER [options] TOPIC [TOPIC …]

Every delayed entry that is stored counts, those that were due in the past included; with `--subscription`, those that
the subscription had not acked when the job began. Told on standard output at the end, a JSON object a line:
`{"output": …, "rows": …, "entries": …}`, or `{"error": …}` with exit status 1. The folder's file `_SUCCESS` comes last:
without it there is no report. See COLUMNS for what is in it.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from bridge.notation.numbers import whole_number
from bridge.notation.quantities import parse_duration_ms
from bridge.notation.times import parse_time_ms
from bridge.protocol.names import TopicName
from spark_jobs import limits
from spark_jobs.command import reason_of, tell
from spark_jobs.errors import LedgerReadError
from spark_jobs.ledgers.access import access_from
from spark_jobs.ledgers.admin import topic_state
from spark_jobs.ledgers.stats import TopicState, ranges_of
from spark_jobs.plan import TOKEN_VARIABLE, Needed
from spark_jobs.session import open_session
from spark_jobs.stages.source import PulsarLedgers
from spark_jobs.storage import StorageError
from tracker import EARLIEST

HOUR_MS = 3_600_000
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
CHARACTERS_MAX = 999_999
_WRITTEN = re.compile(r"part-.*\.parquet|_SUCCESS|_temporary|\..*\.crc")
Value = TypeVar("Value")


@dataclass(frozen=True)
class ReportSpec:
    """What to count and where the result goes.

    `source`: the options of the data source that say where to read and who asks. `prefix_length` (characters) and
    `delimiter` exclude each other; without both, keys are not told apart. Due in [from_ms, to_ms), epoch ms.
    """

    topics: tuple[str, ...]
    source: Mapping[str, str] = field(repr=False)
    output: str
    step_ms: int = HOUR_MS
    prefix_length: int | None = None
    delimiter: str | None = None
    subscription: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    overwrite: bool = False


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


def _argument(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Return a type of argument whose errors say what `parse` says; argparse has words of its own for a ValueError."""

    def parsed(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


@_argument
def _topic(text: str) -> str:
    name = TopicName.parse(text)
    if not name.persistent:
        raise ValueError(f"not a topic that is stored: {text!r}")
    return str(name)


@_argument
def _step_ms(text: str) -> int:
    return parse_duration_ms(text, least_ms=1)


@_argument
def _characters(text: str) -> int:
    return whole_number(text, 1, CHARACTERS_MAX)


@_argument
def _delimiter(text: str) -> str:
    if not text:
        raise ValueError("an empty one delimits nothing")
    return text


@_argument
def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ValueError(f"not a setting: {text!r} (expected key=value)")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spark_jobs.report",
        description="What is due when, by topic, key prefix and size, as Parquet.",
        epilog=f"The token comes from {TOKEN_VARIABLE} or from --token-file.",
    )
    add = parser.add_argument
    add(
        "topics",
        nargs="+",
        type=_topic,
        metavar="TOPIC",
        help="short names are completed; or one partition of many",
    )
    add("--service-url", required=True, metavar="URL", help="pulsar://… or pulsar+ssl://…")
    add("--web-url", required=True, metavar="URL", help="http://… or https://…")
    add("--output", required=True, metavar="FOLDER", help="a path or URI of Spark's file systems")
    add("--overwrite", action="store_true", help="replace a report that is there")
    add("--step", type=_step_ms, default=HOUR_MS, metavar="DURATION", help="width of a row; default: 1h")
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument("--key-prefix-length", type=_characters, metavar="N", help="by the first N characters of keys")
    keys.add_argument("--key-delimiter", type=_delimiter, metavar="C", help="by what comes before the first C in keys")
    add("--subscription", metavar="NAME", help="leave out what it has acked")
    add("--from", dest="from_ms", type=_argument(parse_time_ms), metavar="TIME", help="due then or later")
    add("--to", dest="to_ms", type=_argument(parse_time_ms), metavar="TIME", help="due before then")
    add("--token-file", metavar="FILE", help="read by each task anew")
    add("--tls-trust-certs", metavar="FILE", help="certificates to trust; default: the system's")
    add("--tls-verify-hostname", action=argparse.BooleanOptionalAction, default=True, help="default: yes")
    add("--master", default="local[*]", help="Spark master; default: local[*]")
    add("--conf", type=_setting, action="append", default=[], metavar="KEY=VALUE", help="Spark setting")
    return parser


def _spec(given: argparse.Namespace) -> ReportSpec:
    source = {
        "serviceUrl": given.service_url,
        "webUrl": given.web_url,
        "authToken": "" if given.token_file else os.environ.get(TOKEN_VARIABLE, ""),
        "authTokenFile": given.token_file or "",
        "tlsTrustCerts": given.tls_trust_certs or "",
        "tlsVerifyHostname": str(given.tls_verify_hostname).lower(),
    }
    return ReportSpec(
        topics=tuple(dict.fromkeys(given.topics)),  # named twice, counted once
        source={name: value for name, value in source.items() if value},
        output=given.output,
        step_ms=given.step,
        prefix_length=given.key_prefix_length,
        delimiter=given.key_delimiter,
        subscription=given.subscription,
        from_ms=given.from_ms,
        to_ms=given.to_ms,
        overwrite=given.overwrite,
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the job from the command line; returns the exit status."""
    given = _parser().parse_args(arguments)
    spec = _spec(given)
    try:
        access_from(spec.source)
        spark = open_session("report of what is delayed", given.master, dict(given.conf))
        try:
            totals = write_report(spark, spec)
        finally:
            spark.stop()
    except LedgerReadError as error:
        tell(error=str(error))
        return 1
    except Exception as error:
        traceback.print_exc()
        tell(error=reason_of(error))
        return 1
    tell(output=spec.output, rows=totals.rows, entries=totals.entries)
    return 0


if __name__ == "__main__":
    sys.exit(main())
