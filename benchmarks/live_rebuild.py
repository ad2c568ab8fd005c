"""Live traffic while a lost index is rebuilt by Spark: how late deliveries are, and when the first one comes.

`python -m benchmarks.live_rebuild` fills a topic with delayed messages, sends live ones at a rate, kills the bridge,
deletes its data directory and starts it again. Printed is the lateness of live messages before, during and after the
rebuild, and how long after the bridge serves the first new message comes, delayed and not.
"""

import argparse
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

import pulsar
from rich.console import Console
from rich.table import Table

from benchmarks.recorded import write_result
from bridge.embedded.pulsar import EmbeddedPulsar
from bridge.showcase.side_by_side import free_port, wait_ready

TOPIC = "persistent://public/default/live-rebuild"
FAR_MS = 6 * 3_600_000
AHEAD_MS = 2_000
Figures = dict[str, float]


def wall_ms() -> float:
    return time.time_ns() / 1e6


class Bridge:
    """A bridge as an operator starts it, to be killed."""

    def __init__(self, broker: EmbeddedPulsar, data_dir: Path) -> None:
        self._broker = broker
        self.data_dir = data_dir
        self.port, self.web_port = free_port(), free_port()
        self.service_url = f"pulsar://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "bridge", "serve", "--broker-service-url", self._broker.service_url]
        command += ["--broker-web-url", self._broker.web_url, "--data-dir", str(self.data_dir)]
        command += ["--port", str(self.port), "--web-port", str(self.web_port), "--advertised-address", "127.0.0.1"]
        settings = {"LOG_LEVEL": "warning", "REBUILD_FROM_ENTRIES": "1000", "SPARK_MASTER": "local[2]"}
        environment = os.environ | {f"DELAY_BRIDGE_{name}": value for name, value in settings.items()}
        self._process = subprocess.Popen(command, env=environment)
        wait_ready(self._process, f"http://127.0.0.1:{self.web_port}/readyz")

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def rebuild(self) -> dict[str, Any] | None:
        """The rebuild by a job, once there is one."""
        path = TOPIC.replace("://", "/")
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.web_port}/admin/v2/delayed/{path}/rebuild", timeout=5
            ) as answer:
                last = json.load(answer)
        except (OSError, urllib.error.HTTPError):
            return None
        return next((each for each in [last, *last["earlier"]] if each["engine"] == "spark"), None)


class Dispatched:
    """The bridge's own lateness, dispatch less due time, at several moments: what lies between two of them."""

    def __init__(self, web_port: int) -> None:
        self._url = f"http://127.0.0.1:{web_port}/metrics"
        self._known: list[tuple[float, dict[float, int]]] = []

    def look(self) -> None:
        with urllib.request.urlopen(self._url, timeout=5) as answer:
            text = answer.read().decode()
        found = re.findall(rf'_lateness_seconds_bucket{{[^}}]*topic="{TOPIC}"[^}}]*le="([^"]+)"}} (\d+)', text)
        self._known.append((wall_ms(), {float(bound): int(count) for bound, count in found}))

    def p99_ms(self, start: float, end: float) -> float:
        """The bound of the bucket that holds the P99 of what was dispatched in between."""
        within = [counts for at, counts in self._known if start <= at <= end and counts]
        if len(within) < 2:
            return math.nan
        counted = {bound: count - within[0][bound] for bound, count in within[-1].items()}
        return 1000 * next(bound for bound, count in sorted(counted.items()) if count >= 0.99 * counted[math.inf])


class Traffic:
    """A producer at a rate, half of it delayed, and a consumer that notes when what was due came: (due, late), ms."""

    def __init__(self, client: Any, rate: int) -> None:
        self.late: list[tuple[float, float]] = []
        self.immediate: list[tuple[float, float]] = []
        self._client = client
        self._rate = rate
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _produce(self) -> None:
        producer = self._client.create_producer(TOPIC, block_if_queue_full=True, send_timeout_millis=120_000)
        number, started = 0, time.monotonic()
        while not self._ended.is_set():
            while number < (time.monotonic() - started) * self._rate:
                now = wall_ms()
                if number % 2:
                    producer.send_async(f"{now + AHEAD_MS}".encode(), _stored, deliver_at=int(now) + AHEAD_MS)
                else:
                    producer.send_async(f"-{now}".encode(), _stored)
                number += 1
            time.sleep(0.002)
        producer.flush()

    def _consume(self) -> None:
        consumer = subscribe(self._client)
        while not self._ended.is_set():
            try:
                message = consumer.receive(timeout_millis=200)
            except pulsar.Timeout:
                continue
            now = wall_ms()
            consumer.acknowledge(message)
            told = message.data().decode()
            if told.startswith("-"):
                self.immediate.append((-float(told), now + float(told)))
            elif not told.startswith("far"):
                self.late.append((float(told), now - int(float(told))))
        consumer.close()


def _stored(result: Any, _: Any) -> None:
    """What is not stored is not counted."""


def subscribe(client: Any) -> Any:
    shared, earliest = pulsar.ConsumerType.Shared, pulsar.InitialPosition.Earliest
    return client.subscribe(TOPIC, "live", consumer_type=shared, initial_position=earliest, receiver_queue_size=2_000)


def fill(client: Any, entries: int) -> None:
    """As many delayed messages, one an entry."""
    producer = client.create_producer(TOPIC, batching_enabled=False, block_if_queue_full=True)
    due = int(wall_ms()) + FAR_MS
    for number in range(entries):
        producer.send_async(b"far" + b"x" * 125, _stored, deliver_at=due + number * 37 % FAR_MS)
    producer.flush()
    producer.close()


