"""Runs seeds with one defence taken away until a promise breaks: `python -m tests.simulation.mutants`."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from typing import NamedTuple

from tests.simulation.mutations import MUTATIONS
from tests.simulation.scenario import Size, live

SIZE = Size(60.0, 14, 150, (1, 2, 3), "Shared")
CROWDED = Size(300.0, 40, 300, (3,), "Shared")
"""For what takes two rare things at once."""


class Caught(NamedTuple):
    """`seeds` were run; `broken` is None when nothing was noticed."""

    name: str
    seeds: int
    broken: str | None


def main() -> int:
    """Return 1 when a mutation was not noticed."""
    parser = argparse.ArgumentParser(prog="tests.simulation.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--only", help="those whose names contain this")
    parser.add_argument("--quick", action="store_true", help="those that nearly any seed shows")
    given = parser.parse_args()
    names = [name for name in MUTATIONS if given.only is None or given.only in name]
    if given.quick:
        names = [name for name in names if MUTATIONS[name].quick]
    began, unseen = time.monotonic(), 0
    with multiprocessing.Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        for caught in pool.imap_unordered(hunt, [(name, given.seeds) for name in names], chunksize=1):
            promise = MUTATIONS[caught.name].promise
            unseen += caught.broken is None
            found = "NOT NOTICED" if caught.broken is None else caught.broken
            print(f"{promise} {caught.name}: {caught.seeds} seeds: {found[:110]}", flush=True)
    print(f"{len(names) - unseen} of {len(names)} mutations noticed, in {time.monotonic() - began:.0f} s")
    return int(unseen > 0)


def hunt(work: tuple[str, int]) -> Caught:
    """In a process of its own, which the mutation is applied to."""
    name, seeds = work
    sys.unraisablehook = lambda _: None
    MUTATIONS[name].apply()
    size = CROWDED if MUTATIONS[name].crowded else SIZE
    if MUTATIONS[name].keyed:
        size = size._replace(kind="Key_Shared")
    for seed in range(1, seeds + 1):
        broken = live(seed, size).broken
        if broken is not None:
            return Caught(name, seed, broken)
    return Caught(name, seeds, None)


if __name__ == "__main__":
    sys.exit(main())
