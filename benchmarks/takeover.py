"""What consumers notice of an owner's end, with a standby and without: `python -m benchmarks.takeover`.

Starts a real Pulsar and two bridges. One topic holds many pending messages; others on it come due all the while. The
owner is killed (SIGKILL), stopped (SIGTERM), or drained and stopped (SIGUSR1), and the longest time after that in which
a consumer gets nothing is taken; then it is started again, and once it is ready the other one's turn comes. Prints
medians and worst, and writes them below `benchmarks/results/`.
"""

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
from rich.console import Console
from rich.table import Table

from benchmarks.recorded import write_result
from bridge.embedded.pulsar import EmbeddedPulsar
from bridge.showcase.side_by_side import free_port, wait_ready

TOPIC = "persistent://public/default/takeover"
FAR_MS = 6 * 3600 * 1000
DELAYS_MS = (500, 2_000, 5_000)
PATIENCE_S = 600.0
ENDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1)
SETTLED_S = 2.0
WINDOW_S = 6.0
"""After the owner's end; two in a row are further apart."""


class Node:
    """A bridge that is started, killed and stopped."""

    def __init__(self, broker: EmbeddedPulsar, folder: Path, standbys: int, **settings: object) -> None:
        self.port, self.web_port = free_port(), free_port()
        self._command = [
            *(sys.executable, "-m", "bridge", "serve"),
            *("--broker-service-url", broker.service_url, "--broker-web-url", broker.web_url),
            *("--data-dir", str(folder), "--port", str(self.port), "--web-port", str(self.web_port)),
            *("--advertised-address", "127.0.0.1"),
        ]
        self._environment = {"DELAY_BRIDGE_LOG_LEVEL": "error", "DELAY_BRIDGE_STANDBY_COUNT": str(standbys)}
        self._environment |= {f"DELAY_BRIDGE_{name.upper()}": str(value) for name, value in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, env={**os.environ, **self._environment})
        wait_ready(self._process, f"http://127.0.0.1:{self.web_port}/readyz")

    def end(self, how: signal.Signals) -> None:
        """Send the signal, and return at once."""
        if self._process is not None:
            self._process.send_signal(how)

    def is_over(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def wait(self) -> None:
        if self._process is not None:
            self._process.wait(60)

    def row(self) -> dict[str, Any]:
        """What it says of the topic."""
        url = f"http://127.0.0.1:{self.web_port}/admin/v2/delayed/topics"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                rows: list[dict[str, Any]] = json.load(answer)
        except OSError:
            return {}
        return next((row for row in rows if row["topic"] == TOPIC), {})


class Arrivals:
    """An ordinary consumer, in a thread: when each message came, how early it was, and how often it came."""

    def __init__(self, url: str) -> None:
        self.at_s: list[float] = []
        self.early = 0
        self.counts: dict[str, int] = {}
        self._client = pulsar.Client(url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
        self._consumer = self._client.subscribe(TOPIC, "s", pulsar.ConsumerType.Shared)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                message = self._consumer.receive(200)
            except pulsar.Timeout:
                continue
            self.at_s.append(time.monotonic())
            name, due_ms = message.data().decode().split()
            self.early += time.time() * 1000 < int(due_ms)
            self.counts[name] = self.counts.get(name, 0) + 1
            self._consumer.acknowledge(message)

    def silence_from(self, at_s: float, is_over: Callable[[], bool]) -> float:
        """The longest time in which nothing came, of those that end after `at_s`, in seconds; waits for it."""
        until(is_over, "the owner's end")
        ends_s = max(at_s + WINDOW_S, time.monotonic() + SETTLED_S)
        until(lambda: time.monotonic() > ends_s and self.at_s[-1] > ends_s, "messages come again")
        since = [one for one in self.at_s[-500_000:] if one > at_s - 1.0]
        return max(b - a for a, b in itertools.pairwise(since) if b > at_s)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._client.close()


class Traffic:
    """Delayed messages, published past the bridges all the while, in a thread."""

    def __init__(self, broker: EmbeddedPulsar, rate: int) -> None:
        self.sent: list[str] = []
        self._rate = rate
        self._client = pulsar.Client(broker.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
        self._producer = self._client.create_producer(TOPIC, max_pending_messages=50_000, block_if_queue_full=True)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def fill(self, count: int) -> None:
        """Pending for hours."""
        due_ms = int(time.time() * 1000) + FAR_MS
        for number in range(count):
            self._producer.send_async(b"x" * 100, lambda *_: None, deliver_at=due_ms + number)
        self._producer.flush()

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._over.is_set():
            for _ in range(int((time.monotonic() - began) * self._rate) - len(self.sent)):
                due_ms = int(time.time() * 1000) + DELAYS_MS[len(self.sent) % len(DELAYS_MS)]
                name = f"m{len(self.sent)}"
                self._producer.send_async(f"{name} {due_ms}".encode(), lambda *_: None, deliver_at=due_ms)
                self.sent.append(name)
            time.sleep(0.005)

    def close(self) -> None:
        """May be called again."""
        if not self._over.is_set():
            self._over.set()
            if self._thread.ident is not None:
                self._thread.join()
            self._producer.flush()
            self._client.close()


def until(condition: Callable[[], bool], what: str, seen: Callable[[], object] = lambda: "") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {PATIENCE_S:.0f} s: {what} {seen()}")
        time.sleep(0.05)


def roles(nodes: list[Node], pending: int) -> tuple[Node, Node] | None:
    """The owner and the other one, once that is ready."""
    rows = [node.row() for node in nodes]
    for owner, other in ((0, 1), (1, 0)):
        has_all = (rows[owner].get("entries") or 0) >= pending
        if rows[owner].get("role") == "owner" and rows[other].get("standbyPosition") and has_all:
            return nodes[owner], nodes[other]
    return None


def run(broker: EmbeddedPulsar, folder: Path, pending: int, rounds: int, rate: int) -> dict[str, Any]:
    nodes = [Node(broker, folder / name, 1) for name in "ab"]
    try:
        for node in nodes:
            node.start()
        return measured(broker, nodes, pending, rounds, rate)
    finally:
        for node in nodes:
            node.end(signal.SIGTERM)
        for node in nodes:
            node.wait()


def measured(broker: EmbeddedPulsar, nodes: list[Node], pending: int, rounds: int, rate: int) -> dict[str, Any]:
    arrivals = Arrivals("pulsar://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes))
    traffic = Traffic(broker, rate)
    silences: dict[str, list[float]] = {how.name: [] for how in ENDS}
    try:
        traffic.fill(pending)
        traffic.start()
        for _ in range(rounds):
            for how in ENDS:
                until(
                    lambda: roles(nodes, pending) is not None,
                    "an owner, and a standby that is ready",
                    lambda: [node.row() for node in nodes],
                )
                found = roles(nodes, pending)
                assert found is not None
                time.sleep(1.0)
                at_s = time.monotonic()
                found[0].end(how)
                silences[how.name].append(arrivals.silence_from(at_s, found[0].is_over))
                found[0].wait()
                found[0].start()
        traffic.close()
        until(lambda: {*traffic.sent} <= {*arrivals.counts}, "everything that was sent comes")
    finally:
        traffic.close()
        arrivals.close()
    again = sum(count - 1 for count in arrivals.counts.values())
    lost = len({*traffic.sent} - {*arrivals.counts})
    return {"silences_s": silences, "sent": len(traffic.sent), "lost": lost, "early": arrivals.early, "again": again}


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.takeover", description=__doc__)
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20, help="of a kill, a stop, and a stop that is drained before")
    parser.add_argument("--rate", type=int, default=2_000, help="messages a second that come due meanwhile")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    with EmbeddedPulsar(progress=False) as broker, tempfile.TemporaryDirectory() as folder:
        found = run(broker, Path(folder), given.pending, given.rounds, given.rate)
    table = Table(title=f"{given.pending:,} pending, {given.rate:,} messages a second")
    for column in ("the owner gets", "times", "silence, median", "worst"):
        table.add_column(column, justify="left" if column.startswith("the") else "right")
    for how, taken in found["silences_s"].items():
        table.add_row(how, str(len(taken)), f"{statistics.median(taken):.2f} s", f"{max(taken):.2f} s")
    console = Console(width=100)
    console.print(table)
    console.print(f"{found['sent']:,} sent: {found['lost']} lost, {found['early']} early, {found['again']} came again")
    about = {"pending": given.pending, "rate": given.rate, "rounds": given.rounds}
    console.print(f"written: {write_result('takeover', given.output, about, **found).name}")
    return int(found["lost"] > 0 or found["early"] > 0)


if __name__ == "__main__":
    sys.exit(main())
