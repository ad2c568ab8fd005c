"""Random faults in a row: `python -m tests.fault_run --faults 100 --seed 1 --rate 2000`.

On a real Pulsar with two bridges before it, under load. Prints the faults as they come, then a table; ends with 1 when
something was lost, early, or acked and returned, or when the books do not close. The same seed gives the same faults.

That it can accuse is seen with a defence taken away: `--faults 4 --seed 5 --kinds "freeze a bridge" --limit
confirmed_s=3600` has frozen owners hand out again what their successors have delivered.
"""

import argparse
import gc
import os
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

# As in the tests: a broker that is killed again and again would spend its life on warming up.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
os.environ.setdefault("_JAVA_OPTIONS", "-XX:-UseZGC -XX:+UseSerialGC -XX:-AlwaysPreTouch")

from tests.fault_run.faults import FAULTS, drawn
from tests.fault_run.report import show
from tests.fault_run.run import run
from tests.fault_run.traffic import Load


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests.fault_run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help="one run for each")
    parser.add_argument("--rate", type=int, default=2_000, help="messages a second, of all topics together")
    parser.add_argument("--kinds", nargs="+", choices=list(FAULTS), default=[], help="only these")
    parser.add_argument("--limit", nargs="*", default=[], metavar="NAME=SECONDS", help="limits of the bridges")
    parser.add_argument("--keep", type=Path, help="a folder, which stays, for logs and data")
    given = parser.parse_args()
    limits = {name: float(value) for name, value in (each.split("=") for each in given.limit)}
    # Whatever was started is ended then, and a bridge that is frozen goes on before.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    gc.disable()  # millions of records that stay: each full collection would keep consumers for seconds
    console, kept = Console(width=120), True
    for seed in given.seed:
        faults = drawn(seed, given.faults, tuple(given.kinds))
        with tempfile.TemporaryDirectory() as temporary:
            folder = (given.keep or Path(temporary)) / str(seed)
            folder.mkdir(parents=True, exist_ok=True)
            outcome = run(folder, seed, faults, Load(given.rate), limits, console)
        show(outcome, console)
        kept = kept and outcome.kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
