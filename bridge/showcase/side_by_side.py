"""The bridge against the broker's own in-memory delay tracker: same broker, same client, same work, in turn."""

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from bridge.embedded.pulsar import EmbeddedPulsar
from bridge.showcase.processor_time import Meter

Figures = dict[str, float]
Runs = dict[str, list[Figures]]

DUE = "due"
"""What the client prints when its first message is due."""
COSTS = ("broker_us", "bridge_us", "bridge_in_us", "bridge_out_us", "client_us")
"""Processor time of each process for a message; of the bridge's until the first is due, and after that."""
SHOWN = {
    "burst": ("rate", "p50_ms", "p99_ms", "max_ms", "early", "lost", *COSTS),
    "spread": ("p50_ms", "p99_ms", "p999_ms", "p9999_ms", "max_ms", "early", "lost", "send_p99_ms", *COSTS),
    "throughput Shared": ("produce", "consume", "both"),
    "throughput Exclusive": ("produce", "consume", "both"),
}


class BenchError(Exception):
    """A benchmark could not be run; the message says why."""


@dataclass(frozen=True)
class Wanted:
    """What to run: workloads whose name contains `only`, `runs` times each at each address; see `workloads`.

    `scale`: share of the messages; `lead_s`: between the start of publishing and the first due time.
    """

    runs: int = 3
    scale: float = 1.0
    lead_s: float = 15.0
    only: str = ""


def workloads(given: Wanted) -> dict[str, list[str]]:
    """Return the client's arguments for each workload."""

    def count(messages: int) -> str:
        return str(max(int(messages * given.scale), 100))

    lead = str(max(given.lead_s * given.scale, 3.0))
    spread = str(max(20 * given.scale, 2.0))
    chosen = {
        "burst": ["burst", "--messages", count(100_000), "--lead", lead],
        "spread": ["spread", "--messages", count(200_000), "--lead", str(2 * float(lead)), "--spread", spread],
        "throughput Shared": ["throughput", "--messages", count(100_000), "--kind", "Shared"],
        "throughput Exclusive": ["throughput", "--messages", count(100_000), "--kind", "Exclusive"],
    }
    return {name: arguments for name, arguments in chosen.items() if given.only in name}


class Running(NamedTuple):
    """A bridge in a process of its own."""

    service_url: str
    pid: int


@contextmanager
def bridge_process(broker: EmbeddedPulsar, data_dir: str, **environment: str) -> Iterator[Running]:
    """Start a bridge in front of `broker` as an operator would."""
    port, web_port = free_port(), free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "bridge", "serve"),
            *("--broker-service-url", broker.service_url, "--broker-web-url", broker.web_url),
            *("--data-dir", data_dir, "--port", str(port), "--web-port", str(web_port)),
            *("--advertised-address", "127.0.0.1"),
        ],
        env={**os.environ, "DELAY_BRIDGE_LOG_LEVEL": "warning", **environment},
    )
    try:
        wait_ready(process, f"http://127.0.0.1:{web_port}/readyz")
        yield Running(f"pulsar://127.0.0.1:{port}", process.pid)
    finally:
        process.terminate()
        process.wait(30)


def free_port() -> int:
    """Return a port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_ready(process: subprocess.Popen[bytes], url: str) -> None:
    """Return when a URL answers 200. Raises BenchError."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise BenchError("the bridge did not become ready")


def measure(arguments: list[str], service_url: str, pids: Mapping[str, int] | None = None) -> Figures:
    """Run the client once. Raises BenchError with what it says.

    `pids`: the processes `broker` and `bridge`, whose processor time for a message is told where the client says when
    the first one is due.
    """
    command = [sys.executable, "-m", "bridge.showcase.bench_client", *arguments, "--service-url", service_url]
    meter = Meter(pids or {})
    before: dict[str, float] = {}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as client,
    ):
        last = ""
        for line in client.stdout or ():
            if line.strip() == DUE:
                before = meter.lap()
            last = line
        client.wait()
        after = meter.lap()
        errors.seek(0)
        said = errors.read().strip().splitlines()
    if client.returncode:
        raise BenchError(f"{' '.join(arguments)}: {(said or ['no word of why'])[-1]}")
    figures: Figures = json.loads(last)
    if before:
        figures |= costs(before, after, int(arguments[arguments.index("--messages") + 1]))
    return figures


def costs(before: dict[str, float], after: dict[str, float], messages: int) -> Figures:
    """Microseconds for a message, of seconds of each process until the first one was due, and after that."""

    def each(seconds: float) -> float:
        return round(seconds * 1e6 / messages, 1)

    both = {name: before[name] + after[name] for name in before}
    return {
        "broker_us": each(both["broker"]),
        "bridge_us": each(both["bridge"]),
        "bridge_in_us": each(before["bridge"]),
        "bridge_out_us": each(after["bridge"]),
    }


def medians(runs: Sequence[Figures]) -> Figures:
    """Return the median of each figure, the sum for what must be 0."""
    return {
        name: sum(run[name] for run in runs)
        if name in ("early", "lost")
        else statistics.median(run[name] for run in runs)
        for name in runs[0]
    }


def side_by_side(wanted: Wanted, on_run: Callable[[str, str, Figures], None]) -> dict[str, Runs]:
    """Run everything against a real Pulsar and a bridge in front of it, alternately; `on_run` is told of each run.

    Raises BenchError, bridge.embedded.EmbeddedError.
    """
    results: dict[str, Runs] = {}
    with (
        EmbeddedPulsar() as broker,
        tempfile.TemporaryDirectory() as data_dir,
        bridge_process(broker, data_dir) as bridge,
    ):
        addresses = {"broker": broker.service_url, "bridge": bridge.service_url}
        assert broker.pid is not None
        pids = {"broker": broker.pid, "bridge": bridge.pid}
        for name, arguments in workloads(wanted).items():
            results[name] = {"broker": [], "bridge": []}
            for run in range(wanted.runs):
                for side in ("broker", "bridge") if run % 2 == 0 else ("bridge", "broker"):
                    results[name][side].append(measure(arguments, addresses[side], pids))
                    on_run(name, side, results[name][side][-1])
    return results
