"""Works on an index until it kills itself at a write boundary, and says what it does, line by line.

An operation that writes is announced before (`do`) and confirmed after (`ok`); what only changes memory is told
afterwards. What it does depends on its arguments and on what is on disk, nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import zlib
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from tracker import AckSet, NewEntry, Position, Store, SubscriptionView, TopicIndex
from tracker.bulk.load import BulkLoad
from tracker.limits import BulkFileLimits, IndexLimits, StoreLimits

TOPIC = "persistent://public/default/killed"
OTHER = "persistent://public/default/other"
WIDTH_MS = 100
SPAN_MS = 60_000
MAX_MS = 2**63 - 1
LEDGER_ENTRIES = 600
LOADS = 4
LOAD_NUMBERS = 150
BULK_END = LOADS * LOAD_NUMBERS
"""Positions are numbered: below this they come by bulk load, from here to START by backfill, then by harvesting."""
START = 1_000
VIEWS = ("a", "b", "c")
OPERATIONS_MAX = 400
"""So many and the kill comes at the next boundary, whichever it is."""
EXPEDITED_MAX = 10
DUE_MIN = 20
"""More than can be expedited: after a call to `due` none waits."""
SMALL_STORE = StoreLimits(write_buffer_bytes=64 * 1024)
SMALL_INDEX = IndexLimits(
    journal_entries=20,
    journal_pages=2,
    bulk_step_partitions=20,
    late_keys_max=20,
    drop_examined_max=100,
    settle_blocks=2,
)
SMALL_FILES = BulkFileLimits(
    bulk_file_bytes=6_000, bulk_file_max_bytes=6_000, bulk_write_entries=10, bulk_group_partitions=60
)


def position_at(number: int) -> Position:
    return Position(1 + number // LEDGER_ENTRIES, number % LEDGER_ENTRIES)


def number_at(position: tuple[int, int]) -> int:
    """Return the number of a position, -1 for one before the first."""
    return max(-1, (position[0] - 1) * LEDGER_ENTRIES + position[1])


def numbers_of_load(load: int) -> range:
    """Return what a bulk load holds. The first holds the highest: a load must not lie around entries that are there."""
    return range(BULK_END - (load + 1) * LOAD_NUMBERS, BULK_END - load * LOAD_NUMBERS)


class Universe:
    """All messages of a topic, made from a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.entry = lru_cache(maxsize=None)(self._entry)

    def entries(self, numbers: range) -> list[NewEntry]:
        """Return the delayed ones."""
        return [entry for number in numbers if (entry := self.entry(number)) is not None]

    def numbers(self, numbers: range) -> set[int]:
        """Return the numbers of the delayed ones."""
        return {number for number in numbers if self.entry(number) is not None}

    def due_ms(self, number: int) -> int:
        entry = self.entry(number)
        assert entry is not None
        return entry.deliver_at_ms

    def _entry(self, number: int) -> NewEntry | None:
        choose = random.Random(f"{self.seed}:{number}")
        if choose.random() < 0.2:
            return None
        due = choose.choices(
            [0, MAX_MS, choose.randrange(0, SPAN_MS, 5_000), choose.randrange(SPAN_MS)], [1, 1, 4, 14]
        )[0]
        raw = f"{self.seed}:{number}:".encode() + choose.randbytes(choose.choice([0, 30, 120, 400]))
        return NewEntry(due, *position_at(number), 1 + number % 3, raw)


def open_index(store: Store, topic: str = TOPIC) -> TopicIndex:
    return TopicIndex(
        store, topic, partition_width_ms=WIDTH_MS, near_term_bytes=30_000, horizon_ms=5_000, limits=SMALL_INDEX
    )


def say(**line: Any) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


def log_sizes(data: Path) -> dict[str, int]:
    """Return the lengths of the write-ahead logs; RocksDB may be deleting old ones."""
    sizes = {}
    for log in data.glob("*.log"):
        with contextlib.suppress(FileNotFoundError):
            sizes[log.name] = log.stat().st_size
    return sizes


class Killer:
    """Ends the process at the n-th boundary of a kind, or of any, or of any from the start of an operation."""

    def __init__(self, data: Path, kind: str, count: int) -> None:
        self._data = data
        self._kind = kind
        self._left = count

    def started(self, operation: str) -> None:
        if self._kind == operation:
            self._kind = "any"

    def hurry(self) -> None:
        """Take the next boundary."""
        self._kind, self._left = "any", 1

    def __call__(self, boundary: str) -> None:
        if boundary == "after sync":
            say(synced=True)
        if self._kind in ("any", boundary):
            self._left -= 1
            if not self._left:
                say(killed=boundary)
                os.kill(os.getpid(), signal.SIGKILL)


