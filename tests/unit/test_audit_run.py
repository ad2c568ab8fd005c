"""Audits whose reading takes longer than was thought."""

from pathlib import Path
from typing import Any, cast

import pytest

from bridge.answers.values import Engine
from bridge.broker.admin import AdminClient
from bridge.ledgers.internal_stats import LedgerState
from bridge.limits import RefillLimits
from bridge.refill.audit import Audit, AuditStatus
from bridge.refill.comparison import Comparison, ComparisonResult
from bridge.refill.spark_job import JobError, SparkJob
from tracker import Position
from tracker.audit import Scope

WIDTH_MS = 10_000
MINUTE_MS = 60_000


class Slow:
    """Clock, broker, topic and index: each reading takes as long as is said."""

    def __init__(self, *takes_ms: int) -> None:
        self.now_ms = 0
        self.scopes: list[tuple[int, Scope]] = []
        self._takes_ms = list(takes_ms)

    # of Comparison

    def lowest(self) -> Position:
        return Position(1, -1)

    def upto(self) -> Position:
        return Position(1, 9)

    def lasts_ms(self, entries: int, *, by_job: bool) -> int:
        assert entries == 10
        return 4 * MINUTE_MS if by_job else MINUTE_MS

    def scope(self, after: Position, upto: Position, now_ms: int, lasts_ms: int) -> Scope:
        self.scopes.append((now_ms, Scope(after, upto, WIDTH_MS, (now_ms + lasts_ms) // WIDTH_MS + 1)))
        return self.scopes[-1][1]

    async def topic_side(self, scope: Scope, on_read: Any) -> dict[Any, Any]:
        self.now_ms += self._takes_ms.pop(0)
        on_read(10)
        return {}

    async def compare(self, in_topic: dict[Any, Any], scope: Scope) -> ComparisonResult:
        assert scope is self.scopes[-1][1]
        assert self.now_ms < scope.cut * WIDTH_MS
        return ComparisonResult(compared=10)

    # of AdminClient

    async def internal_stats(self, topic: str) -> LedgerState:
        return LedgerState(Position(1, 9), {1: 10})


class NoJob:
    """In the place of SparkJob."""

    topic, folder = "t", Path()

    def spec(self, kind: type, scope: Scope) -> None:
        raise JobError("no Spark here")

    def is_large(self, entries: int) -> bool:
        return False


async def audited(slow: Slow, engine: Engine, tries: int = RefillLimits().audit_tries) -> AuditStatus:
    status = AuditStatus(0, engine)
    parts = cast(Comparison, slow), cast(AdminClient, slow), cast(SparkJob, NoJob())
    await Audit(*parts, lambda: slow.now_ms, tries).run(status)
    return status


async def test_in_time() -> None:
    slow = Slow(MINUTE_MS - 1)
    status = await audited(slow, Engine.auto)
    assert (status.state, status.engine, status.result.compared) == ("succeeded", Engine.in_process, 10)
    assert len(slow.scopes) == 1


async def test_begun_again_with_twice_the_time() -> None:
    slow = Slow(2 * MINUTE_MS, 3 * MINUTE_MS)
    status = await audited(slow, Engine.in_process)
    assert (status.state, status.entries_read) == ("succeeded", 10)
    (_, first), (again_ms, second) = slow.scopes
    assert first.cut == MINUTE_MS // WIDTH_MS + 1
    assert again_ms == 2 * MINUTE_MS
    assert second.cut == (again_ms + 4 * MINUTE_MS) // WIDTH_MS + 1
    assert status.compared_from_ms == second.cut * WIDTH_MS


async def test_a_job_has_the_time_it_takes_to_start() -> None:
    """Also when it fails, and the topic is read here."""
    slow = Slow(4 * MINUTE_MS)
    status = await audited(slow, Engine.spark)
    assert (status.state, status.engine, status.spark_error) == ("succeeded", Engine.in_process, "no Spark here")


@pytest.mark.parametrize("tries", [1, 3])
async def test_given_up(tries: int) -> None:
    slow = Slow(*[MINUTE_MS * 10**number for number in range(1, 4)])
    status = await audited(slow, Engine.in_process, tries)
    assert status.state == "failed"
    assert "took too long" in str(status.error)
    assert len(slow.scopes) == tries
