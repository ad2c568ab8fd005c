"""Runs seeds, on all processors: `python -m tests.simulation --seeds 1000`; one in full with `--seed 17`."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

from tests.simulation.scenario import Outcome, Size, live
from tests.simulation.shrink import shrunk

FOUND = Path(__file__).parent / "found.json"
"""[seed, seconds, faults, messages, kind of subscription] of what broke a promise, at some time."""


def main() -> int:
    """Return 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, help="this one alone, with its history")
    parser.add_argument("--shrink", action="store_true", help="with --seed: with as few faults as break it")
    parser.add_argument("--found", action="store_true", help="those that broke something once")
    parser.add_argument("--seconds", type=float, default=Size().seconds)
    parser.add_argument("--faults", type=int, default=Size().faults)
    parser.add_argument("--messages", type=int, default=Size().messages)
    parser.add_argument("--kind", choices=["Shared", "Key_Shared"], help="of the subscription; else as the seed says")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    size = Size(given.seconds, given.faults, given.messages, kind=given.kind)
    if given.seed is not None:
        outcome = run((given.seed, size))
        if given.shrink and outcome.broken is not None:
            outcome = shrunk(outcome, size)
        print(*outcome.history, sep="\n")
        return outcome.broken is not None
    if given.found:
        rows: list[tuple[int, float, int, int, str]] = json.loads(FOUND.read_text())
        found = [(seed, Size(seconds, faults, messages, kind=kind)) for seed, seconds, faults, messages, kind in rows]
        return run_all(found, given.processes)
    return run_all([(seed, size) for seed in range(given.first, given.first + given.seeds)], given.processes)


def run_all(seeds: list[tuple[int, Size]], processes: int) -> int:
    """Say what broke, and what was done; return 1 when anything broke."""
    began, broken = time.monotonic(), 0
    messages = redelivered = faults = 0
    with multiprocessing.Pool(processes, maxtasksperchild=50) as pool:
        for outcome in pool.imap_unordered(run, seeds):
            messages, faults = messages + outcome.messages, faults + len(outcome.faults)
            redelivered += outcome.redelivered
            if outcome.broken is not None:
                broken += 1
                print(f"seed {outcome.seed}: {outcome.broken}", flush=True)
        pool.close()
        pool.join()  # so that they end by themselves, and say what lines they reached
    took = time.monotonic() - began
    print(
        f"{len(seeds):,} seeds of {seeds[0][1].seconds:g} s, {faults:,} faults, {messages:,} messages, "
        f"{redelivered:,} delivered again, {broken} broken; {took:.0f} s on {processes} processors"
    )
    return int(broken > 0)


def run(work: tuple[int, Size]) -> Outcome:
    """One seed. What waits when its world ends is thrown away as it is, which nobody needs to hear of."""
    sys.unraisablehook = lambda _: None
    return live(*work)


if __name__ == "__main__":
    sys.exit(main())
