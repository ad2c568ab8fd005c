"""Audits: what a topic holds, read here or by a Spark job, compared with what its index holds."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from bridge import answers
from bridge.answers.values import AuditState, Engine
from bridge.broker.admin import AdminClient, AdminError
from bridge.broker.connection import BrokerError
from bridge.refill.comparison import Comparison, ComparisonResult, TopicSide
from bridge.refill.rebuild_status import NOTHING_READ, RebuildStatus, Sources
from bridge.refill.spark_job import JobError, SparkJob
from spark_jobs.plan import FINGERPRINTS_NAME, ReadSpec, read_fingerprints
from tracker import StoreError
from tracker.audit import Scope

log = structlog.get_logger(__name__)


@dataclass
class AuditStatus:
    """One audit. Entries of the topic that are due before `compared_from_ms` are compared only as far as the index
    still holds their time partitions: what was delivered and acked is gone from it.
    """

    started_ms: int
    engine: Engine
    stage: str = "starting"
    entries_total: int = 0
    entries_read: int = 0
    compared_from_ms: int = 0
    result: ComparisonResult = field(default_factory=ComparisonResult)
    finished_ms: int | None = None
    error: str | None = None
    spark_error: str | None = None
    """Why what a job was to read was read in the bridge instead."""
    sources: Sources = NOTHING_READ

    @property
    def state(self) -> AuditState:
        """How it stands; succeeded: all is equal."""
        if self.finished_ms is None:
            return "running"
        if self.error is not None:
            return "failed"
        return "succeeded" if self.result.equal else "differs"

    def answer(self) -> answers.AuditStatus:
        """Return what REST says."""
        return {
            "state": self.state,
            "stage": self.stage,
            "engine": self.engine,
            "entriesTotal": self.entries_total,
            "entriesRead": self.entries_read,
            "compared": self.result.compared,
            "comparedFrom": self.compared_from_ms,
            "checksum": f"{self.result.checksum:016x}",
            "differing": self.result.differing,
            "missing": [str(one) for one in self.result.missing],
            "unexpected": [str(one) for one in self.result.unexpected],
            "startedAt": self.started_ms,
            "finishedAt": self.finished_ms,
            "error": self.error,
            "sparkError": self.spark_error,
            "fromBookies": self.sources.from_bookies,
            "notFromBookies": self.sources.not_from_bookies,
        }


class Audit:
    """Compares what lies above what all subscriptions have: the broker may delete the rest."""

    def __init__(
        self, comparison: Comparison, admin: AdminClient, job: SparkJob, now_ms: Callable[[], int], tries: int
    ) -> None:
        """Use `run`, or parts of it. `tries`: how often what takes too long is begun."""
        self._tries = tries
        self._comparison = comparison
        self._admin = admin
        self._job = job
        self._now_ms = now_ms

    async def run(self, status: AuditStatus) -> None:
        """Compare; the status tells what comes of it."""
        try:
            await self._run(status)
        except (BrokerError, AdminError, StoreError, JobError) as error:
            status.error = str(error)
        except asyncio.CancelledError:
            status.error = "this bridge is no longer the owner"
            raise
        finally:
            status.finished_ms, status.stage = self._now_ms(), "done"
        if status.state != "succeeded":
            log.warning("audit", topic=self._job.topic, **status.answer())

    async def _run(self, status: AuditStatus) -> None:
        topic = self._job.topic
        least_ms = 0
        for _ in range(self._tries):
            after, upto = self._comparison.lowest(), self._comparison.upto()
            if upto is None or after >= upto:
                return
            status.entries_total = total = (await self._admin.internal_stats(topic)).entries_between(after, upto)
            if status.engine is Engine.auto:
                status.engine = Engine.spark if self._job.is_large(total) else Engine.in_process
            began_ms = self._now_ms()
            lasts_ms = max(self._comparison.lasts_ms(total, by_job=status.engine is Engine.spark), least_ms)
            scope = self._comparison.scope(after, upto, began_ms, lasts_ms)
            status.compared_from_ms = scope.cut * scope.width_ms
            in_topic = await self._topic_side(status, scope)
            if self._now_ms() < status.compared_from_ms:
                status.stage = "comparing"
                status.result = await self._comparison.compare(in_topic, scope)
                return
            least_ms = 2 * (self._now_ms() - began_ms)
        status.error = "reading the topic took too long: what was due later when it began is due by now"

    async def _topic_side(self, status: AuditStatus, scope: Scope) -> TopicSide:
        if status.engine is Engine.spark:
            try:
                return await self.read_by_job(scope, status)
            except JobError as error:
                log.warning("the topic is read here, the audit job failed", topic=self._job.topic, reason=str(error))
                status.spark_error, status.engine = str(error), Engine.in_process
        status.stage, status.entries_read = "reading", 0

        def read(entries: int) -> None:
            status.entries_read += entries

        return await self._comparison.topic_side(scope, read)

    async def read_by_job(self, scope: Scope, status: AuditStatus | RebuildStatus) -> TopicSide:
        """Have a job read the topic; the status tells how far it is. Raises JobError."""
        job, spec = self._job, self._job.spec(ReadSpec, scope)

        def told(stage: str, done: int, total: int) -> None:
            status.stage, status.entries_read, status.entries_total = stage, done, total

        await asyncio.to_thread(job.begin, spec)
        status.sources = Sources.of(await job.run(spec, told))
        found = await asyncio.to_thread(lambda: read_fingerprints(job.read(FINGERPRINTS_NAME)))
        await asyncio.to_thread(job.remove)
        return found
