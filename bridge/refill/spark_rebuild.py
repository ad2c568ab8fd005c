"""Large gaps: a Spark job reads the ledgers in parallel and writes files, which are taken in beside live delivery.

Whatever is in the job's folder is gone on with after a restart: a job that did not end, or a load that did not.
"""

import asyncio
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import structlog

from bridge.limits import RefillLimits
from bridge.refill.comparison import TopicSide
from bridge.refill.rebuild_status import RebuildStatus, Sources
from bridge.refill.spark_job import JobError, SparkJob, SparkSettings
from spark_jobs.plan import FINGERPRINTS_NAME, RebuildSpec, read_fingerprints, scope_of
from tracker import Position, TopicIndex
from tracker.audit import Scope
from tracker.bulk.files import MANIFEST_NAME, BulkError, Manifest
from tracker.bulk.load import BulkLoad

log = structlog.get_logger(__name__)


class Rebuilt(NamedTuple):
    """What a job brought in: positions (after, upto], and what the topic holds of them in the scope."""

    after: Position
    upto: Position
    scope: Scope
    in_topic: TopicSide


class SparkRebuild:
    """Rebuilds of one topic partition; one at a time, the caller sees to that."""

    def __init__(self, topic: str, index: TopicIndex, settings: SparkSettings, limits: RefillLimits) -> None:
        """Nothing runs before `fill`."""
        self._topic = topic
        self._index = index
        self._job = SparkJob("rebuild", topic, settings, limits.job_attempts)

    def is_large(self, entries: int) -> bool:
        """Tell whether so many entries are for a job rather than for this process."""
        return self._job.is_large(entries)

    async def fill(self, status: RebuildStatus, scope: Scope, on_loaded: Callable[[], None]) -> Rebuilt:
        """Bring what is missing in the status's range into the index, and return what was brought in.

        That may be another range than asked for: a job that was under way for it is brought to its end first. Raises
        JobError or StoreError; what was loaded stays.
        """
        job = self._job

        def told(stage: str, done: int, total: int) -> None:
            status.stage = stage
            if stage == "reading":
                status.entries_read, status.entries_total = done, total

        try:
            spec = await self._spec(scope)
            if not await asyncio.to_thread((job.folder / MANIFEST_NAME).exists):
                status.stage = "starting"
                status.sources = Sources.of(await job.run(spec, told))
                status.stage = "fetching"
                await asyncio.to_thread(self._fetch)
            in_topic = await asyncio.to_thread(self._topic_side)
            await self._load(status, on_loaded)
            await asyncio.to_thread(job.remove)
        except (BulkError, OSError, ValueError) as error:
            self._index.bulk.abandon_unfinished()
            await asyncio.to_thread(job.remove)
            raise JobError(str(error)) from error
        return Rebuilt(Position(*spec.after), Position(*spec.upto), scope_of(spec), in_topic)

    async def _spec(self, scope: Scope) -> RebuildSpec:
        """Go on with the job in the folder if it does what is wanted; else make room for a new one."""
        # Whoever has acked what: a subscription that is set back later finds it in the index.
        wanted = self._job.spec(RebuildSpec, scope)
        known, finished = await asyncio.to_thread(self._found)
        if known is not None and (finished or _does(known, wanted)):
            log.info("going on with a rebuild", topic=self._topic, after=str(known.after), to=str(known.upto))
            return known
        # A load whose files are gone cannot be brought to its end.
        self._index.bulk.abandon_unfinished()
        await asyncio.to_thread(self._job.begin, wanted)
        return wanted

    def _found(self) -> tuple[RebuildSpec | None, bool]:
        """Return what an earlier job was to do, and whether it did."""
        text = self._job.known_spec()
        try:
            known = None if text is None else RebuildSpec.model_validate_json(text)
        except ValueError:
            known = None
        return known, known is not None and (self._job.folder / MANIFEST_NAME).exists()

    def _fetch(self) -> None:
        """Have what was written elsewhere in the folder, the manifest last."""
        job = self._job
        if job.settings.output is None:
            return
        data = job.read(MANIFEST_NAME)
        manifest = Manifest.model_validate_json(data)
        every = [*manifest.positions, *(file for group in manifest.groups for file in (*group.files, group.partitions))]
        job.fetch([FINGERPRINTS_NAME, *(file.name for file in every)])
        draft = job.folder / f"{MANIFEST_NAME}.new"
        draft.write_bytes(data)
        draft.rename(job.folder / MANIFEST_NAME)

    def _topic_side(self) -> TopicSide:
        return read_fingerprints((self._job.folder / FINGERPRINTS_NAME).read_bytes())

    async def _load(self, status: RebuildStatus, on_loaded: Callable[[], None]) -> None:
        """Take the files in, nearest due first, with rests in between."""
        loading = await asyncio.to_thread(BulkLoad, self._index.bulk, self._job.folder, os.sched_yield)
        manifest = loading.manifest
        status.stage = "loading"
        await asyncio.to_thread(loading.verify_positions)
        loading.load_positions()
        for number, group in loading.groups():
            await asyncio.to_thread(loading.verify, group)
            for rest_s in loading.load_in_steps(number, group, time.perf_counter):
                await asyncio.sleep(rest_s)
            status.entries_indexed += group.entries
            on_loaded()
        loading.finish()
        log.info("rebuild loaded", topic=self._topic, entries=manifest.entries)


def _does(known: RebuildSpec, wanted: RebuildSpec) -> bool:
    """Tell whether one job's files hold all that another's would."""
    return (
        (known.topic, known.partition_width_ms, known.output)
        == (wanted.topic, wanted.partition_width_ms, wanted.output)
        and known.after <= wanted.after
        and known.upto >= wanted.upto
        and known.subscriptions == wanted.subscriptions
    )
