"""Large gaps: a Spark job reads the ledgers in parallel and writes files, which are taken in beside live delivery.

One folder a topic partition holds the job's files. Whatever is in it is gone on with after a restart: a job that did
not end, or a load that did not.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from bridge.broker.admin import AdminClient
from bridge.embedded.java import find_java
from bridge.rebuild_status import RebuildStatus
from spark_jobs.plan import SPEC_NAME, TOKEN_VARIABLE, RebuildSpec
from tracker import Position, TopicIndex
from tracker.bulk_files import MANIFEST_NAME, BulkError
from tracker.bulk_load import BulkLoad

log = structlog.get_logger(__name__)


class RebuildError(Exception):
    """A job failed; the index is as it was. The message says why."""


@dataclass(frozen=True)
class SparkSettings:
    """How jobs are run: from how many entries on (0: never), where, and with which cluster."""

    from_entries: int
    folder: Path
    master: str
    conf: tuple[str, ...]
    service_url: str
    web_url: str
    token: str | None


class SparkRebuild:
    """Rebuilds of one topic partition; one at a time, the caller sees to that."""

    def __init__(self, topic: str, index: TopicIndex, admin: AdminClient, settings: SparkSettings) -> None:
        """Nothing runs before `fill`."""
        self._topic = topic
        self._index = index
        self._admin = admin
        self._settings = settings
        self._folder = settings.folder / hashlib.sha256(topic.encode()).hexdigest()[:32]

    async def entries_in(self, after: Position, to: Position) -> int:
        """Return how many entries of the topic lie in (after, to]. Raises AdminError."""
        state = await self._admin.internal_stats(self._topic)
        entries = 0
        for ledger, size in state.ledger_sizes.items():
            if after.ledger <= ledger <= to.ledger:
                first = after.entry + 1 if ledger == after.ledger else 0
                end = to.entry + 1 if ledger == to.ledger else size
                entries += max(end - first, 0)
        return entries

    def is_large(self, entries: int) -> bool:
        """Tell whether so many are for a job rather than for this process."""
        return 0 < self._settings.from_entries <= entries

    async def fill(self, status: RebuildStatus, on_loaded: Callable[[], None]) -> tuple[Position, Position]:
        """Bring what is missing in the status's range into the index; return the range that was brought in.

        That may be another than asked for: a job that was under way for it is brought to its end first. Raises
        RebuildError or StoreError; what was loaded stays.
        """
        try:
            spec = await self._spec(status.after, status.to)
            if not await asyncio.to_thread((self._folder / MANIFEST_NAME).exists):
                await self._run_job(spec, status)
            await self._load(status, on_loaded)
            await asyncio.to_thread(shutil.rmtree, self._folder)
            return Position(*spec.after), Position(*spec.upto)
        except BulkError as error:
            self._index.bulk.abandon_unfinished()
            await asyncio.to_thread(shutil.rmtree, self._folder, True)
            raise RebuildError(str(error)) from error

    async def _spec(self, after: Position, to: Position) -> RebuildSpec:
        """Go on with the job in the folder if it does what is wanted; else make room for a new one."""
        settings = self._settings
        wanted = RebuildSpec(
            topic=self._topic,
            service_url=settings.service_url,
            web_url=settings.web_url,
            after=after,
            upto=to,
            partition_width_ms=self._index.partition_width_ms,
            # Everything: a subscription that is set back later finds what it has acked by now in the index.
            subscriptions=[],
            output=str(self._folder),
        )
        known, finished = await asyncio.to_thread(self._found)
        if known is not None and (finished or _does(known, wanted)):
            log.info("going on with a rebuild", topic=self._topic, after=str(known.after), to=str(known.upto))
            return known
        # A load whose files are gone cannot be brought to its end.
        self._index.bulk.abandon_unfinished()
        await asyncio.to_thread(self._begin, wanted)
        return wanted

    def _found(self) -> tuple[RebuildSpec | None, bool]:
        """Return what an earlier job was to do, and whether it did."""
        try:
            known = RebuildSpec.model_validate_json((self._folder / SPEC_NAME).read_text())
        except (OSError, ValueError):
            return None, False
        return known, (self._folder / MANIFEST_NAME).exists()

    def _begin(self, spec: RebuildSpec) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        (self._folder / SPEC_NAME).write_text(spec.model_dump_json())

    async def _run_job(self, spec: RebuildSpec, status: RebuildStatus) -> None:
        status.stage = "starting"
        settings, started = self._settings, time.monotonic()
        command = [sys.executable, "-m", "spark_jobs.rebuild", str(self._folder / SPEC_NAME), "--with-parent"]
        command += ["--master", settings.master]
        for each in settings.conf:
            command += ["--conf", each]
        java = await asyncio.to_thread(find_java)
        environment = java.environment(os.environ) | {"PYSPARK_PYTHON": sys.executable}
        if settings.token is not None:
            environment[TOKEN_VARIABLE] = settings.token
        log.info("rebuild started", topic=self._topic, after=str(spec.after), to=str(spec.upto), master=settings.master)
        with (self._folder / "job.log").open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors, env=environment
            )
        try:
            outcome = await self._follow(process, status)
            code = await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if code or "manifest" not in outcome:
            log_file = self._folder / "job.log"
            reason = outcome.get("error") or f"the job ended with status {code}"
            if refused := await asyncio.to_thread(_refused_by_spark, log_file):
                reason = refused
            raise RebuildError(f"{reason} (all of it: {log_file})")
        log.info("rebuild written", topic=self._topic, seconds=round(time.monotonic() - started, 1), **outcome)

    async def _follow(self, process: asyncio.subprocess.Process, status: RebuildStatus) -> dict[str, Any]:
        """Take in what the job tells; return the last of it."""
        assert process.stdout is not None
        told: dict[str, Any] = {}
        while line := await process.stdout.readline():
            try:
                told = json.loads(line)
            except ValueError:
                continue  # something else writes to the same place
            if told.get("stage") == "reading":
                status.stage, status.entries_read, status.entries_total = "reading", told["done"], told["total"]
            elif told.get("stage") == "writing":
                status.stage = "writing"
        return told

    async def _load(self, status: RebuildStatus, on_loaded: Callable[[], None]) -> None:
        """Take the files in, nearest due first, with rests in between."""
        loading = await asyncio.to_thread(BulkLoad, self._index, self._folder, os.sched_yield)
        manifest = loading.manifest
        status.stage = "loading"
        await asyncio.to_thread(loading.verify_positions)
        loading.load_positions()
        for number, group in loading.groups():
            await asyncio.to_thread(loading.verify, group)
            rest_s = 0.0
            for seconds in loading.load_in_steps(number, group, time.perf_counter):
                rest_s = seconds
                await asyncio.sleep(0)
            status.entries_indexed += group.entries
            on_loaded()
            await asyncio.sleep(rest_s)
        loading.finish()
        log.info("rebuild loaded", topic=self._topic, entries=manifest.entries)


def _refused_by_spark(log_file: Path) -> str | None:
    """Return why Spark did not even start: Python does not get to know."""
    found = re.findall(r'^Exception in thread "main" [\w.]+: (.+)$', log_file.read_text(errors="replace"), re.MULTILINE)
    return str(found[-1]) if found else None


def _does(known: RebuildSpec, wanted: RebuildSpec) -> bool:
    """Tell whether one job's files hold all that another's would."""
    return (
        (known.topic, known.partition_width_ms) == (wanted.topic, wanted.partition_width_ms)
        and known.after <= wanted.after
        and known.upto >= wanted.upto
        and known.subscriptions == wanted.subscriptions
    )
