"""The workloads of `benchmarks.index`, each to be run in a process of its own; prints its figures as JSON."""

import gc
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import psutil

from benchmarks.index_data import BASE_MS, PAYLOAD_BYTES, SPAN_MS, WIDTH_MS, payloads, position_of
from bridge.cli import garbage as collector
from tracker import EARLIEST, NewEntry, Position, Store, TopicIndex
from tracker.bulk.load import BulkLoad
from tracker.keys import encode_key

TOPIC = "persistent://public/default/index-benchmark"
SLICE = 500
DRAIN = 500
DAY_MS = 86_400_000

Figures = dict[str, float]


def slices(first: int, count: int, due_ms: Callable[[int], int]) -> Iterator[list[NewEntry]]:
    """Harvested slices of entries number `first` and on."""
    payload = payloads()
    for start in range(first, first + count, SLICE):
        yield [
            NewEntry(due_ms(number), *position_of(number), 1, next(payload))
            for number in range(start, min(start + SLICE, first + count))
        ]


def random_due(seed: int) -> Callable[[int], int]:
    choose = random.Random(seed)
    return lambda _: BASE_MS + choose.randrange(SPAN_MS)


@contextmanager
def group_sync(store: Store) -> Iterator[None]:
    """Sync every 20 ms in a thread, as the bridge does."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.02):
            store.sync()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        store.sync()


def add_all(index: TopicIndex, batches: Iterable[list[NewEntry]]) -> list[float]:
    """Add; return how long each slice took, in seconds."""
    took = []
    for batch in batches:
        started = time.perf_counter()
        index.add(batch, Position(batch[-1].ledger, batch[-1].entry))
        took.append(time.perf_counter() - started)
    return took


def drain(index: TopicIndex, name: str, now_ms: int, at_most: int) -> tuple[int, float]:
    """Hand out what is due; return how many entries, and the seconds it took."""
    view, count = index.view(name), 0
    started = time.perf_counter()
    while count < at_most and (due := index.due(view, now_ms, DRAIN)):
        count += len(due)
    return count, time.perf_counter() - started


def plain_puts(path: Path, batches: list[list[NewEntry]]) -> float:
    """What RocksDB alone does with the same entries and the same options, in seconds."""
    with Store.open(path) as store:
        family = store.open_topic(TOPIC)
        started = time.perf_counter()
        with group_sync(store):
            for entries in batches:
                batch = store.new_batch()
                for due, ledger, entry, _, raw in entries:
                    batch.put(encode_key(due, ledger, entry), raw, family.handle)
                store.write(batch)
        return time.perf_counter() - started


def add(path: Path, count: int) -> Figures:
    with Store.open(path) as store:
        index = TopicIndex(store, TOPIC)
        index.start_at(EARLIEST)
        index.view("a")
        batches = list(slices(0, count, random_due(1)))
        started = time.perf_counter()
        with group_sync(store):
            took = add_all(index, batches)
        seconds = time.perf_counter() - started
    took.sort()
    return {
        "add_per_s": count / seconds,
        "add_slice_p99_ms": took[len(took) * 99 // 100] * 1000,
        "add_over_plain_puts": plain_puts(path.with_name("plain"), batches) / seconds,
    }


def drain_both(path: Path, count: int) -> Figures:
    """Entries of ten hours, after a restart: read from disk, and read ahead into memory in turns."""
    span = 10 * 3_600_000
    choose = random.Random(2)
    with Store.open(path) as store:
        index = TopicIndex(store, TOPIC)
        index.start_at(EARLIEST)
        add_all(index, list(slices(0, count, lambda _: BASE_MS + choose.randrange(span))))
    with Store.open(path) as store:
        index = TopicIndex(store, TOPIC)
        got, seconds = drain(index, "disk", BASE_MS + span, count)
        assert got == count
        view = index.view("memory")
        view.active = True
        got, memory_seconds, now = 0, 0.0, BASE_MS
        while got < count:
            while index.prefetch(now, 1_000):
                pass
            now += WIDTH_MS // 5
            more, took = drain(index, "memory", now, count)
            got, memory_seconds = got + more, memory_seconds + took
            index.view("disk").active = False
    return {"drain_disk_per_s": count / seconds, "drain_memory_per_s": count / memory_seconds}


def resident() -> int:
    size: int = psutil.Process().memory_info().rss
    return size


def memory(path: Path, count: int) -> Figures:
    """Entries of the next ten minutes, read ahead into memory; then four more subscriptions."""
    choose = random.Random(3)
    with Store.open(path) as store:
        index = TopicIndex(store, TOPIC)
        index.start_at(EARLIEST)
        add_all(index, list(slices(0, count, lambda _: BASE_MS + choose.randrange(2 * WIDTH_MS))))
    with Store.open(path) as store:
        index = TopicIndex(store, TOPIC, near_term_bytes=2**40)
        first = index.view("0")
        first.active = True
        drain(index, "warm", BASE_MS + 10 * WIDTH_MS, count)  # RocksDB's cache and buffers take what they will take
        index.remove_view("warm")
        gc.collect()
        before = resident()
        while index.prefetch(BASE_MS, 1_000):
            pass
        assert len(index.window) == count
        held = resident() - before - count * (PAYLOAD_BYTES + 1)
        before = resident()
        for number in range(1, 5):
            index.view(str(number)).active = True
            index.next_due_ms(index.view(str(number)))
        further = (resident() - before) / 4
    return {"near_term_bytes": held / count, "subscription_bytes": further / count}


def instant(path: Path, count: int) -> Figures:
    """All entries due at one millisecond, more than the memory budget holds."""
    due_ms = BASE_MS
    with Store.open(path) as store:
        index = TopicIndex(store, TOPIC)
        index.start_at(EARLIEST)
        view = index.view("a")
        view.active = True
        while index.prefetch(due_ms - 1_000, 1_000):
            pass
        before = resident()
        add_all(index, slices(0, count, lambda _: due_ms))
        while index.prefetch(due_ms - 1_000, 1_000):
            pass
        assert not index.due(view, due_ms - 1, DRAIN)
        started = time.perf_counter()
        first = index.due(view, due_ms, DRAIN)
        first_ms = (time.perf_counter() - started) * 1000
        got, started, highest = len(first), time.perf_counter(), resident()
        while due := index.due(view, due_ms, DRAIN):
            got += len(due)
            for each in due:
                view.ack(each.ledger, each.entry)
            highest = max(highest, resident()) if got % 100_000 < DRAIN else highest
        acked = count / (time.perf_counter() - started)
        assert got == count
        _, seconds = drain(index, "b", due_ms, count)
    return {
        "instant_first_ms": first_ms,
        "instant_per_s": count / seconds,
        "instant_with_acks_per_s": acked,
        "instant_grown_mb": (highest - before) / 2**20,
    }


def bulk(path: Path, files: Path, rest_percent: int) -> Figures:
    """Load while another topic delivers 2,000 entries a second, in the same thread."""
    with Store.open(path) as store:
        load_index = TopicIndex(store, TOPIC)
        live = TopicIndex(store, TOPIC + "-live")
        live.start_at(EARLIEST)
        for name in ("a", "b", "c", "d", "e"):
            load_index.view(name)
        live.view("a").active = True
        rate, ahead_ms = 2_000, 60_000
        start_ms = time.time_ns() // 1_000_000 + 500
        count = rate * ahead_ms // 1000
        add_all(live, list(slices(0, count, lambda number: start_ms + number * 1000 // rate)))
        quiet = deliver(live, time.time_ns() // 1_000_000 + 5_000, iter(()))
        load_index.start_at(Position(*json.loads((files / "manifest.json").read_text())["upto"]))
        loading = BulkLoad(load_index.bulk, files, os.sched_yield)
        entries = loading.manifest.entries
        started = time.perf_counter()
        busy = deliver(live, 0, steps(loading, rest_percent / 100))
        seconds = time.perf_counter() - started
        loading.finish()
        load_index.persist_views()
        store.sync()
        assert load_index.entries == entries
    return {
        "bulk_per_s": entries / seconds,
        "bulk_p99_ms": busy,
        "bulk_quiet_p99_ms": quiet,
        "bulk_p99_ratio": busy / quiet,
    }


def steps(loading: BulkLoad, rests: float) -> Iterator[None]:
    """The load in steps, with rests in between; files are verified in a thread beside."""

    def beside(work: Callable[[], None]) -> Iterator[None]:
        thread = threading.Thread(target=work)
        thread.start()
        while thread.is_alive():
            yield
        thread.join()

    yield from beside(loading.verify_positions)
    loading.load_positions()
    rested = 0.0
    for number, group in loading.groups():
        yield from beside(lambda group=group: loading.verify(group))  # type: ignore[misc]
        while time.perf_counter() < rested:
            yield
        for rest_s in loading.load_in_steps(number, group, time.perf_counter):
            rested = time.perf_counter() + rests * rest_s
            yield


def deliver(index: TopicIndex, until_ms: int, work: Iterator[None]) -> float:
    """Hand out what comes due until a time or the end of the work; return the P99 of the lateness in ms."""
    view, late = index.view("a"), []
    while index.due(view, time.time_ns() // 1_000_000, DRAIN):
        pass  # what came due while nobody was here
    while True:
        now = time.time_ns() / 1e6
        if until_ms and now > until_ms:
            break
        for due in index.due(view, int(now), DRAIN):
            late.append(now - due.deliver_at_ms)
            view.ack(due.ledger, due.entry)
        index.prefetch(int(now), 1_000)
        if not until_ms and next(work, "end") == "end":
            break
        time.sleep(0.0005)
    late.sort()
    return late[len(late) * 99 // 100] if late else 0.0


def disk(path: Path, count: int) -> Figures:
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return {"disk_overhead_bytes": size / count - PAYLOAD_BYTES}


def add_for_ever(path: Path) -> Figures:
    """To be killed."""
    with Store.open(path) as store:
        index = TopicIndex(store, TOPIC)
        assert index.harvested_position is not None
        ledger = index.harvested_position.ledger + 1
        batches = slices((ledger - 10) * 50_000, 10**9, random_due(4))
        with group_sync(store):
            print("adding", flush=True)
            for batch in batches:
                index.add(batch, Position(batch[-1].ledger, batch[-1].entry))
    return {}


def open_again(path: Path) -> Figures:
    started = time.perf_counter()
    store = Store.open(path)
    index = TopicIndex(store, TOPIC)
    due = index.due(index.view("a"), BASE_MS + SPAN_MS // 1000, 1)
    seconds = time.perf_counter() - started
    assert due
    store.close()
    return {"open_s": seconds}


def large_resident(path: Path, count: int) -> Figures:
    with Store.open(path) as store:
        index = TopicIndex(store, TOPIC)
        assert index.harvested_position is not None
        for name in index.views():
            index.view(name).active = True
        opened = resident()
        first = (index.harvested_position.ledger + 1 - 10) * 50_000
        with group_sync(store):
            for batch in slices(first, count, random_due(5)):
                index.add(batch, Position(batch[-1].ledger, batch[-1].entry))
        added = resident()
        view, got, now = index.view("a"), 0, BASE_MS
        while got < count:
            index.prefetch(now, 1_000)
            due = index.due(view, now, DRAIN)
            got += len(due)
            now += 0 if due else 60_000
            for each in due:
                view.ack(each.ledger, each.entry)
        index.persist_views()
        highest = psutil.Process().memory_info().rss
        peak = int(
            next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line).split()[1]
        )
    noise = 64  # the benchmark's own store of random bytes
    return {
        "resident_open_mb": opened / 2**20,
        "resident_added_mb": added / 2**20 - noise,
        "resident_drained_mb": highest / 2**20 - noise,
        "resident_mb": peak / 1024 - noise,
    }


def large_counts(path: Path) -> Figures:
    with Store.open(path) as store:
        index = TopicIndex(store, TOPIC)
        while index.settle(1_000):
            pass

        def timed(work: Callable[[], object]) -> float:
            """The first and slowest of several, in ms."""
            took = []
            for _ in range(7):
                started = time.perf_counter()
                work()
                took.append((time.perf_counter() - started) * 1000)
            return max(took)

        view = index.view("a")
        step = SPAN_MS // 288
        return {
            "counts_ms": timed(lambda: [index.counts.pending(each) for each in index.views().values()]),
            "histogram_ms": timed(lambda: list(index.counts.histogram(BASE_MS, step, 288, None))),
            "view_histogram_ms": timed(lambda: list(index.counts.histogram(BASE_MS, step, 288, view))),
            "partitions": len(index.table),
            "partition_table_ms": timed(lambda: list(islice(index.partitions(BASE_MS), 10**6))),
        }


WORKLOADS: dict[str, Callable[..., Figures]] = {
    "add": add,
    "drain": drain_both,
    "memory": memory,
    "instant": instant,
    "bulk": bulk,
    "large-disk": disk,
    "add-for-ever": add_for_ever,
    "large-open": open_again,
    "large-resident": large_resident,
    "large-counts": large_counts,
}


def main() -> None:
    name, path, *rest = sys.argv[1:]
    collector.keep_away()  # as the bridge does
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(json.dumps(WORKLOADS[name](Path(path), *(Path(each) if "/" in each else int(each) for each in rest))))


if __name__ == "__main__":
    main()
