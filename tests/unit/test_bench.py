"""The benchmark that users run: what it is asked to do, and what it makes of the figures."""

import os
import time

import pytest
from rich.console import Console

from bridge.cli.trials.bench import report
from bridge.showcase.processor_time import Meter, processor_s
from bridge.showcase.side_by_side import COSTS, SHOWN, BenchError, Wanted, costs, measure, medians, workloads


def test_scaled_workloads() -> None:
    assert list(workloads(Wanted())) == list(SHOWN)
    (burst,) = workloads(Wanted(scale=0.01, only="burst")).values()
    assert burst == ["burst", "--messages", "1000", "--lead", "3.0"]
    assert workloads(Wanted(only="nothing")) == {}


def test_medians_and_sums_of_what_must_be_0() -> None:
    runs = [{"rate": rate, "early": early, "lost": 0.0} for rate, early in ((10.0, 1.0), (30.0, 0.0), (20.0, 2.0))]
    assert medians(runs) == {"rate": 20.0, "early": 3.0, "lost": 0.0}


def test_the_ratio_is_bridge_by_broker() -> None:
    figures = dict.fromkeys(SHOWN["burst"], 0.0)
    results = {"burst": {"broker": [figures | {"rate": 100.0}], "bridge": [figures | {"rate": 250.0}]}}
    console = Console(width=120, record=True, quiet=True)
    with console.capture() as shown:
        console.quiet = False
        console.print(report(results))
    (row,) = [line for line in shown.get().splitlines() if " rate " in line]
    assert row.replace("│", " ").split() == ["burst", "rate", "100.0", "250.0", "2.5"]


def test_a_client_that_fails_is_quoted() -> None:
    with pytest.raises(BenchError, match=r"^nonsense: .*invalid choice: 'nonsense'"):
        measure(["nonsense"], "pulsar://127.0.0.1:1")


def test_what_a_message_costs() -> None:
    found = costs({"broker": 1.0, "bridge": 0.5}, {"broker": 2.0, "bridge": 0.25}, 50_000)
    assert found == {"broker_us": 60.0, "bridge_us": 15.0, "bridge_in_us": 10.0, "bridge_out_us": 5.0}
    assert {*found, "client_us"} == {*COSTS}


def test_processor_time_is_that_of_all_threads() -> None:
    meter = Meter({"this": os.getpid()})
    began, used = time.process_time(), processor_s(os.getpid())
    while time.process_time() < began + 0.1:
        pass
    step_s = 0.02
    assert processor_s(os.getpid()) - used == pytest.approx(time.process_time() - began, abs=step_s)
    assert meter.lap()["this"] >= 0.1 - step_s
    assert meter.lap()["this"] < 0.1


def test_processor_time_of_nobody() -> None:
    with pytest.raises(OSError, match="No such file"):
        processor_s(2**22 + 1)