def between(late: list[tuple[float, float]], start: float, end: float) -> tuple[float, float, int]:
    """P50, P99 and number of what was due in a stretch of time."""
    found = sorted(each for due, each in late if start <= due < end)
    if len(found) < 100:
        raise SystemExit(f"only {len(found)} messages were due between {start} and {end}")
    return statistics.median(found), found[len(found) * 99 // 100], len(found)


def run(entries: int, rate: int, quiet_s: float, folder: Path) -> Figures:
    """Return the figures; times in ms."""
    with EmbeddedPulsar() as broker:
        bridge = Bridge(broker, folder / "data")
        client = pulsar.Client(bridge.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        traffic = Traffic(client, rate)
        try:
            bridge.start()
            subscribe(client).close()
            fill(client, entries)
            traffic.start()
            time.sleep(AHEAD_MS / 1000 + 5)
            before = wall_ms()
            dispatched = Dispatched(bridge.web_port)
            dispatched.look()
            time.sleep(quiet_s)
            dispatched.look()
            killed = wall_ms()
            bridge.stop(signal.SIGKILL)
            shutil.rmtree(bridge.data_dir)
            bridge.start()
            serves = wall_ms()
            stages: list[tuple[float, str]] = []
            status = wait_for_rebuild(bridge, entries, stages, dispatched)
            time.sleep(quiet_s + AHEAD_MS / 1000)
            after = wall_ms()
        finally:
            traffic.stop()
            client.close()
            bridge.stop()
    # What was due while the bridge was down comes with the files, and is late for that reason.
    loading = next((at for at, stage in stages if stage == "loading"), float(status["finishedAt"])) - 1_000
    own = {
        "quiet_dispatch_p99_ms": dispatched.p99_ms(before, killed),
        "during_dispatch_p99_ms": dispatched.p99_ms(max(float(status["startedAt"]), serves) + 3_000, loading),
    }
    return figures(traffic, status, (before, killed, serves, after)) | own | by_stage(traffic, stages)


def wait_for_rebuild(
    bridge: Bridge, entries: int, stages: list[tuple[float, str]], dispatched: Dispatched
) -> dict[str, Any]:
    """Its status at the end; `stages` gets when each begins."""
    deadline = time.monotonic() + 120 + entries / 1_000
    while time.monotonic() < deadline:
        status = bridge.rebuild()
        dispatched.look()
        if status is not None and (not stages or status["stage"] != stages[-1][1]):
            stages.append((wall_ms(), status["stage"]))
        if status is not None and status["finishedAt"] is not None:
            return status
        time.sleep(0.25)
    raise SystemExit("the rebuild did not end")


def by_stage(traffic: Traffic, stages: list[tuple[float, str]]) -> Figures:
    """The P99 of what was due in each stage, if that was enough to tell."""
    found: Figures = {}
    for (start, stage), (end, _) in pairwise(stages):
        late = sorted(each for due, each in traffic.late if start <= due < end)
        if len(late) >= 100:
            found[f"{stage}_p99_ms"] = late[len(late) * 99 // 100]
            found[f"{stage}_s"] = (end - start) / 1000
    return found


def figures(traffic: Traffic, status: dict[str, Any], times: tuple[float, float, float, float]) -> Figures:
    before, killed, serves, after = times
    # The first seconds belong to what piled up while nobody served.
    started = max(float(status["startedAt"]), serves) + 3_000
    finished = float(status["finishedAt"])
    quiet = between(traffic.late, before, killed - 1_000)
    during = between(traffic.late, started, finished)
    later = between(traffic.late, finished + 1_000, after - AHEAD_MS)

    def first(of: list[tuple[float, float]]) -> float:
        """After the bridge served again, the first message to come."""
        return min(due + late for due, late in of if due + late > serves) - serves

    return {
        "rebuilt_entries": status["entriesIndexed"],
        "rebuild_s": (finished - status["startedAt"]) / 1000,
        "proof": float(status["proof"] is not None),
        "first_immediate_ms": first([each for each in traffic.immediate if each[0] > serves]),
        "first_delayed_ms": first(traffic.late),
        "quiet_p50_ms": quiet[0],
        "quiet_p99_ms": quiet[1],
        "during_p50_ms": during[0],
        "during_p99_ms": during[1],
        "after_p50_ms": later[0],
        "after_p99_ms": later[1],
        "p99_ratio": during[1] / quiet[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live_rebuild", description=__doc__)
    parser.add_argument("--entries", type=int, default=300_000, help="delayed messages whose index is lost")
    parser.add_argument("--rate", type=int, default=2_000, help="live messages a second, half of them delayed")
    parser.add_argument("--quiet", type=float, default=15.0, help="seconds measured before and after")
    parser.add_argument("--output", type=Path, help="file for the result, default: benchmarks/results/DATE-live.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="delay-bridge-live-") as folder:
        found = run(given.entries, given.rate, given.quiet, Path(folder))
    table = Table(title=f"live traffic of {given.rate:,}/s while an index of {given.entries:,} entries is rebuilt")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in found.items():
        table.add_row(name, f"{value:,.2f}")
    Console().print(table)
    write_result("live", given.output, {"entries": given.entries, "rate": given.rate}, figures=found)


if __name__ == "__main__":
    main()
