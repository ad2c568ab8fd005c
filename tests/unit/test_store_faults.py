"""The disk is full or fails: what is stored stays readable, nothing more is written until the store was opened anew.

A limit on the size of files stands for a full disk: it needs no rights, and is lifted again. It holds for a whole
process, so these tests have one of their own.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from bridge.clock import system_randbits
from bridge.intake import harvester as harvester_module
from bridge.intake.harvester import Harvester
from bridge.intake.tail_buffer import TailBuffer
from bridge.limits import Limits
from bridge.net.backoff import Backoff
from bridge.net.failures import Failures
from bridge.protocol.entries import StoredEntry
from bridge.topics.topics import SyncLoop
from tests.helpers import wait_until, wait_until_async
from tracker import EARLIEST, NewEntry, Position, Store, StoreError, TopicIndex
from tracker.store import database as database_module
from tracker.store.store import PROBE_BYTES

TOPIC = "t"
SLICE = 50
RAW_BYTES = 2_000
CHILD_TIMEOUT_S = 60


def in_child(work: Callable[..., None], *arguments: Any) -> None:
    """Call a function in a process of its own; RocksDB may wait for ever where it does not fail."""
    child = multiprocessing.get_context("spawn").Process(target=work, args=arguments, daemon=True)
    child.start()
    child.join(CHILD_TIMEOUT_S)
    if child.is_alive():
        child.kill()
        child.join()
        pytest.fail(f"{work.__name__} hangs")
    assert child.exitcode == 0


def limit_files(size: int) -> None:
    """No file of this process may grow beyond; Python ignores the signal that comes with it."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def lift_limit() -> None:
    limit_files(resource.getrlimit(resource.RLIMIT_FSIZE)[1])


def newest_log(path: Path) -> Path:
    return max(path.glob("*.log"), key=lambda log: int(log.stem))


def entry(number: int) -> NewEntry:
    return NewEntry(number * 977 % 10_000, 1, number, 1, os.urandom(RAW_BYTES))


@dataclass(frozen=True)
class Filling:
    """A store with an index that is filled slice by slice."""

    store: Store
    index: TopicIndex

    @classmethod
    def begin(cls, path: Path) -> Filling:
        store = Store.open(path)
        index = TopicIndex(store, TOPIC)
        index.start_at(EARLIEST)
        return cls(store, index)

    @property
    def next_number(self) -> int:
        harvested = self.index.harvested_position
        assert harvested is not None
        return harvested.entry + 1

    def add(self) -> None:
        """Add a slice, as a harvester does: from behind the harvested position."""
        first = self.next_number
        self.index.add([entry(first + n) for n in range(SLICE)], Position(1, first + SLICE - 1))

    def add_until_failure(self) -> int:
        """Return how many entries are stored."""
        for _ in range(1_000):
            before = self.index.entries
            try:
                self.add()
            except StoreError:
                assert self.index.entries == before == self.next_number
                return before
        raise AssertionError("nothing failed")

    def check(self, entries: int) -> None:
        """Everything is there, and fits together."""
        assert self.index.entries == entries == self.next_number
        self.index.check()


def assert_refused(store: Store) -> None:
    """Nothing is written, and the first cause is named."""
    failure = store.failure
    assert failure is not None
    for change in (
        lambda: store.write(store.new_batch()),
        store.sync,
        lambda: store.open_topic("new"),
        lambda: store.drop_topic(TOPIC),
    ):
        with pytest.raises(StoreError) as refused:
            change()
        assert failure in str(refused.value)
    assert store.failure == failure


def fail_in_the_log(filling: Filling) -> int:
    limit_files(newest_log(filling.store.path).stat().st_size + 3 * SLICE * RAW_BYTES)
    stored = filling.add_until_failure()
    assert ".log" in str(filling.store.failure)
    return stored


