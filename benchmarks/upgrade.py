"""Two bridges that become another version one after the other, and back: `python -m benchmarks.upgrade --other FOLDER`.

FOLDER is a checkout of the other version (`git clone . FOLDER && git -C FOLDER checkout v0.2.0`); what both need has to
be installed here. Starts a real Pulsar and two bridges of the other version, one of them standby. While messages come
due each is stopped (SIGTERM) and started as this version, with its data; then each as the other one again; then each is
killed (SIGKILL) and started as this version. Prints how long a consumer got nothing each time, and what became of all
messages, and writes it below `benchmarks/results/`.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.recorded import write_result
from benchmarks.takeover import Arrivals, Node, Traffic, roles, until
from bridge.embedded.pulsar import EmbeddedPulsar
from bridge.showcase.side_by_side import wait_ready

HERE = Path(__file__).parent.parent
STEPS = (("this", signal.SIGTERM), ("other", signal.SIGTERM), ("this", signal.SIGKILL))


class Versioned(Node):
    """A bridge that is started from one checkout or another."""

    def __init__(self, broker: EmbeddedPulsar, folder: Path) -> None:
        super().__init__(broker, folder, 1)
        # Settings that only one of both knows would keep the other from starting: all are left at their defaults.
        self._environment = {"DELAY_BRIDGE_LOG_LEVEL": "error"}

    def become(self, checkout: Path) -> None:
        """Be of that version from the next start on."""
        self._environment["PYTHONPATH"] = str(checkout)

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, env={**os.environ, **self._environment})
        wait_ready(self._process, f"http://127.0.0.1:{self.web_port}/readyz")


def run(broker: EmbeddedPulsar, folder: Path, versions: dict[str, Path], pending: int, rate: int) -> dict[str, Any]:
    nodes = [Versioned(broker, folder / name) for name in "ab"]
    try:
        for node in nodes:
            node.become(versions["other"])
            node.start()
        return measured(broker, nodes, versions, pending, rate)
    finally:
        for node in nodes:
            node.end(signal.SIGTERM)
        for node in nodes:
            node.wait()


def measured(
    broker: EmbeddedPulsar, nodes: list[Versioned], versions: dict[str, Path], pending: int, rate: int
) -> dict[str, Any]:
    arrivals = Arrivals("pulsar://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes))
    traffic = Traffic(broker, rate)
    steps: list[dict[str, object]] = []
    try:
        traffic.fill(pending)
        traffic.start()
        for version, how in STEPS:
            for node in nodes:
                until(lambda: roles([*nodes], pending) is not None, "an owner, and a standby that is ready")
                began_s = time.monotonic()
                node.end(how)
                silence_s = arrivals.silence_from(began_s, node.is_over)
                node.wait()
                node.become(versions[version])
                node.start()
                steps.append({"to": version, "by": how.name, "silence_s": round(silence_s, 3)})
        traffic.close()
        until(lambda: {*traffic.sent} <= {*arrivals.counts}, "everything that was sent comes")
    finally:
        traffic.close()
        arrivals.close()
    return {
        "steps": steps,
        "sent": len(traffic.sent),
        "lost": len({*traffic.sent} - {*arrivals.counts}),
        "early": arrivals.early,
        "again": sum(count - 1 for count in arrivals.counts.values()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.upgrade", description=__doc__)
    parser.add_argument("--other", type=Path, required=True, help="checkout of the other version")
    parser.add_argument("--pending", type=int, default=20_000)
    parser.add_argument("--rate", type=int, default=500, help="messages a second that come due meanwhile")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    with EmbeddedPulsar(progress=False) as broker, tempfile.TemporaryDirectory() as folder:
        versions = {"this": HERE, "other": given.other.absolute()}
        found = run(broker, Path(folder), versions, given.pending, given.rate)
    table = Table(title="two bridges, one after the other")
    for column in ("becomes", "by", "silence"):
        table.add_column(column)
    for step in found["steps"]:
        table.add_row(f"{step['to']} version", step["by"], f"{step['silence_s']:.2f} s")
    console = Console(width=100)
    console.print(table)
    console.print(f"{found['sent']:,} sent: {found['lost']} lost, {found['early']} early, {found['again']} came again")
    about = {"pending": given.pending, "rate": given.rate}
    console.print(f"written: {write_result('upgrade', given.output, about, **found).name}")
    return int(found["lost"] > 0 or found["early"] > 0)


if __name__ == "__main__":
    sys.exit(main())
