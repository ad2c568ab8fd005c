"""Pauses between tries."""

import random

import pytest

from bridge.clock import system_randbits
from bridge.limits import Limits
from bridge.net.backoff import Backoff

STEPS = Limits().retry_backoff_s


@pytest.mark.parametrize(("chance", "share"), [(0, 0.5), (1 << 15, 0.75), ((1 << 16) - 1, 1.0)])
def test_each_pause_is_between_half_and_all_of_its_step(chance: int, share: float) -> None:
    backoff = Backoff(lambda bits: chance, STEPS)
    pauses = [backoff.next_s() for _ in range(len(STEPS) + 2)]
    steps = [*STEPS, *STEPS[-1:] * 2]
    assert pauses == pytest.approx([step * share for step in steps], rel=1e-4)
    backoff.reset()
    assert backoff.next_s() == pauses[0]


def test_steps_of_its_own() -> None:
    backoff = Backoff(lambda bits: 0, (4.0,))
    assert [backoff.next_s() for _ in range(3)] == [2.0, 2.0, 2.0]


def test_many_that_failed_together_do_not_try_again_together() -> None:
    """Of 500 no more than a tenth within any hundredth of the time that they have."""
    source = random.Random(1)
    topics = [Backoff(source.getrandbits, STEPS) for _ in range(500)]
    for step in STEPS:
        tries = sorted(backoff.next_s() for backoff in topics)
        assert step / 2 <= tries[0] < tries[-1] <= step
        most = max(sum(first <= each < first + step / 100 for each in tries) for first in tries)
        assert most <= 50


def test_the_machines_chance_will_do() -> None:
    assert 0.05 <= Backoff(system_randbits, STEPS).next_s() <= 0.1
