"""A write-ahead log with a flipped bit, torn notes of damage: nothing is there by halves, and nobody is misled."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from tracker import EARLIEST, NewEntry, Position, Store, TopicIndex
from tracker.store.durable_files import replace_file

TOPICS = ("persistent://public/default/log-1", "persistent://public/default/log-2")
WRITES, SLICE = 20, 10


def entry(number: int) -> NewEntry:
    return NewEntry(1_000 + number * 7_919 % 50_000, 1, number, 1, str(number).encode() * 20)


def killed_copy(path: Path, copy: Path, flushed: bool) -> None:
    """What a process that is killed leaves: every write in the log; with `flushed`, one topic's in a file too."""
    with Store.open(path) as store:
        indexes = [TopicIndex(store, topic, partition_width_ms=100) for topic in TOPICS]
        for index in indexes:
            index.start_at(EARLIEST)
            index.view("a")
        for write in range(WRITES):
            for index in indexes:
                batch = [entry(write * SLICE + step) for step in range(SLICE)]
                index.add(batch, Position(1, batch[-1].entry))
                index.view("a").ack(1, batch[0].entry)
                index.persist_views()
            if flushed and write == WRITES - 3:
                indexes[0].families.main.reader.flush()
        store.sync()
        shutil.copytree(path, copy)


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_takes_the_end_of_the_log(tmp_path: Path, seed: int, flushed: bool) -> None:
    killed_copy(tmp_path / "live", tmp_path / "copy", flushed)
    logs = sorted((tmp_path / "copy").glob("*.log"), key=lambda file: file.stat().st_size)
    data = bytearray(logs[-1].read_bytes())
    at = random.Random(seed).randrange(len(data) // 8, len(data))
    data[at] ^= 16
    logs[-1].write_bytes(data)
    with Store.open(tmp_path / "copy") as store:
        for topic in TOPICS:
            index = TopicIndex(store, topic, partition_width_ms=100)
            if index.harvested_position is None:
                index.start_at(EARLIEST)
            while index.settle(10):
                pass
            harvested = index.harvested_position or EARLIEST
            # Files may be ahead of the log; then all is read again, since nobody can tell what is missing.
            if not index.damage.ranges:
                index.check()
                assert index.entries == harvested.entry + 1
            missing = [entry(number) for number in range(harvested.entry + 1, WRITES * SLICE)]
            index.add(missing, Position(1, WRITES * SLICE - 1))
            for known in index.damage.ranges:
                again = range(known.lowest.entry, known.highest.entry + 1)
                index.backfill([entry(number) for number in again])
            if index.damage.ranges:
                index.damage.healed()
            while index.damage.move_some(100):
                pass
            while index.settle(10):
                pass
            index.check()
            assert index.entries == WRITES * SLICE
            found = index.due(index.view("fresh"), 10**6, 10_000)
            assert sorted(due.entry for due in found) == list(range(WRITES * SLICE))
            assert all(due.raw == str(due.entry).encode() * 20 for due in found)


@pytest.mark.parametrize("left", [b"", b'["log:topic:', bytes(40), b"\xff\xfe", b"7"])
def test_torn_notes_of_damage_say_that_anything_may_be_missing(tmp_path: Path, left: bytes) -> None:
    """What they said is unknown: the index is read again from the broker, rather than not opened or believed."""
    killed_copy(tmp_path / "live", tmp_path / "copy", False)
    (tmp_path / "copy" / "bridge.damaged").write_bytes(left)
    with Store.open(tmp_path / "copy") as store:
        for topic in TOPICS:
            index = TopicIndex(store, topic, partition_width_ms=100)
            while index.settle(10):
                pass
            ranges = [(each.lowest, each.highest) for each in index.damage.ranges]
            assert ranges == [(Position(-1, 0), Position(1, WRITES * SLICE - 1))]
            assert len(index.due(index.view("fresh"), 10**6, 10_000)) == WRITES * SLICE
    noted = json.loads((tmp_path / "copy" / "bridge.damaged").read_bytes())
    assert not [each for each in noted if each.startswith("log:topic:")]


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, Path.replace

    def noted_sync(descriptor: int) -> None:
        done.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    def noted_replace(old: Path, new: Path) -> Path:
        done.append(f"{old} -> {new}")
        return replace(old, new)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    replace_file(tmp_path / "notes", b"1")
    assert done == [f"{tmp_path}/notes.new", f"{tmp_path}/notes.new -> {tmp_path}/notes", str(tmp_path)]
    assert (tmp_path / "notes").read_bytes() == b"1"
