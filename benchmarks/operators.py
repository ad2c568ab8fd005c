"""What operators see, while it matters: how long pages, REST and a scrape take, and what they do to deliveries.

`python -m benchmarks.operators` makes an index of 100 million pending entries over two years and 499 small ones, serves
them as a bridge does, and asks from another process; then it sends live messages through a bridge in front of a real
broker, with and without somebody who asks for everything each second. Needs 16 GB of disk for 100 million.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pulsar
from aiohttp import web
from rich.console import Console

from benchmarks import index_data, live_rebuild
from benchmarks.index_data import Spread, manifest_of, write_part
from benchmarks.recorded import write_result
from bridge.app import Bridge
from bridge.clock import system_randbits, wall_clock_ms
from bridge.config import Settings
from bridge.core import Core
from bridge.dispatch.outlet import Source
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.embedded.pulsar import EmbeddedPulsar
from bridge.intake.feed import Feed
from bridge.intake.tail_buffer import TailBuffer
from bridge.ledgers.cursor_history import UNKNOWN, CursorReading
from bridge.limits import Limits
from bridge.net.tasks import Tasks
from bridge.topics.tracked_topic import TrackedTopic
from bridge.web.pages.rendering import load_templates
from bridge.web.server import build_web_app
from tracker import AckSet, NewEntry, Position, Store, SubscriptionView, TopicIndex
from tracker.bulk.load import BulkLoad

TOPICS = 500
LIMITS = Limits()
SMALL = 1_000
SUBSCRIPTIONS = ("orders", "mail")
BIG = "persistent://public/default/big"
REST = "/admin/v2/delayed"
PATHS = {
    "overview page": "/",
    "topic page": "/topic/public/default/big",
    "metrics": "/metrics",
    "overview": f"{REST}/overview",
    "topics": f"{REST}/topics?limit=100&sort=pending&order=desc",
    "stats": f"{REST}/persistent/public/default/big/stats",
    "chart": f"{REST}/persistent/public/default/big/partitions/chart?subscription=orders",
    "pending": f"{REST}/persistent/public/default/big/subscription/orders/pending?limit=50",
}
Figures = dict[str, float]

_ASK = """
import json, sys, time, urllib.request
found = {}
for name, url in json.loads(sys.argv[1]).items():
    times = []
    for _ in range(int(sys.argv[2])):
        start = time.perf_counter()
        with urllib.request.urlopen(url, timeout=60) as answer:
            answer.read()
        times.append(1000 * (time.perf_counter() - start))
    found[name] = sorted(times)
