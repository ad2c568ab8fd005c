"""Takes away faults that a broken promise does not need."""

from __future__ import annotations

from tests.simulation.faults import Fault
from tests.simulation.scenario import Outcome, Size, live


def shrunk(broken: Outcome, size: Size) -> Outcome:
    """Return an outcome with as few faults as still break a promise, halves first, then one by one."""
    best, step = broken, max(len(broken.faults) // 2, 1)
    while True:
        smaller = _without_some(best, size, step)
        if smaller is not None:
            best = smaller
        elif step == 1:
            return best
        step = max(min(step, len(best.faults)) // 2, 1)


def _without_some(best: Outcome, size: Size, step: int) -> Outcome | None:
    for start in range(0, len(best.faults), step):
        kept: list[Fault] = best.faults[:start] + best.faults[start + step :]
        outcome = live(best.seed, size, kept)
        if outcome.broken is not None:
            return outcome
    return None
