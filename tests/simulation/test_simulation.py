"""The whole bridge in virtual time. Each run is a process of its own: it throws away what waits when a world ends."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(600)
SHORT = ("--seconds", "60", "--faults", "14", "--messages", "150")


def simulate(*arguments: str, module: str = "tests.simulation", **environment: str) -> tuple[int, str]:
    found = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert not found.stderr, found.stderr[-4_000:]
    return found.returncode, found.stdout


def test_seeds_keep_the_promises() -> None:
    status, told = simulate("--seeds", "40", *SHORT)
    assert status == 0, told


@pytest.mark.slow
def test_whole_lives_keep_the_promises() -> None:
    """Ten minutes of a world each, with two dozen faults."""
    status, told = simulate("--seeds", "6", "--first", "1000")
    assert status == 0, told


@pytest.mark.slow
def test_what_broke_a_promise_once() -> None:
    status, told = simulate("--found")
    assert status == 0, told


def test_the_same_seed_is_the_same_history() -> None:
    """To the microsecond, whatever the order of sets of strings."""
    first, second = (simulate("--seed", "7", *SHORT, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert first == second
    assert first[1].count("\n") > 30


@pytest.mark.slow
def test_clients_that_lie_harm_nobody() -> None:
    """`make fuzz` is the long form."""
    status, told = simulate("--frames", "15000", module="tests.simulation.fuzz")
    assert status == 0, told


@pytest.mark.slow
def test_each_defence_is_needed() -> None:
    """A simulation that does not notice when one is taken away is of no use. `make mutants` is the long form."""
    status, told = simulate("--quick", "--seeds", "20", module="tests.simulation.mutants")
    assert status == 0, told
