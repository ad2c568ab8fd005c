"""What an operator asks of one topic partition while this bridge owns it: rebuilds and audits, one at a time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from bridge import answers
from bridge.answers.values import Engine, Trigger
from bridge.broker.admin import AdminClient
from bridge.broker.connection import BrokerConnection
from bridge.limits import RefillLimits
from bridge.refill.audit import Audit, AuditStatus
from bridge.refill.comparison import Comparison
from bridge.refill.gaps import GapFiller
from bridge.refill.rebuild_status import RebuildStatus
from bridge.refill.spark_job import SparkJob, SparkSettings
from tracker import TopicIndex

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class Rebuilds:
    """One per time as owner; `spawn` ends what is under way with that time."""

    def __init__(
        self,
        topic: str,
        connection: BrokerConnection,
        index: TopicIndex,
        admin: AdminClient,
        spark: SparkSettings,
        gaps: GapFiller,
        now_ms: Callable[[], int],
        spawn: Spawn,
        limits: RefillLimits,
    ) -> None:
        """Nothing is under way."""
        self.audit: AuditStatus | None = None
        """The audit under way, or else the last one."""
        self._index = index
        self._gaps = gaps
        self._now_ms = now_ms
        self._spawn = spawn
        self._comparison = Comparison(topic, connection, index, limits)
        self._audit = Audit(
            self._comparison, admin, SparkJob("audit", topic, spark, limits.job_attempts), now_ms, limits.audit_tries
        )
        self._rebuilding: asyncio.Task[None] | None = None

    @property
    def history(self) -> list[RebuildStatus]:
        """The last rebuilds, newest first; that one may be under way."""
        return list(self._gaps.statuses)

    def history_answer(self) -> answers.Rebuild | None:
        """Return what REST says: the newest rebuild, and those `earlier`; None without any."""
        told = [status.answer(self._now_ms()) for status in self._gaps.statuses]
        return {**told[0], "earlier": told[1:]} if told else None

    @property
    def is_rebuilding(self) -> bool:
        """Whether what the index lacks is being read."""
        return any(status.finished_ms is None for status in self._gaps.statuses)

    @property
    def is_busy(self) -> bool:
        """Whether a rebuild or an audit is under way."""
        return self.is_rebuilding or (self.audit is not None and self.audit.finished_ms is None)

    def start_rebuild(self, engine: Engine) -> RebuildStatus | None:
        """Read everything again that a subscription may need; None while something is under way."""
        harvested = self._index.harvested_position
        if self.is_busy or harvested is None:
            return None
        status = RebuildStatus(Trigger.operator, self._comparison.lowest(), harvested, self._now_ms())
        self._gaps.statuses.appendleft(status)
        self._rebuilding = self._spawn(self._gaps.read_all_again(status, engine, self._audit))
        return status

    def cancel_rebuild(self) -> RebuildStatus | None:
        """End the rebuild that an operator started; None when there is none. Others are needed, and go on."""
        status = next((each for each in self._gaps.statuses if each.finished_ms is None), None)
        if status is None or status.trigger is not Trigger.operator or self._rebuilding is None:
            return None
        status.error = "cancelled"
        self._rebuilding.cancel()
        return status

    def start_audit(self, engine: Engine) -> AuditStatus | None:
        """Compare index and topic; None while something is under way."""
        if self.is_busy:
            return None
        self.audit = AuditStatus(self._now_ms(), engine)
        self._spawn(self._audit.run(self.audit))
        return self.audit