class NotingDatabase:
    """Tells which part of the log is durable: what the database was really asked to sync, whatever the store says."""

    def __init__(self, database: Any, data: Path) -> None:
        self._database = database
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def flush_wal(self, sync: bool) -> None:
        self._database.flush_wal(sync)
        if sync:
            say(durable=log_sizes(self._data))


class Worker:
    """Does random things to an index."""

    def __init__(self, store: Store, killer: Killer, seed: int, cycle: int, loads: list[Path]) -> None:
        self.store = store
        self.killer = killer
        self.choose = random.Random(f"{seed}:{cycle}")
        self.universe = Universe(seed)
        self.loads = loads
        self.index = open_index(store)
        self.other = open_index(store, OTHER) if OTHER in store.topics() else None
        if self.index.harvested_position is None:
            self.do("start", lambda: self.index.start_at(position_at(START - 1)))

    @property
    def harvested(self) -> int:
        assert self.index.harvested_position is not None
        return number_at(self.index.harvested_position)

    def do(self, what: str, action: Callable[[], Any], /, **about: Any) -> None:
        say(do=what, **about)
        self.killer.started(what)
        say(ok=action())

    def work(self) -> None:
        operations: list[tuple[int, Callable[[], None]]] = [
            (14, self.add),
            (5, self.backfill),
            (12, self.due),
            (4, self.drain),
            (5, self.ack_anything),
            (2, self.advance),
            (1, self.reset),
            (4, self.deliver_now),
            (8, self.persist),
            (6, self.sync),
            (6, self.drop),
            (6, self.prefetch),
            (4, self.settle),
            (4, self.create_view),
            (1, self.remove_view),
            (4, self.load_some),
            (1, self.abandon),
            (4, self.change_other),
        ]
        weights = [weight for weight, _ in operations]
        self.create_view()
        for _ in range(OPERATIONS_MAX):
            self.choose.choices([operation for _, operation in operations], weights)[0]()

    def some_time(self) -> int:
        return self.choose.choice([self.choose.randrange(SPAN_MS // 2), self.choose.randrange(SPAN_MS), MAX_MS])

    # --- filling

    def add(self) -> None:
        harvested = self.harvested
        upto = harvested + self.choose.choice([1, 5, 10, 20, 40, 120])
        first = max(START, harvested + 1 - self.choose.randrange(3))  # what is known already is passed over
        entries = self.universe.entries(range(first, upto + 1))
        self.do("add", lambda: self.index.add(entries, position_at(upto)), upto=upto)

    def backfill(self) -> None:
        assert self.index.floor is not None
        floor, length = number_at(self.index.floor), self.choose.randint(20, 80)
        high = floor if self.choose.random() < 0.5 else self.choose.randint(BULK_END, self.harvested)
        low = max(BULK_END - 1, high - length)
        if low >= high:
            return
        entries = self.universe.entries(range(low + 1, high + 1))
        self.do("backfill", lambda: self.index.backfill(entries), low=low, high=high)
        if high >= floor:
            self.do("lower", lambda: number_at(self.index.lower_floor(position_at(low))), to=low)

    # --- reading and acks

    def some_view(self) -> SubscriptionView | None:
        views = self.index.views()
        return views[self.choose.choice(sorted(views))] if views else None

    def take(self, view: SubscriptionView, now: int, limit: int) -> int:
        found = self.index.due(view, now, limit)
        entries = [[number_at(due[2:4]), due.deliver_at_ms, zlib.crc32(due.raw)] for due in found]
        say(handed=view.name, now=now, entries=entries)
        return len(found)

    def ack(self, view: SubscriptionView, numbers: list[int]) -> None:
        for number in numbers:
            view.ack(*position_at(number))
        say(acked=view.name, numbers=numbers)

    def due(self) -> None:
        view = self.some_view()
        if view is not None:
            self.take(view, self.some_time(), self.choose.randint(DUE_MIN, 60))
            self.ack(view, [number_at(at) for at in sorted(view.outstanding) if self.choose.random() < 0.8])

    def drain(self) -> None:
        view, now = self.some_view(), self.some_time()
        if view is None:
            return
        while self.take(view, now, 60) or ((due := self.index.next_due_ms(view)) is not None and due <= now):
            self.ack(view, [number_at(at) for at in sorted(view.outstanding)])
        self.drop(now)

    def ack_anything(self) -> None:
        view = self.some_view()
        if view is not None:
            self.ack(view, [self.choose.randrange(self.harvested + 50) for _ in range(self.choose.randint(1, 8))])

    def advance(self) -> None:
        view = self.some_view()
        if view is not None:
            mark = number_at(view.mark_delete_position)
            to = min(mark + self.choose.choice([1, 30, 200]), self.harvested)
            view.advance(position_at(to))
            say(advanced=view.name, to=to)

    def reset(self) -> None:
        view = self.some_view()
        if view is None:
            return
        mark = self.choose.randrange(-1, START)
        singles = [mark + 1 + self.choose.randint(1, 300) for _ in range(self.choose.randrange(5))]
        acks = AckSet(position_at(mark))
        for number in singles:
            acks.add(*position_at(number))
        view.reset(acks)
        say(reset=view.name, mark=mark, numbers=singles)

    def deliver_now(self) -> None:
        view = self.some_view()
        if view is not None and len(view.expedited) < EXPEDITED_MAX:
            number = self.choose.randrange(self.harvested + 1)
            standing = self.index.deliver_now(view, position_at(number))
            say(asked=view.name, number=number, standing=standing.name)

    # --- views and housekeeping

    def create_view(self) -> None:
        name = self.choose.choice(VIEWS)
        if name not in self.index.views():
            self.do("view", lambda: self.index.view(name).name, name=name)
        self.index.view(name).active = self.choose.random() < 0.5

    def remove_view(self) -> None:
        view = self.some_view()
        if view is not None:
            self.do("remove", lambda: self.index.remove_view(view.name), name=view.name)

    def persist(self) -> None:
        self.do("persist", self.index.persist_views)
        if self.choose.random() < 0.5:
            self.sync()

    def sync(self) -> None:
        self.do("sync", self.store.sync)

    def settle(self) -> None:
        self.index.settle(self.choose.randint(1, 5))

    def prefetch(self) -> None:
        self.index.prefetch(self.some_time(), self.choose.randint(1, 100))

    def drop(self, now: int | None = None) -> None:
        now_ms = self.some_time() if now is None else now

        def dropped() -> list[int]:
            before = {known.number for known in self.index.table}
            self.index.drop_consumed(now_ms)
            return sorted(before - {known.number for known in self.index.table})

        self.do("drop", dropped, now=now_ms)

    # --- bulk loads

    def current_load(self) -> tuple[int, BulkLoad] | None:
        for load, directory in enumerate(self.loads):
            if directory.exists():
                loading = BulkLoad(self.index.bulk, directory)
                if not loading.finished:
                    return load, loading
        return None

    def load_some(self) -> None:
        current = self.current_load()
        if current is None:
            return
        load, loading = current
        self.do("positions", loading.load_positions, load=load)
        for number, group in loading.groups():
            if self.choose.random() < 0.4:
                return
            self.do("group", partial(loading.load, number, group), load=load, number=number)
        self.do("finish", loading.finish, load=load)

    def abandon(self) -> None:
        current = self.current_load()
        if current is not None:
            load, loading = current
            self.do("abandon", loading.abandon, load=load)
            # Its files are of no use any more, as the entries that are in must not come again.
            self.loads[load].rename(self.loads[load].with_suffix(".gone"))

    # --- another topic

    def change_other(self) -> None:
        if self.other is None:
            self.do("other start", self.start_other)
        elif self.choose.random() < 0.4:
            self.do("other drop", self.drop_other)
        else:
            self.add_other(self.other)

    def start_other(self) -> None:
        self.other = open_index(self.store, OTHER)
        self.other.start_at(position_at(START - 1))

    def drop_other(self) -> None:
        self.store.drop_topic(OTHER)
        self.other = None

    def add_other(self, other: TopicIndex) -> None:
        if other.harvested_position is None:
            self.do("other start", lambda: other.start_at(position_at(START - 1)))
            return
        harvested = number_at(other.harvested_position)
        upto = harvested + 10
        entries = self.universe.entries(range(harvested + 1, upto + 1))
        self.do("other add", lambda: other.add(entries, position_at(upto)), upto=upto)


def main() -> None:
    arguments = json.loads(sys.argv[1])
    data = Path(arguments["data"])
    killer = Killer(data, arguments["kind"], arguments["count"])
    with Store.open(data, SMALL_STORE, at_boundary=killer) as store:
        store._database = NotingDatabase(store._database, data)
        loads = [Path(load) for load in arguments["loads"]]
        worker = Worker(store, killer, arguments["seed"], arguments["cycle"], loads)
        worker.work()
        killer.hurry()
        worker.sync()


if __name__ == "__main__":
    main()