def fail_in_a_flush(filling: Filling) -> int:
    """What is written out in the background fails; the log, a new one, still has room."""
    limit_files(newest_log(filling.store.path).stat().st_size // 2)
    filling.store.open_topic(TOPIC).reader.flush(False)
    wait_until(lambda: "background flush error" in (filling.store.path / "LOG").read_text(), "a failed flush")
    stored = filling.add_until_failure()
    assert ".sst" in str(filling.store.failure)
    return stored


@pytest.mark.slow
@pytest.mark.parametrize("fail", [fail_in_the_log, fail_in_a_flush])
def test_full_and_room_again(tmp_path: Path, fail: Callable[[Filling], int]) -> None:
    in_child(_full_and_room_again, tmp_path, fail)


def _full_and_room_again(path: Path, fail: Callable[[Filling], int]) -> None:
    filling = Filling.begin(path)
    store = filling.store
    for _ in range(40):
        filling.add()
    for round_number in range(2):
        stored = fail(filling)
        assert_refused(store)
        filling.check(stored)
        with pytest.raises(StoreError):
            store.probe()
        lift_limit()
        assert_refused(store)
        store.probe()
        store.recover()
        assert store.failure is None
        filling.check(stored)
        for _ in range(20 * (round_number + 1)):
            filling.add()
        store.sync()
        filling.check(stored + 20 * (round_number + 1) * SLICE)
    stored = filling.index.entries
    store.close()
    with Store.open(path) as store:
        Filling(store, TopicIndex(store, TOPIC)).check(stored)


@pytest.mark.slow
def test_no_room_to_open_anew(tmp_path: Path) -> None:
    in_child(_no_room_to_open_anew, tmp_path)


def _no_room_to_open_anew(path: Path) -> None:
    """Reads go on all the same, and it can be tried again."""
    filling = Filling.begin(path)
    for _ in range(40):
        filling.add()
    stored = fail_in_the_log(filling)
    limit_files(1_000_000)
    for _ in range(3):
        with pytest.raises(StoreError, match="cannot open"):
            filling.store.recover()
        assert_refused(filling.store)
        filling.check(stored)
    lift_limit()
    filling.store.recover()
    filling.check(stored)
    filling.add()
    filling.check(stored + SLICE)
    filling.store.close()


def test_a_full_disk_does_not_keep_it_from_closing(tmp_path: Path) -> None:
    in_child(_close_when_full, tmp_path)


def _close_when_full(path: Path) -> None:
    filling = Filling.begin(path)
    filling.add()
    stored = fail_in_the_log(filling)
    filling.store.close()
    lift_limit()
    with Store.open(path) as store:
        Filling(store, TopicIndex(store, TOPIC)).check(stored)


class Faults:
    """Fails at a boundary when told so."""

    def __init__(self) -> None:
        self.at: str | None = None
        self.seen: list[str] = []

    def __call__(self, boundary: str) -> None:
        self.seen.append(boundary)
        if boundary == self.at:
            self.at = None
            raise OSError("no space left")


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def faulty(tmp_path: Path, faults: Faults) -> Iterator[Store]:
    with Store.open(tmp_path / "data", at_boundary=faults) as store:
        yield store


def put(store: Store, key: bytes, value: bytes) -> None:
    batch = store.new_batch()
    batch.put(key, value, store.open_topic(TOPIC).handle)
    store.write(batch)


def test_boundaries(faulty: Store, faults: Faults) -> None:
    """Both sides of everything that changes the disk."""
    faults.seen.clear()
    put(faulty, b"k", b"v")
    assert faults.seen == [
        "before write",
        "after write",
        "before sync",
        "after sync",
        "before create",
        "after create",
        "before write",
        "after write",
    ]
    faults.seen.clear()
    faulty.sync()
    assert faults.seen == ["before sync", "after sync"]
    faults.seen.clear()
    faulty.drop_topic(TOPIC)
    assert faults.seen == ["before sync", "after sync", "before drop", "after drop", "before write", "after write"]


@pytest.mark.parametrize(("boundary", "there"), [("before write", False), ("after write", True)])
def test_a_failed_write_is_there_as_a_whole_or_not_at_all(
    faulty: Store, faults: Faults, boundary: str, there: bool
) -> None:
    family = faulty.open_topic(TOPIC)
    put(faulty, b"first", b"v")
    told: list[bool] = []
    family.on_recovered = lambda: told.append(b"second" in family.reader)
    faults.at = boundary
    with pytest.raises(StoreError, match="no space left"):
        put(faulty, b"second", b"v")
    assert_refused(faulty)
    faulty.recover()
    assert faulty.failure is None
    assert told == [there]
    assert b"first" in family.reader
    put(faulty, b"second", b"w")
    assert family.reader.get(b"second") == b"w"
    assert faulty.open_topic(TOPIC) is family


@pytest.mark.parametrize(("boundary", "there"), [("before write", False), ("after write", True)])
def test_what_was_left_out_is_known_after_a_write_that_failed(
    faulty: Store, faults: Faults, boundary: str, there: bool
) -> None:
    """It is there with the harvested position or without it: otherwise nobody would read it any more."""
    index = TopicIndex(faulty, TOPIC)
    index.start_at(Position(1, 9))
    faults.at = boundary
    with pytest.raises(StoreError, match="no space left"):
        index.skip_to(Position(1, 99))
    assert (index.harvested_position, index.damage.missing) == (Position(1, 9), [])
    faulty.recover()
    left_out = [(each.lowest, each.highest) for each in index.damage.missing]
    assert index.harvested_position == Position(1, 99 if there else 9)
    assert left_out == ([(Position(1, 10), Position(1, 99))] if there else [])


def test_what_was_left_out_is_filled_in_pieces(faulty: Store, faults: Faults) -> None:
    """Only what lies in a piece is noted as filled, also by an index that is opened anew; nothing if that fails."""
    index = TopicIndex(faulty, TOPIC)
    index.start_at(Position(1, 9))
    index.skip_to(Position(1, 99))
    index.add([], Position(1, 120))
    index.skip_to(Position(2, 9))

    def left_out(index: TopicIndex) -> list[tuple[Position, Position]]:
        return [(each.lowest, each.highest) for each in index.damage.missing]

    both = [(Position(1, 10), Position(1, 99)), (Position(1, 121), Position(2, 9))]
    assert left_out(index) == both
    index.damage.left_out_filled(Position(1, 5), Position(1, 9))
    index.damage.left_out_filled(Position(1, 50), Position(1, 99))
    assert left_out(index) == both, "what lies before it is not filled"
    index.damage.left_out_filled(Position(1, 10), Position(1, 40))
    assert left_out(index) == [(Position(1, 41), Position(1, 99)), both[1]]
    faults.at = "before write"
    with pytest.raises(StoreError, match="no space left"):
        index.damage.left_out_filled(Position(1, 41), Position(1, 99))
    assert left_out(index) == [(Position(1, 41), Position(1, 99)), both[1]]
    faulty.recover()
    index.damage.left_out_filled(Position(1, 41), Position(1, 110))
    assert left_out(index) == left_out(TopicIndex(faulty, TOPIC)) == [both[1]]
    index.damage.healed()
    assert left_out(TopicIndex(faulty, TOPIC)) == []


def test_a_failed_sync_is_a_failure(faulty: Store, faults: Faults) -> None:
    put(faulty, b"k", b"v")
    faults.at = "before sync"
    with pytest.raises(StoreError, match="no space left"):
        faulty.sync()
    assert_refused(faulty)
    faulty.recover()
    faulty.sync()
    assert b"k" in faulty.open_topic(TOPIC).reader


def test_who_cannot_go_on_after_a_recovery_has_it_tried_again(faulty: Store, faults: Faults) -> None:
    family = faulty.open_topic(TOPIC)
    faults.at = "before sync"
    with pytest.raises(StoreError):
        faulty.sync()

    def fail() -> None:
        raise StoreError("unreadable")

    family.on_recovered = fail
    with pytest.raises(StoreError, match="unreadable"):
        faulty.recover()
    assert_refused(faulty)
    family.on_recovered = None
    faulty.recover()
    put(faulty, b"k", b"v")


def test_an_iterator_in_use_puts_the_recovery_off(faulty: Store, faults: Faults) -> None:
    put(faulty, b"k", b"v")
    family = faulty.open_topic(TOPIC)
    iterator = family.reader.iter()
    iterator.seek(b"")
    faults.at = "before write"
    with pytest.raises(StoreError):
        put(faulty, b"l", b"v")
    with pytest.raises(StoreError, match="lock"):
        faulty.recover()
    assert iterator.key() == b"k"
    assert b"k" in family.reader
    del iterator
    faulty.recover()
    put(faulty, b"l", b"v")


def test_reads_say_so_when_nothing_can_be_opened(
    faulty: Store, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = TopicIndex(faulty, TOPIC)
    index.start_at(EARLIEST)
    index.add([entry(0)], Position(1, 0))
    faults.at = "before write"
    with pytest.raises(StoreError):
        index.add([entry(1)], Position(1, 1))

    def fail(*_: object) -> None:
        raise OSError("input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(database_module, "open_database", fail)
        with pytest.raises(StoreError, match="input/output error"):
            faulty.recover()
        family = faulty.open_topic(TOPIC)
        for read in (
            lambda: family.reader.get(b"k"),
            lambda: b"k" in family.reader,
            lambda: list(faulty.records(b"")),
            lambda: list(index.reader.scan(bytes(24), b"\x7f" * 24)),
        ):
            with pytest.raises(StoreError, match="could not be opened anew"):
                read()
        assert_refused(faulty)
    faulty.recover()
    index.add([entry(1)], Position(1, 1))
    index.check()


def test_the_probe_leaves_room_for_what_the_log_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filling = Filling.begin(tmp_path)
    filling.add()
    with filling.store as store:
        store.probe()
        needed = newest_log(tmp_path).stat().st_size + PROBE_BYTES
        for free in (needed - 1, needed):
            monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: shutil._ntuple_diskusage(1, 1, free))
            if free < needed:
                with pytest.raises(StoreError, match=f"{free} bytes are free"):
                    store.probe()
            else:
                store.probe()
        assert not (tmp_path / "bridge.probe").exists()
    with pytest.raises(StoreError, match="is closed"):
        store.probe()
    with pytest.raises(StoreError, match="is closed"):
        store.recover()


@pytest.mark.slow
def test_a_torn_log_opens_without_its_last_record(tmp_path: Path) -> None:
    """A machine that went down may leave the log cut anywhere: what is there fits together all the same."""
    filling = Filling.begin(tmp_path / "data")
    view = filling.index.view("s")
    sizes = []
    log = newest_log(tmp_path / "data")
    for number in range(5):
        filling.add()
        view.ack(1, number * SLICE)
        filling.index.persist_views()
        sizes.append(log.stat().st_size)
    shutil.copytree(tmp_path / "data", tmp_path / "copy", ignore=shutil.ignore_patterns("*LOCK*", "*.lock"))
    filling.store.close()
    after_one, after_all = sizes[0], sizes[-1]
    cuts = {0, 1, 7, 8, after_one - 1, after_one, after_one + 1, after_one + 40_000, after_all - 1, after_all}
    for cut in sorted(cuts | set(range(0, after_all, after_all // 12))):
        torn = shutil.copytree(tmp_path / "copy", tmp_path / f"cut-{cut}")
        os.truncate(torn / log.name, cut)
        for _ in range(2):  # the second time what the first made of it
            with Store.open(torn) as store:
                index = TopicIndex(store, TOPIC)
                index.check()
                if index.harvested_position is None:
                    assert cut < after_one
                    assert index.entries == 0
                    continue
                whole = sum(size <= cut for size in sizes)
                assert index.entries == index.harvested_position.entry + 1
                assert whole <= index.entries // SLICE <= whole + 1


class OneTopic:
    """What the sync loop sees of a topic: writes by hand, and what it was told is on disk."""

    def __init__(self, store: Store) -> None:
        self.index = TopicIndex(store, TOPIC)
        self.index.start_at(EARLIEST)
        self.synced: list[Position | None] = []
        self.recovered = 0

    def write(self) -> None:
        assert self.index.harvested_position is not None
        number = self.index.harvested_position.entry + 1
        self.index.add([entry(number)], Position(1, number))

    def harvested_unsynced(self) -> Position | None:
        return self.index.harvested_position

    def on_synced(self, position: Position | None) -> None:
        self.synced.append(position)

    def on_recovered(self) -> None:
        self.recovered += 1


async def test_positions_do_not_pass_the_disk(faulty: Store, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sync loop opens a failed store anew when the probe succeeds, and tells of positions after a sync only."""
    room = False
    probes = 0

    def probe() -> None:
        nonlocal probes
        probes += 1
        if not room:
            raise StoreError("no room")

    monkeypatch.setattr(faulty, "probe", probe)
    topic = OneTopic(faulty)
    syncing = SyncLoop(faulty, Failures(), Backoff(system_randbits, (0.01,)), Limits().topics)
    syncing.on_recovered.append(topic.on_recovered)
    running = asyncio.get_running_loop().create_task(syncing.run())
    topic.write()
    syncing.mark_dirty(topic)
    await wait_until_async(lambda: topic.synced == [Position(1, 0)], "a sync")

    topic.write()
    faults.at = "before sync"
    syncing.mark_dirty(topic)
    await wait_until_async(lambda: syncing.failure is not None, "a failure")
    with pytest.raises(StoreError):
        topic.write()
    tries = faults.seen.count("before sync")
    await wait_until_async(lambda: probes >= 5, "probes")
    assert topic.synced == [Position(1, 0)]
    assert (faults.seen.count("before sync"), topic.recovered) == (tries, 0)

    room = True
    await wait_until_async(lambda: topic.synced == [Position(1, 0), Position(1, 1)], "a sync after the failure")
    assert (topic.recovered, syncing.failure, faulty.failure) == (1, None, None)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_is_on_disk_is_not_synced_again(faulty: Store, faults: Faults) -> None:
    topic = OneTopic(faulty)
    syncing = SyncLoop(faulty, Failures(), Backoff(system_randbits, (0.01,)), Limits().topics)
    topic.write()
    syncing.mark_dirty(topic)
    assert await syncing.sync()
    done = faults.seen.count("before sync")
    syncing.mark_dirty(topic)
    assert await syncing.sync()
    assert (topic.synced, faults.seen.count("before sync")) == ([Position(1, 0)] * 2, done)
    faults.at = "before write"
    with pytest.raises(StoreError):
        topic.write()
    assert not await syncing.sync()  # and the loop opens the store anew


class Reader:
    """Hands on what lies behind where it was opened."""

    permits = 1_000

    def __init__(
        self, topic: list[StoredEntry], after: Position, on_entries: Callable[[list[StoredEntry]], None]
    ) -> None:
        self._rest = [each for each in topic if each[:2] > after]
        self._on_entries = on_entries

    def read(self) -> None:
        self._on_entries(self._rest)

    def top_up(self, permits: int) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("boundary", ["before write", "after write"])
async def test_what_is_immediate_in_a_write_that_failed_is_passed_on(
    faulty: Store, faults: Faults, monkeypatch: pytest.MonkeyPatch, boundary: str
) -> None:
    """Also where the write is there once the store was opened anew: the index knows its entries, no consumer does."""
    topic = [StoredEntry(1, 0, None, 1, False, b"now"), StoredEntry(1, 1, 5_000, 1, False, b"later")]
    readers: list[Reader] = []

    async def open_reader(connection: object, name: str, after: Position, on_entries: Any, on_closed: Any) -> Reader:
        readers.append(Reader(topic, after, on_entries))
        return readers[-1]

    monkeypatch.setattr(harvester_module, "open_reader", open_reader)
    start = Position(1, -1)
    index, tail = TopicIndex(faulty, TOPIC), TailBuffer(start, 1_000, 10)
    index.start_at(start)
    told: list[str] = []
    backoff = Backoff(system_randbits, (60.0,))

    def stalled(error: StoreError) -> None:
        told.append(str(error))  # the error itself would hold what has to be closed

    harvester = Harvester(TOPIC, index, tail, lambda: None, lambda _: None, stalled, backoff, Limits().intake)
    await harvester.start(cast(Any, object()))
    faults.at = boundary
    readers[-1].read()
    assert (len(told), harvester.stalled, len(tail._items)) == (1, True, 0)
    faulty.recover()
    harvester.on_recovered()
    await harvester.resume()
    readers[-1].read()
    assert [each[:2] for each in tail._items] == [(1, 0)]
    assert (index.entries, index.harvested_position, harvester.position) == (1, Position(1, 1), Position(1, 1))
