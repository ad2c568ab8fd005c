"""The bridge against the broker's own in-memory delay tracker: same broker, same client, same work, in turn.

`python -m benchmarks` starts a real Pulsar and the bridge in front of it, runs every workload against both
addresses alternately, prints medians and ratios, and writes them below `benchmarks/results/`.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.recorded import write_result
from bridge.embedded.pulsar import EmbeddedPulsar

Figures = dict[str, float]
Runs = dict[str, list[Figures]]

SHOWN = {
    "burst": ("rate", "p50_ms", "p99_ms", "max_ms", "early", "lost"),
    "spread": ("p50_ms", "p99_ms", "p999_ms", "max_ms", "early", "lost"),
    "throughput Shared": ("produce", "consume", "both"),
    "throughput Exclusive": ("produce", "consume", "both"),
}


def workloads(given: argparse.Namespace) -> dict[str, list[str]]:
    """The client's arguments for each workload."""

    def count(messages: int) -> str:
        return str(max(int(messages * given.scale), 100))

    lead = str(max(given.lead * given.scale, 3.0))
    spread = str(max(20 * given.scale, 2.0))
    chosen = {
        "burst": ["burst", "--messages", count(100_000), "--lead", lead],
        "spread": ["spread", "--messages", count(200_000), "--lead", str(2 * float(lead)), "--spread", spread],
        "throughput Shared": ["throughput", "--messages", count(100_000), "--kind", "Shared"],
        "throughput Exclusive": ["throughput", "--messages", count(100_000), "--kind", "Exclusive"],
    }
    return {name: arguments for name, arguments in chosen.items() if given.only in name}


@contextmanager
def bridge_process(broker: EmbeddedPulsar, data_dir: str) -> Iterator[str]:
    """A bridge in front of `broker`, as an operator would start it; gives its service URL."""
    port, web_port = _free_port(), _free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "bridge", "serve"),
            *("--broker-service-url", broker.service_url, "--broker-web-url", broker.web_url),
            *("--data-dir", data_dir, "--port", str(port), "--web-port", str(web_port)),
            *("--advertised-address", "127.0.0.1"),
        ],
        env={**os.environ, "DELAY_BRIDGE_LOG_LEVEL": "warning"},
    )
    try:
        _wait_ready(process, f"http://127.0.0.1:{web_port}/readyz")
        yield f"pulsar://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_ready(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the bridge did not become ready")


def measure(arguments: list[str], service_url: str) -> Figures:
    """One run of the client."""
    command = [sys.executable, "-m", "benchmarks.client", *arguments, "--service-url", service_url]
    figures: Figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return figures


def medians(runs: Sequence[Figures]) -> Figures:
    """The median of each figure; the sum for what must be 0."""
    return {
        name: sum(run[name] for run in runs)
        if name in ("early", "lost")
        else statistics.median(run[name] for run in runs)
        for name in runs[0]
    }


def report(results: dict[str, Runs]) -> Table:
    """Medians side by side, and the ratio bridge / broker."""
    table = Table(title="bridge and broker's own tracker, same work in turn, medians")
    for column, justify in (("workload", "left"), ("figure", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for column in ("broker", "bridge", "bridge / broker"):
        table.add_column(column, justify="right")
    for workload, runs in results.items():
        broker, bridge = medians(runs["broker"]), medians(runs["bridge"])
        for figure in SHOWN[workload]:
            ratio = f"{bridge[figure] / broker[figure]:.3g}" if broker[figure] else "-"
            table.add_row(workload, figure, f"{broker[figure]:,.1f}", f"{bridge[figure]:,.1f}", ratio)
        table.add_section()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs of each workload at each address")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the messages; below 1 for a quick look")
    parser.add_argument("--lead", type=float, default=15.0, help="seconds between publishing's start and the first due")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--output", type=Path, help="file for the result, default: benchmarks/results/DATE.json")
    given = parser.parse_args()
    console = Console()
    results: dict[str, Runs] = {}
    with (
        EmbeddedPulsar() as broker,
        tempfile.TemporaryDirectory() as data_dir,
        bridge_process(broker, data_dir) as bridge_url,
    ):
        addresses = {"broker": broker.service_url, "bridge": bridge_url}
        for name, arguments in workloads(given).items():
            results[name] = {"broker": [], "bridge": []}
            for run in range(given.runs):
                for side in ("broker", "bridge") if run % 2 == 0 else ("bridge", "broker"):
                    results[name][side].append(measure(arguments, addresses[side]))
                    console.log(name, side, results[name][side][-1])
    console.print(report(results))
    written = write_result("side-by-side", given.output, {}, scale=given.scale, results=results)
    console.print(f"written to {written}")


if __name__ == "__main__":
    main()
