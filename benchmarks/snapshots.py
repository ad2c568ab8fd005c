"""What a snapshot is worth when an owner and its disk are lost: `python -m benchmarks.snapshots`.

Starts a real Pulsar and bridges without standbys. One topic holds many pending messages, some of which come due all the
while. The owner takes a snapshot, then more is published; the owner is killed (SIGKILL), its disk wiped, and another
bridge, which runs already, takes over with that snapshot. Then that one is killed too, and one takes over without, that
reads the topic itself (no Spark). Taken are the times from the kill to the first message that was pending before, and
to the whole index.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import pulsar
from rich.console import Console
from rich.table import Table

from benchmarks.recorded import write_result
from benchmarks.takeover import FAR_MS, TOPIC, Arrivals, Node, Traffic, until
from bridge.embedded.pulsar import EmbeddedPulsar

PROBES = 20_000
PROBE_EVERY_MS = 50
"""Messages that come due one after the other, all published before the snapshot."""
MARGIN_MS = 120_000
"""Probes due so long after a kill are in the whole index for certain, as long as it is waited for."""


def probes(broker: EmbeddedPulsar) -> dict[str, int]:
    """Publish them; return their due times."""
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(TOPIC, max_pending_messages=50_000, block_if_queue_full=True)
    first_ms = int(time.time() * 1000) + 10_000
    due = {f"p{number}": first_ms + number * PROBE_EVERY_MS for number in range(PROBES)}
    for name, due_ms in due.items():
        producer.send_async(f"{name} {due_ms}".encode(), lambda *_: None, deliver_at=due_ms)
    producer.flush()
    client.close()
    return due


def stats(node: Node) -> dict[str, Any]:
    url = f"http://127.0.0.1:{node.web_port}/admin/v2/delayed/{TOPIC.replace('://', '/')}/stats"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return dict(json.load(answer))
    except OSError:
        return {}


def taken_over(
    owner: Node, folder: Path, other: Node, urls: list[Node], due: dict[str, int], far: int
) -> dict[str, Any]:
    """Kill the owner and wipe its disk; return what the other one took, in seconds."""
    arrivals = Arrivals("pulsar://" + ",".join(f"127.0.0.1:{node.port}" for node in urls))
    try:
        until(lambda: len(arrivals.at_s) > 20, "messages come")
        other.start()  # not before: a client that comes to it first would have it own a topic that was let go of
        rows = owner.row(), other.row()
        if rows[0].get("role") != "owner" or rows[1].get("role") == "owner" or rows[1].get("entries"):
            raise SystemExit(f"the other one is not to have anything before the kill: {rows}")
        lateness_ms = rows[0].get("latenessP99Ms")
        killed_s, killed_ms = time.monotonic(), time.time() * 1000
        owner.end(signal.SIGKILL)
        owner.wait()
        shutil.rmtree(folder)
        # Due since the kill: what came due before may be in the client's queue.
        since = [name for name, due_ms in due.items() if killed_ms < due_ms < killed_ms + MARGIN_MS]
        until(lambda: any(name in arrivals.counts for name in since), "the first message")
        first_s = time.monotonic() - killed_s
        whole = far + sum(due_ms > killed_ms + MARGIN_MS for due_ms in due.values())
        until(lambda: (other.row().get("entries") or 0) >= whole, "the whole index", other.row)
        whole_s = time.monotonic() - killed_s
        until(
            lambda: set(past(due)) <= set(arrivals.counts) | arrivals_before,
            "what was due has come",
            lambda: sorted(set(past(due)) - set(arrivals.counts) - arrivals_before)[:10],
        )
        return {
            "first_s": round(first_s, 2),
            "whole_s": round(whole_s, 2),
            "early": arrivals.early,
            "lateness_p99_before_ms": lateness_ms,
        }
    finally:
        arrivals.close()
        arrivals_before.update(arrivals.counts)  # what came until it was closed is acked


arrivals_before: set[str] = set()
"""Names of what consumers got so far."""


def past(due: dict[str, int]) -> list[str]:
    now_ms = time.time() * 1000 - 1_000
    return [name for name, due_ms in due.items() if due_ms < now_ms]


def run(broker: EmbeddedPulsar, folder: Path, pending: int, more: int) -> dict[str, Any]:
    shared, frozen = folder / "shared", folder / "an-hour-ago"
    shared.mkdir()
    usual: dict[str, Any] = {"members_topic": "off", "rebuild_from_entries": 0}
    first = Node(broker, folder / "a", 0, snapshot_dir=shared, snapshot_interval_ms="20s", **usual)
    second = Node(broker, folder / "b", 0, snapshot_dir=frozen, **usual)
    third = Node(broker, folder / "c", 0, **usual)
    nodes = [first, second, third]
    try:
        first.start()
        arrivals = Arrivals(f"pulsar://127.0.0.1:{first.port}")
        try:
            traffic = Traffic(broker, 0)
            traffic.fill(pending)
            due = probes(broker)
            until(lambda: (stats(first).get("snapshot") or {}).get("entries", 0) >= pending + PROBES // 2, "a snapshot")
            told = stats(first)["snapshot"]
            shutil.copytree(shared, frozen)
            traffic.fill(more)
            traffic.close()
            until(lambda: (first.row().get("entries") or 0) >= pending + more, "all harvested")
        finally:
            arrivals.close()
            arrivals_before.update(arrivals.counts)
        print(f"snapshot: {told}", file=sys.stderr, flush=True)
        with_it = taken_over(first, folder / "a", second, [first, second], due, pending + more)
        print(f"with: {with_it}", file=sys.stderr, flush=True)
        without = taken_over(second, folder / "b", third, [second, third], due, pending + more)
    finally:
        for node in nodes:
            if not node.is_over():
                node.end(signal.SIGTERM)
                node.wait()
    return {"with": with_it, "without": without, "snapshot": told}


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.snapshots", description=__doc__)
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--more", type=int, default=20_000, help="published between the snapshot and the kill")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    with EmbeddedPulsar(progress=False, start_timeout=300.0) as broker, tempfile.TemporaryDirectory() as folder:
        found = run(broker, Path(folder), given.pending, given.more)
    table = Table(title=f"{given.pending:,} pending at the snapshot, {given.more:,} since")
    for column in ("takeover", "first due message", "whole index"):
        table.add_column(column, justify="left" if column == "takeover" else "right")
    for how in ("with", "without"):
        table.add_row(f"{how} snapshot", f"{found[how]['first_s']:.1f} s", f"{found[how]['whole_s']:.1f} s")
    console = Console(width=100)
    console.print(table)
    console.print(f"the snapshot: {found['snapshot']['entries']:,} entries, {found['snapshot']['size']:,} bytes")
    about = {"pending": given.pending, "more": given.more, "far_ms": FAR_MS}
    console.print(f"written: {write_result('snapshots', given.output, about, **found).name}")
    return int(found["with"]["early"] + found["without"]["early"] > 0)


if __name__ == "__main__":
    sys.exit(main())
