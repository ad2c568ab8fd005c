"""One worker against two on one host: `python -m benchmarks.workers`.

Starts a real Pulsar, and `serve` with one worker and with two in turn. Messages of many topics come due at one instant;
processes with the official client consume them. Taken is how long that lasts, and the processor time that each worker,
the broker and the consumers take for it: where broker and clients fill the machine, the rate cannot grow, and what the
busiest worker takes tells what it could be. Prints medians and ratios, and writes them below `benchmarks/results/`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pulsar
from rich.console import Console
from rich.table import Table

from benchmarks.recorded import write_result
from benchmarks.takeover import until
from bridge.embedded.pulsar import EmbeddedPulsar
from bridge.showcase.side_by_side import Figures, Runs, free_port, medians, wait_ready

TOPICS = 20
CONSUMERS = 2
"""Processes, each with a part of the topics."""
LEAD_S = 15.0
QUIET = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)


@contextmanager
def bridges(broker: EmbeddedPulsar, folder: Path, workers: int) -> Iterator[tuple[str, str, psutil.Process]]:
    """Service URL, web URL, and the process that looks after the workers, or is the only one."""
    port, web_port = free_port(), free_port()
    options = {
        "BROKER_SERVICE_URL": broker.service_url,
        "BROKER_WEB_URL": broker.web_url,
        "DATA_DIR": str(folder),
        "PORT": str(port),
        "WEB_PORT": str(web_port),
        "WORKERS": str(workers),
        "WORKER_PORT": "0",
        "ADVERTISED_ADDRESS": "127.0.0.1",
        "LOG_LEVEL": "error",
        "STANDBY_COUNT": "0",
    }
    environment = {f"DELAY_BRIDGE_{name}": value for name, value in options.items()}
    process = subprocess.Popen([sys.executable, "-m", "bridge", "serve"], env={**os.environ, **environment})
    try:
        wait_ready(process, f"http://127.0.0.1:{web_port}/readyz")
        yield f"pulsar://127.0.0.1:{port}", f"http://127.0.0.1:{web_port}", psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(60)


def consume(url: str, topics: list[str], each: int) -> None:
    """In a process of its own: says `ready`, then when the last one came."""
    client = pulsar.Client(url, logger=QUIET)
    left = [each * len(topics)]
    over = threading.Event()

    def on_message(consumer: Any, message: Any) -> None:
        consumer.acknowledge(message)
        left[0] -= 1
        if left[0] <= 0:
            over.set()

    for topic in topics:
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared, message_listener=on_message)
    print("ready", flush=True)
    over.wait()
    print(time.time(), flush=True)
    sys.stdin.read()  # its processor time is asked for first
    client.close()


def cpu_s(processes: list[psutil.Process]) -> list[float]:
    return [sum(process.cpu_times()[:2]) for process in processes]


def measure(broker: EmbeddedPulsar, folder: Path, workers: int, each: int) -> Figures:
    topics = [f"persistent://public/default/workers-{time.time_ns()}-{number}" for number in range(TOPICS)]
    with bridges(broker, folder, workers) as (url, web_url, parent):
        began = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.workers", "--consume", url, "--each", str(each), *some],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for some in (topics[number::CONSUMERS] for number in range(CONSUMERS))
        ]
        for one in began:
            assert one.stdout is not None
            assert one.stdout.readline() == "ready\n"
        until(lambda: is_even(web_url, workers), "even shares")
        due_ms = int((time.time() + LEAD_S) * 1000)
        publish(broker, topics, each, due_ms)
        assert time.time() * 1000 < due_ms, "published too late: take fewer"
        children = parent.children() or [parent]
        assert broker.pid is not None
        others = [psutil.Process(broker.pid), *(psutil.Process(one.pid) for one in began)]
        time.sleep(max(due_ms / 1000 - time.time() - 0.2, 0))
        before = cpu_s([*children, *others])
        ended = [float(one.stdout.readline()) for one in began if one.stdout is not None]
        after = cpu_s([*children, *others])
        for one in began:
            one.communicate("")
    took = [b - a for a, b in zip(before, after, strict=True)]
    messages = TOPICS * each
    bridge, rest = took[: len(children)], took[len(children) :]
    return {
        "rate": messages / (max(ended) - due_ms / 1000),
        "worker_bound_rate": messages / max(bridge),
        "bridge_us": sum(bridge) / messages * 1e6,
        "broker_us": rest[0] / messages * 1e6,
        "consumers_us": sum(rest[1:]) / messages * 1e6,
    }


def is_even(web_url: str, workers: int) -> bool:
    """Whether each worker has as many topics."""
    try:
        with urllib.request.urlopen(f"{web_url}/admin/v2/delayed/members", timeout=5) as answer:
            owned = [each["owned"] for each in json.load(answer)["members"]]
    except OSError:
        return False
    return owned == [TOPICS // workers] * workers


def publish(broker: EmbeddedPulsar, topics: list[str], each: int, due_ms: int) -> None:
    client = pulsar.Client(broker.service_url, logger=QUIET)
    for topic in topics:
        producer = client.create_producer(topic, block_if_queue_full=True, max_pending_messages=10_000)
        for number in range(each):
            producer.send_async(b"x" * 100, lambda *_: None, deliver_at=due_ms, sequence_id=number)
        producer.flush()
    client.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.workers", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--each", type=int, default=5_000, help="messages of each topic")
    parser.add_argument("--consume", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("topics", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    if given.consume:
        consume(given.consume, given.topics, given.each)
        return 0
    console = Console(width=110)
    found: Runs = {"1": [], "2": []}
    with EmbeddedPulsar(progress=False) as broker, tempfile.TemporaryDirectory() as folder:
        for number in range(given.runs):
            for workers in (1, 2) if number % 2 == 0 else (2, 1):
                figures = measure(broker, Path(folder) / f"{number}-{workers}", workers, given.each)
                found[str(workers)].append(figures)
                console.log(workers, {name: round(value, 1) for name, value in figures.items()})
    one, two = medians(found["1"]), medians(found["2"])
    table = Table(title=f"{TOPICS} topics, {TOPICS * given.each:,} messages due at once, {given.runs} runs, medians")
    for column in ("", "1 worker", "2 workers", "ratio"):
        table.add_column(column, justify="left" if not column else "right")
    for name in one:
        table.add_row(name, f"{one[name]:,.1f}", f"{two[name]:,.1f}", f"{two[name] / one[name]:.2f}")
    console.print(table)
    written = write_result("workers", given.output, {"each": given.each, "topics": TOPICS}, runs=found)
    console.print(f"written: {written.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
