"""Key_Shared beside Shared, both through the bridge, the same messages in turn: `python -m benchmarks.key_shared`.

Starts a real Pulsar and the bridge in front of it. Prints medians and the ratio, and writes them below
`benchmarks/results/`.
"""

import argparse
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.recorded import write_result
from bridge.embedded.pulsar import EmbeddedPulsar
from bridge.showcase.side_by_side import Runs, bridge_process, measure, medians

KINDS = {"Shared": "Shared", "Key_Shared": "KeyShared"}
SHOWN = ("rate", "p50_ms", "p99_ms", "max_ms", "early", "lost")


def workloads(scale: float) -> dict[str, list[str]]:
    burst, spread = str(int(100_000 * scale)), str(int(200_000 * scale))
    lead = str(max(20 * scale, 3.0))
    return {
        "burst, 1,000 keys": ["burst", "--messages", burst, "--lead", lead, "--keys", "1000"],
        "burst, each its own key": ["burst", "--messages", burst, "--lead", lead, "--keys", burst],
        "spread, 1,000 keys": [
            *("spread", "--messages", spread, "--lead", str(2 * float(lead)), "--keys", "1000"),
            *("--spread", str(max(20 * scale, 2.0))),
        ],
    }


def run(service_url: str, runs: int, scale: float, console: Console) -> dict[str, Runs]:
    results: dict[str, Runs] = {}
    for name, arguments in workloads(scale).items():
        results[name] = {kind: [] for kind in KINDS}
        for number in range(runs):
            for kind in list(KINDS) if number % 2 == 0 else reversed(list(KINDS)):
                figures = measure([*arguments, "--kind", KINDS[kind]], service_url)
                results[name][kind].append(figures)
                console.log(name, kind, {figure: round(figures[figure], 1) for figure in SHOWN})
    return results


def report(results: dict[str, Runs]) -> Table:
    table = Table("workload", "figure", *KINDS, "Key_Shared / Shared")
    for name, runs in results.items():
        shared, keyed = medians(runs["Shared"]), medians(runs["Key_Shared"])
        for figure in SHOWN:
            ratio = f"{keyed[figure] / shared[figure]:.2f}" if shared[figure] else "-"
            table.add_row(name, figure, f"{shared[figure]:,.1f}", f"{keyed[figure]:,.1f}", ratio)
        table.add_section()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.key_shared", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the messages")
    parser.add_argument("--output", type=Path, help="file for the result, default: DATE-key-shared.json")
    given = parser.parse_args()
    console = Console()
    with (
        EmbeddedPulsar() as broker,
        tempfile.TemporaryDirectory() as data_dir,
        bridge_process(broker, data_dir) as bridge,
    ):
        results = run(bridge.service_url, given.runs, given.scale, console)
    console.print(report(results))
    written = write_result("key-shared", given.output, {}, scale=given.scale, results=results)
    console.print(f"written to {written}")


if __name__ == "__main__":
    main()
