"""Why a delivery is late."""

import pytest

from bridge.dispatch.lateness_causes import LatenessCauses
from bridge.dispatch.subscription_stats import LATENESS_BOUNDS_MS, Cause, Lateness


@pytest.mark.parametrize(
    ("due_ms", "covered", "stored_late", "cause"),
    [
        (900, True, True, Cause.bridge),  # nobody was the owner then
        (1_500, False, True, Cause.permits),
        (2_500, False, True, Cause.rebuild),
        (2_500, True, True, Cause.harvest),
        (2_500, True, False, Cause.bridge),
    ],
)
def test_what_was_so_when_it_came_due(due_ms: int, covered: bool, stored_late: bool, cause: Cause) -> None:
    causes = LatenessCauses()
    causes.owner_since_ms = 1_000
    causes.note_permits(1_200, False)
    causes.note_permits(2_000, True)
    causes.note_permits(3_000, True)
    assert causes.cause(due_ms, covered=covered, stored_late=stored_late) is cause


def test_latenesses_add_up() -> None:
    one, other = Lateness(), Lateness()
    one.record(3)
    other.record(40)
    other.record(LATENESS_BOUNDS_MS[-1] + 1)
    one.add(other)
    assert (one.count, one.sum_ms, one.max_ms) == (3, 43 + LATENESS_BOUNDS_MS[-1] + 1, LATENESS_BOUNDS_MS[-1] + 1)
    assert sum(one.counts) == 3
    assert one.percentile(0.5) == 50
    assert other.count == 2
