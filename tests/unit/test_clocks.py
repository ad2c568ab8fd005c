"""This machine's clock beside the broker's, and beside one that never steps."""

import math

import pytest

from bridge.broker.clocks import ClockComparison
from bridge.clock import ClockSteps

NOW = 1_800_000_000.0


def told(comparison: ClockComparison, ahead_s: float, at_s: float) -> None:
    """An answer of a broker whose clock is ahead, which took 20 ms."""
    sent = NOW + at_s
    comparison.note(float(int(sent + ahead_s + 0.01)), sent, sent + 0.02, at_s)


def test_clocks_that_agree_differ_by_nothing() -> None:
    comparison = ClockComparison()
    for tenth in range(20):
        told(comparison, 0.0, tenth / 10)
        assert comparison.offset_s == 0.0


def test_how_far_they_differ_at_least() -> None:
    comparison = ClockComparison()
    told(comparison, 5.0, 0.5)
    assert 4.0 < (comparison.offset_s or 0.0) <= 5.0
    told(comparison, -5.0, 0.5)
    assert -5.0 <= (comparison.offset_s or 0.0) < -3.9
    assert comparison.doubt is None, "nobody asked for a limit"


def test_a_clock_is_doubted_when_several_answers_say_so_for_a_while() -> None:
    comparison = ClockComparison(2.0)
    for at_s in (0.0, 0.1, 0.2, 0.3):
        told(comparison, 10.0, at_s)
        assert comparison.doubt is None, "they may all be of one moment"
    told(comparison, 10.0, 6.0)
    assert "more than max_clock_offset_ms, 2000 ms" in (comparison.doubt or "")


def test_one_answer_that_agrees_is_enough() -> None:
    comparison = ClockComparison(2.0)
    for at_s in (0.0, 3.0, 6.0, 9.0):
        told(comparison, -10.0, at_s)
    assert "differ by" in (comparison.doubt or "")
    told(comparison, 0.0, 12.0)
    assert comparison.doubt is None
    told(comparison, -10.0, 13.0)
    told(comparison, -10.0, 30.0)
    assert comparison.doubt is None, "two are not enough"


def test_what_is_allowed_is_not_doubted() -> None:
    comparison = ClockComparison(5.0)
    for at_s in range(0, 60, 5):
        told(comparison, 4.0, float(at_s))
    assert comparison.doubt is None


def test_a_clock_that_runs_or_is_slewed_is_not_set() -> None:
    steps = ClockSteps(200)
    assert [steps.note(round(1000 * at * 1.0005), float(at)) for at in range(0, 1_000, 10)] == [None] * 100
    assert (steps.count, steps.last_at_s) == (0, -math.inf)


@pytest.mark.parametrize("step_ms", [-3_600_000, -250, 250, 3_600_000])
def test_a_clock_that_is_set(step_ms: int) -> None:
    steps = ClockSteps(200)
    told = [steps.note(1_000 * at + (step_ms if at >= 5 else 0), float(at)) for at in range(10)]
    assert [each for each in told if each is not None] == [step_ms]
    assert told[5] == step_ms
    assert (steps.count, steps.last_ms, steps.last_at_s) == (1, step_ms, 5.0)


def test_time_in_which_nobody_looked_is_no_step() -> None:
    steps = ClockSteps(200)
    steps.note(0, 0.0)
    assert steps.note(60_000, 60.0) is None
