"""The data directory: locking, formats, topics, durability."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tracker import (
    EARLIEST,
    DataDirectoryLocked,
    NewEntry,
    Position,
    Store,
    StoreError,
    TopicIndex,
    UnsupportedFormat,
)

TOPIC = "persistent://public/default/kéy 'x\" \x01"


def open_and_report(path: Path) -> str:
    code = "import sys; from pathlib import Path; from tracker import Store; Store.open(Path(sys.argv[1])).close()"
    result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    return result.stderr


def test_another_process_is_kept_out(tmp_path: Path) -> None:
    with Store.open(tmp_path / "data"):
        error = open_and_report(tmp_path / "data")
        assert "DataDirectoryLocked" in error
        assert str(tmp_path / "data") in error
        with pytest.raises(DataDirectoryLocked):
            Store.open(tmp_path / "data")
    assert open_and_report(tmp_path / "data") == ""


def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        batch = store.new_batch()
        batch.put(b"!format", b"3")
        store.write(batch)
    for _ in range(2):
        with pytest.raises(UnsupportedFormat, match=r"format 3.*format 2"):
            Store.open(tmp_path)


def test_a_path_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(StoreError, match="cannot create the data directory"):
        Store.open(tmp_path / "data")


def test_a_damaged_directory_is_a_clear_error(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    (tmp_path / "CURRENT").write_text("nonsense\n")
    for _ in range(2):
        # The second error is the same one: the lock was given up.
        with pytest.raises(StoreError, match="cannot open the data directory"):
            Store.open(tmp_path)


def test_topics_are_independent(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        for topic in (TOPIC, "default", TOPIC + "-2"):
            index = TopicIndex(store, topic)
            index.start_at(EARLIEST)
            index.add([NewEntry(5, 1, 0, 1, topic.encode())], Position(1, 0))
    with Store.open(tmp_path) as store:
        assert store.topics() == sorted([TOPIC, "default", TOPIC + "-2"])
        store.drop_topic(TOPIC)
        store.drop_topic("unknown")
        assert store.topics() == sorted(["default", TOPIC + "-2"])
        index = TopicIndex(store, TOPIC)
        assert index.harvested_position is None
        assert index.entries == 0
        index.check()
        other = TopicIndex(store, TOPIC + "-2")
        assert other.entries == 1
        other.check()


def test_a_drop_that_stopped_half_way_leaves_no_stale_records(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        TopicIndex(store, TOPIC).start_at(Position(7, 7))
        store._families.pop("topic:" + TOPIC).close("dropped")
        store._database.drop_column_family("topic:" + TOPIC)
    with Store.open(tmp_path) as store:
        assert TopicIndex(store, TOPIC).harvested_position is None


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    index = TopicIndex(store, TOPIC)
    store.close()
    store.close()
    for call in (store.sync, store.topics, lambda: index.start_at(EARLIEST), lambda: store.open_topic(TOPIC)):
        with pytest.raises(StoreError, match="is closed"):
            call()


def test_writes_go_on_while_another_thread_syncs(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        index = TopicIndex(store, TOPIC)
        index.start_at(EARLIEST)
        stop = threading.Event()
        failures: list[BaseException] = []

        def sync() -> None:
            try:
                while not stop.is_set():
                    store.sync()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=sync)
        thread.start()
        for number in range(300):
            index.add([NewEntry(number, 1, number, 1, b"x")], Position(1, number))
        stop.set()
        thread.join()
        assert not failures
        assert index.entries == 300


def test_a_store_knows_whether_a_sync_would_change_anything(tmp_path: Path) -> None:
    def synced() -> bool:
        return store.is_synced

    with Store.open(tmp_path) as store:
        index = TopicIndex(store, TOPIC)
        index.start_at(EARLIEST)
        store.sync()
        assert synced()
        index.persist_views()  # nothing changed
        assert synced()
        index.view("s").ack(1, 2)
        index.persist_views()
        assert not synced()
        store.sync()
        assert synced()
        store.recover()  # what its log holds may be in the machine's memory only
        assert not synced()
    with Store.open(tmp_path) as store:
        assert not synced()


CHILD = """
import sys, time
from pathlib import Path
from tracker import EARLIEST, NewEntry, Position, Store, TopicIndex
store = Store.open(Path(sys.argv[1]))
index = TopicIndex(store, "t")
index.start_at(EARLIEST)
view = index.view("s")
number = 0
while True:
    slice = [NewEntry(n * 977 % 10_000, 1, n, 1, b"raw %d" % n) for n in range(number, number + 50)]
    number += 50
    index.add(slice, Position(1, number - 1))
    view.ack(1, number - 1)
    index.persist_views()
    store.sync()
    print(number, flush=True)
"""


def test_what_was_synced_survives_a_kill(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout:
        synced = [int(child.stdout.readline()) for _ in range(40)][-1]
        os.kill(child.pid, signal.SIGKILL)
        rest = child.stdout.read().split()
        child.wait()
    synced = int(rest[-1]) if rest else synced
    with Store.open(tmp_path) as store:
        index = TopicIndex(store, "t")
        index.check()
        assert index.harvested_position is not None
        stored = index.harvested_position.entry + 1
        assert synced <= stored <= synced + 50
        assert index.entries == stored
        acks = index.view("s").acks
        assert all(acks.contains(1, number) for number in range(49, synced, 50))
        view = index.view("s")
        found = []
        while due := index.due(view, 10_000, 100):
            found += due
        assert len(found) == stored - len(acks)
        assert all(due.raw == b"raw %d" % due.entry for due in found)
