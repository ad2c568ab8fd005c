"""The rebuild job: from the ledgers of a topic partition to files its index takes in.

    python -m spark_jobs.rebuild SPEC.json [--master local[*]] [--conf key=value …]

Told on standard output, a JSON object a line: `{"stage": "reading", "done": …, "total": …, "indexed": …}`, `writing`
the same; at the end `{"manifest": …, "entries": …, "checksum": …}` or `{"error": …}` with exit status 1. Whatever is
stored counts when its marker is there, so the same job run again goes on where the last one ended. The manifest comes
last: without it there is no result.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from spark_jobs import limits
from spark_jobs.admin import topic_state
from spark_jobs.build_stage import BucketResult, bucket_marker, build
from spark_jobs.errors import LedgerReadError
from spark_jobs.ledgers import LedgerRange, TopicState, grouped, ranges_of
from spark_jobs.plan import (
    SPEC_NAME,
    TOKEN_VARIABLE,
    Needed,
    RangeResult,
    RebuildSpec,
    boundaries_of,
    marker_name,
    plan_name,
    upto_of,
)
from spark_jobs.read_stage import read_group
from spark_jobs.session import open_session
from spark_jobs.storage import Storage
from tracker import Position
from tracker.bulk_files import MANIFEST_NAME, Manifest, new_manifest
from tracker.fingerprint import Fingerprint


class Rebuild:
    """One job. Raises LedgerReadError and what Spark raises."""

    def __init__(self, spec: RebuildSpec, token: str | None) -> None:
        """`token`: presented to the broker unless the spec names a file."""
        self.spec = spec
        self.access = spec.access(token)
        self.storage = Storage(spec.output)

    def run(self, spark: Any) -> Manifest:
        """Do what is missing and return the manifest."""
        done = self.finished()
        if done is not None:
            return done
        self._begin()
        state = topic_state(self.access, self.spec.topic)
        ranges = ranges_of(state, Position(*self.spec.after), upto_of(self.spec), self.spec.split_entries)
        results = self._read(spark, ranges, self._needed(state))
        written = self._write(spark, results)
        manifest = self._manifest(results, written)
        self.storage.write(MANIFEST_NAME, manifest.model_dump_json().encode())
        return manifest

    def finished(self) -> Manifest | None:
        """Return the manifest if all is done. Raises LedgerReadError when the folder is that of another rebuild."""
        known = self.storage.read(SPEC_NAME)
        if known is not None and RebuildSpec.model_validate_json(known) != self.spec:
            raise LedgerReadError(f"{self.spec.output} belongs to another rebuild: each needs a folder of its own")
        manifest = self.storage.read(MANIFEST_NAME)
        return None if manifest is None else Manifest.model_validate_json(manifest)

    def read_results(self) -> dict[LedgerRange, RangeResult]:
        """Return the ranges that are read."""
        return {
            result.range: result
            for name in self.storage.names("ranges", ".json")
            if (text := self.storage.read(name)) is not None
            for result in [RangeResult.model_validate_json(text)]
        }

    def _begin(self) -> None:
        self.storage.write(SPEC_NAME, self.spec.model_dump_json().encode())

    def _needed(self, state: TopicState) -> Needed:
        missing = [name for name in self.spec.subscriptions if name not in state.cursors]
        if missing:
            raise LedgerReadError(f"{self.spec.topic} has no subscription {missing[0]!r}")
        return Needed(tuple(state.cursors[name] for name in self.spec.subscriptions))

    def _read(self, spark: Any, ranges: list[LedgerRange], needed: Needed) -> list[RangeResult]:
        known = self.read_results()
        missing = [one for one in ranges if one not in known]
        groups = grouped(missing, self.spec.ranges_per_task)
        spec, access, total = self.spec, self.access, sum(one.entries for one in ranges)
        with self._telling("reading", total, lambda: list(self._counted(ranges))):
            if groups:
                tasks = spark.sparkContext.parallelize(groups, len(groups))
                for result in tasks.flatMap(lambda group: read_group(spec, access, group, needed)).collect():
                    known[result.range] = result
        return [known[one] for one in ranges]

    def _counted(self, ranges: list[LedgerRange]) -> Iterator[tuple[int, int]]:
        names = {marker_name(one): one.entries for one in ranges}
        for name in self.storage.names("ranges", ".json"):
            if name in names:
                yield names[name], 0

    def _write(self, spark: Any, results: list[RangeResult]) -> list[BucketResult]:
        spec = self.spec
        boundaries = boundaries_of([point for one in results for point in one.spread], spec.bucket_bytes)
        plan = plan_name(spec, boundaries, results)
        total = reduce(Fingerprint.plus, (one.fingerprint for one in results), Fingerprint())

        def written() -> list[BucketResult]:
            texts = [self.storage.read(bucket_marker(plan, bucket)) for bucket in range(len(boundaries) + 1)]
            return [BucketResult.model_validate_json(text) for text in texts if text is not None]

        with self._telling("writing", total.entries, lambda: [(one.entries, one.entries) for one in written()]):
            missing = set(range(len(boundaries) + 1)) - {one.bucket for one in written()}
            build(spark, spec, plan, boundaries, results, missing)
        done = written()
        found = reduce(Fingerprint.plus, (one.fingerprint for one in done), Fingerprint())
        if found != total:
            raise LedgerReadError(f"{found.entries} entries were written of {total.entries} that were read: a defect")
        return done

    def _manifest(self, results: list[RangeResult], written: list[BucketResult]) -> Manifest:
        spec = self.spec
        return new_manifest(
            spec.topic,
            spec.partition_width_ms,
            Position(*spec.after),
            upto_of(spec),
            [one.positions for one in results if one.positions is not None],
            [group for one in written for group in one.groups],
        )

    @contextmanager
    def _telling(self, stage: str, total: int, parts: Any) -> Iterator[None]:
        """Tell how far a stage is, now and then, from the markers that are stored."""
        ended = threading.Event()

        def tell_once() -> None:
            found = parts()
            done, indexed = sum(part[0] for part in found), sum(part[1] for part in found)
            tell(stage=stage, done=done, total=total, indexed=indexed)

        def run() -> None:
            while not ended.wait(limits.PROGRESS_S):
                tell_once()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        tell_once()


def tell(**what: object) -> None:
    """Say something to whoever started the job."""
    print(json.dumps(what), flush=True)


def reason_of(error: BaseException) -> str:
    """Return what went wrong, without what Spark wraps around the error of a task."""
    found = re.search(r"(?:LedgerReadError|StorageError|NotYet): ([^\n]+)", str(error))
    if found:
        return found[1]
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0] if first else 'no reason given'}"


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1024):  # not through the buffer: the interpreter waits for its lock at the end
        pass
    os._exit(1)


def main(arguments: list[str] | None = None) -> int:
    """Run a job from the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m spark_jobs.rebuild", description=__doc__)
    parser.add_argument("spec", type=Path, help="file with what is to be done, see RebuildSpec")
    parser.add_argument("--master", default="local[*]", help="Spark master; default: local[*]")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="Spark setting")
    parser.add_argument("--with-parent", action="store_true", help="end when standard input does")
    given = parser.parse_args(arguments)
    if given.with_parent:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        spec = RebuildSpec.model_validate_json(given.spec.read_text())
        settings = dict(each.split("=", 1) for each in given.conf)
        spark = open_session(f"rebuild {spec.topic}", given.master, settings)
        try:
            manifest = Rebuild(spec, os.environ.get(TOKEN_VARIABLE) or None).run(spark)
        finally:
            spark.stop()
    except (OSError, ValueError, ValidationError) as error:
        tell(error=f"{given.spec}: {error}")
        return 1
    except Exception as error:
        traceback.print_exc()
        tell(error=reason_of(error))
        return 1
    tell(manifest=f"{spec.output}/{MANIFEST_NAME}", entries=manifest.entries)
    return 0


if __name__ == "__main__":
    sys.exit(main())