print(json.dumps(found))
"""


def make_files(folder: Path, size: int, base_ms: int) -> None:
    """Written by as many processes as there are processors."""
    parts = (os.cpu_count() or 1) * 4
    with ProcessPoolExecutor() as pool:
        made = list(pool.map(_part, [folder] * parts, [size] * parts, [base_ms] * parts, range(parts), [parts] * parts))
    manifest_of(BIG, Spread(size), made).write(folder)


def _part(folder: Path, size: int, base_ms: int, part: int, parts: int) -> Any:
    return write_part(folder, BIG, Spread(size, base_ms), part, parts)


def make_topics(store: Store, files: Path, size: int, now_ms: int) -> list[TrackedTopic]:
    """Topics as an owner has them, but for the broker."""
    context = cast(Any, SimpleNamespace(now_ms=wall_clock_ms, admin=None, limits=LIMITS, randbits=system_randbits))
    topics = []
    for number in range(TOPICS):
        name = BIG if number == 0 else f"persistent://public/default/small-{number}"
        topic = TrackedTopic(name, context)
        topic.role, topic.owner = "owner", "pulsar://here:6650"
        index = topic.kept.index = TopicIndex(store, name, partition_width_ms=index_data.WIDTH_MS)
        if number == 0:
            index.start_at(Spread(size).last_position())
            BulkLoad(index.bulk, files).load_all()
        else:
            index.start_at(Position(1, -1))
            entries = [NewEntry(now_ms + 60_000 * each, 1, each, 1, bytes(128)) for each in range(SMALL)]
            index.add(entries, Position(1, SMALL - 1))
        for subscription_name in SUBSCRIPTIONS:
            subscription = TrackedSubscription(subscription_name, name, lambda: None, LIMITS.dispatch)
            start(subscription, index, now_ms)
            subscription.stats.first_delivery(range(now_ms - 500, now_ms), now_ms)
            topic.subscriptions[subscription_name] = subscription
        while index.prefetch(now_ms, 500):
            pass
        while index.settle(1_000):
            pass
        topics.append(topic)
    return topics


def start(subscription: TrackedSubscription, index: TopicIndex, now_ms: int) -> None:
    """With a cursor at the beginning, and nothing to read behind it."""
    begin = Position(0, 0)
    tail = TailBuffer(begin, LIMITS.intake.tail_buffer_bytes, LIMITS.intake.tail_buffer_entries)
    tasks = Tasks(print)
    source = Source(index, tail, cast(Any, None), tasks)
    reading = CursorReading(AckSet(begin), UNKNOWN, False)

    def make_feed(view: SubscriptionView) -> Feed:
        return Feed(begin, view.acks, tail, cast(Any, None), lambda: None, tasks, LIMITS.intake)

    subscription.start(source, reading, make_feed, now_ms)


async def ask_all(topics: list[TrackedTopic], folder: Path, rounds: int) -> Figures:
    """Times of another process, and the longest time that the event loop was kept meanwhile."""
    settings = Settings(broker_service_url="pulsar://b:1", broker_web_url="http://b:1", data_dir=folder)
    bridge = Bridge(settings, LIMITS)
    known = {topic.topic: topic for topic in topics}
    shown = SimpleNamespace(all=lambda: topics, get=known.get, storage_failure=None)
    readiness = SimpleNamespace(reason=None)
    bridge._core = cast(Core, SimpleNamespace(topics=shown, gateway=None, readiness=readiness))
    await asyncio.to_thread(load_templates)
    runner = web.AppRunner(build_web_app(bridge), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    urls = {name: f"http://127.0.0.1:{port}{path}" for name, path in PATHS.items()}
    figures: Figures = {}
    for name, url in urls.items():
        figures |= await _ask(name, url, rounds)
    for topic in topics[1:]:
        topic.subscriptions.pop(SUBSCRIPTIONS[1])
        assert topic.index is not None
        topic.index.remove_view(SUBSCRIPTIONS[1])
    figures |= await _ask("metrics, one subscription a topic", urls["metrics"], rounds)
    await runner.cleanup()
    return figures


async def _ask(name: str, url: str, rounds: int) -> Figures:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _ASK, json.dumps({name: url}), str(rounds), stdout=subprocess.PIPE
    )
    gaps = asyncio.create_task(_gaps())
    out, _ = await process.communicate()
    gaps.cancel()
    times = json.loads(out)[name]
    return {
        f"{name}: median ms": statistics.median(times),
        f"{name}: worst ms": times[-1],
        f"{name}: longest slice ms": await _result_of(gaps),
    }


async def _gaps() -> float:
    """Until cancelled: the longest time between two turns of the event loop, in ms."""
    longest, last = 0.0, time.perf_counter()
    try:
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, 1000 * (now - last)), now
    except asyncio.CancelledError:
        return longest


async def _result_of(task: "asyncio.Task[float]") -> float:
    return await task


def beside_load(rate: int, seconds: float, folder: Path) -> Figures:
    """Live messages, with nobody asking and with somebody, in turn and twice, so that both see the same weather."""
    figures: Figures = {}
    with EmbeddedPulsar(folder / "pulsar") as broker:
        bridge = live_rebuild.Bridge(broker, folder / "bridge")
        bridge.start()
        client = pulsar.Client(bridge.service_url)
        traffic = live_rebuild.Traffic(client, rate)
        try:
            traffic.start()
            time.sleep(8)
            found: dict[str, list[float]] = {"alone": [], "asked": []}
            for _ in range(2):
                for kind, asked in (("alone", False), ("asked", True)):
                    start = live_rebuild.wall_ms()
                    _ask_each_second(bridge.web_port, seconds, asked)
                    late = live_rebuild.between(traffic.late, start, live_rebuild.wall_ms())
                    found[kind].append(late[1])
            figures["P99 alone, ms"] = min(found["alone"])
            figures["P99 while asked, ms"] = min(found["asked"])
            figures["ratio"] = min(found["asked"]) / max(min(found["alone"]), 0.001)
        finally:
            traffic.stop()
            client.close()
            bridge.stop()
    return figures


def _ask_each_second(port: int, seconds: float, asked: bool) -> None:
    live = live_rebuild.TOPIC.removeprefix("persistent://")
    paths = ("/", f"/topic/{live}", "/metrics", f"{REST}/overview", f"{REST}/persistent/{live}/partitions/chart")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for path in paths if asked else ():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                answer.read()
        time.sleep(1)


def run(entries: int, rounds: int, folder: Path, console: Console) -> Figures:
    now_ms = wall_clock_ms()
    files = folder / "files"
    files.mkdir()
    console.print(f"writing {entries:,} entries")
    make_files(files, entries, now_ms)

    async def serve() -> Figures:
        with Store.open(folder / "data") as store:
            return await ask_all(make_topics(store, files, entries, now_ms), folder, rounds)

    return {"entries": entries, "topics": TOPICS} | asyncio.run(serve())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operators", description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000_000, help="pending in the largest topic")
    parser.add_argument("--rounds", type=int, default=30, help="how often each is asked for")
    parser.add_argument("--rate", type=int, default=2_000, help="live messages a second")
    parser.add_argument("--seconds", type=float, default=20, help="of each measurement beside load")
    parser.add_argument("--directory", type=Path, help="where the data goes, default: temporary")
    parser.add_argument("--only", choices=("answers", "load"), help="a part of it")
    parser.add_argument("--output", type=Path, help="file for the result, default: DATE-operators.json in the results")
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        figures: Figures = {}
        if options.only != "load":
            figures |= run(options.entries, options.rounds, Path(name), console)
        if options.only != "answers":
            figures |= beside_load(options.rate, options.seconds, Path(name))
    for name, value in figures.items():
        console.print(f"{name:40} {value:14,.2f}")
    about = {"entries": options.entries, "rate": options.rate}
    console.print(f"written to {write_result('operators', options.output, about, figures=figures)}")


if __name__ == "__main__":
    main()
