"""The bridge against the broker's own in-memory delay tracker: same broker, same client, same work, in turn.

`python -m benchmarks` is `delay-bridge bench` that keeps its results: it starts a real Pulsar and the bridge in front
of it, runs every workload against both addresses alternately, prints medians and ratios, and writes them below
`benchmarks/results/`.
"""

import argparse
from pathlib import Path

from rich.console import Console

from benchmarks.recorded import write_result
from bridge.cli.trials.bench import report
from bridge.showcase.side_by_side import Wanted, side_by_side


def main() -> None:
    default = Wanted()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--runs", type=int, default=default.runs, help="runs of each workload at each address")
    parser.add_argument("--scale", type=float, default=default.scale, help="share of the messages")
    parser.add_argument("--lead", type=float, default=default.lead_s, help="seconds before the first is due")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--output", type=Path, help="file for the result, default: DATE-side-by-side.json")
    given = parser.parse_args()
    console = Console()
    results = side_by_side(Wanted(given.runs, given.scale, given.lead, given.only), console.log)
    console.print(report(results))
    written = write_result("side-by-side", given.output, {}, scale=given.scale, results=results)
    console.print(f"written to {written}")


if __name__ == "__main__":
    main()
