"""What is known of a rebuild while it runs and after: pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from bridge import answers
from bridge.answers.values import Engine, RebuildState, Trigger
from tracker import Position


@dataclass(frozen=True)
class Proof:
    """So many entries are in the topic and in the index, with the same checksum: all that is due from a time on."""

    count: int
    checksum: int
    from_ms: int

    def answer(self) -> answers.Proof:
        """Return what REST says."""
        return {"count": self.count, "checksum": f"{self.checksum:016x}", "from": self.from_ms}


class Sources(NamedTuple):
    """Where entries came from: so many from the bookies, and why the broker gave others, where it was not to."""

    from_bookies: int = 0
    not_from_bookies: str | None = None

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """Read what a job tells at its end; one that found everything done tells nothing."""
        return cls(told.get("from_bookies", 0), told.get("not_from_bookies"))


NOTHING_READ = Sources()


@dataclass
class RebuildStatus:
    """One rebuild of the positions (after, to]. Times are epoch ms, counts are of entries; 0 in total: not known."""

    trigger: Trigger
    after: Position
    to: Position
    started_ms: int
    engine: Engine = Engine.in_process
    stage: str = "queued"
    entries_total: int = 0
    entries_read: int = 0
    entries_indexed: int = 0
    finished_ms: int | None = None
    error: str | None = None
    spark_error: str | None = None
    """Why what a job was to read was read in the bridge instead."""
    sources: Sources = NOTHING_READ
    proof: Proof | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def state(self) -> RebuildState:
        """How it stands."""
        if self.finished_ms is None:
            return "queued" if self.stage == "queued" else "running"
        return "succeeded" if self.error is None else "failed"

    def finish(self, now_ms: int, error: str | None = None) -> None:
        """Note the end."""
        self.finished_ms, self.error, self.stage = now_ms, error, "done"

    def eta_ms(self, now_ms: int) -> int | None:
        """Return how long reading will take at its rate so far; None when that cannot be said."""
        elapsed = now_ms - self.started_ms
        if self.finished_ms is not None or not self.entries_read or elapsed <= 0:
            return None
        return round(elapsed * max(self.entries_total - self.entries_read, 0) / self.entries_read)

    def answer(self, now_ms: int) -> answers.RebuildStatus:
        """Return what REST says."""
        return {
            "id": self.id,
            "state": self.state,
            "stage": self.stage,
            "trigger": self.trigger,
            "engine": self.engine,
            "after": str(self.after),
            "to": str(self.to),
            "entriesTotal": self.entries_total,
            "entriesRead": self.entries_read,
            "entriesIndexed": self.entries_indexed,
            "etaMs": self.eta_ms(now_ms),
            "startedAt": self.started_ms,
            "finishedAt": self.finished_ms,
            "error": self.error,
            "proof": None if self.proof is None else self.proof.answer(),
            "sparkError": self.spark_error,
            "fromBookies": self.sources.from_bookies,
            "notFromBookies": self.sources.not_from_bookies,
        }
