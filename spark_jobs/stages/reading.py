"""The stage that all jobs begin with: the ranges of a topic's ledgers, read by tasks that leave markers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from spark_jobs import limits
from spark_jobs.command import tell
from spark_jobs.errors import LedgerReadError
from spark_jobs.ledgers.access import ClusterAccess
from spark_jobs.ledgers.stats import LedgerRange, TopicState, fair_share, grouped, ranges_of
from spark_jobs.plan import SPEC_NAME, Needed, RangeResult, ReadSpec, marker_name, upto_of
from spark_jobs.stages.read import read_group
from spark_jobs.storage import Storage
from tracker import Position


class Reading:
    """What one job reads into one folder."""

    def __init__(self, spec: ReadSpec, access: ClusterAccess, storage: Storage) -> None:
        """Nothing is done yet."""
        self.spec = spec
        self._access = access
        self._storage = storage

    def begin(self) -> None:
        """Take the folder. Raises LedgerReadError when it is that of another job."""
        known = self._storage.read(SPEC_NAME)
        if known is None:
            self._storage.write(SPEC_NAME, self.spec.model_dump_json().encode())
        elif type(self.spec).model_validate_json(known) != self.spec:
            raise LedgerReadError(f"{self.spec.output} belongs to another job: each needs a folder of its own")

    def results(self) -> dict[LedgerRange, RangeResult]:
        """Return the ranges that are read."""
        return {
            result.range: result
            for name in self._storage.names("ranges", ".json")
            if (text := self._storage.read(name)) is not None
            for result in [RangeResult.model_validate_json(text)]
        }

    def run(self, context: Any, state: TopicState, needed: Needed) -> list[RangeResult]:
        """Read the ranges that are missing; return all of them, in order."""
        ranges = ranges_of(state, Position(*self.spec.after), upto_of(self.spec), self.spec.split_entries)
        known = self.results()
        missing = [one for one in ranges if one not in known]
        groups = grouped(missing, fair_share(len(missing), self.spec.ranges_per_task, context.defaultParallelism))
        spec, access, total = self.spec, self._access, sum(one.entries for one in ranges)
        with telling("reading", total, lambda: list(self._counted(ranges))):
            if groups:
                tasks = context.parallelize(groups, len(groups))
                layouts = state.layouts
                for result in tasks.flatMap(lambda group: read_group(spec, access, group, layouts, needed)).collect():
                    known[result.range] = result
        return [known[one] for one in ranges]

    def _counted(self, ranges: list[LedgerRange]) -> Iterator[int]:
        names = {marker_name(one): one.entries for one in ranges}
        for name in self._storage.names("ranges", ".json"):
            if name in names:
                yield names[name]


@contextmanager
def telling(stage: str, total: int, parts: Callable[[], list[int]]) -> Iterator[None]:
    """Tell how far a stage is, now and then, from the markers that are stored: `parts` are their entries."""
    ended = threading.Event()

    def tell_once() -> None:
        tell(stage=stage, done=sum(parts()), total=total)

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
