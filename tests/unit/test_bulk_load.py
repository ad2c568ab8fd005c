"""Bulk loads: what is written is what is found, once, whole partitions only, whatever is cut short."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tracker import EARLIEST, NewEntry, Position, Store, StoreError, TopicIndex
from tracker.bulk.files import BulkError, Manifest, new_manifest, write_groups, write_positions
from tracker.bulk.load import BulkLoad
from tracker.entries import encode_value
from tracker.keys import KEY, KEY_LENGTH
from tracker.limits import BulkFileLimits, IndexLimits
from tracker.partitions.positions import PlacedEntry

TOPIC = "persistent://public/default/bulk"
WIDTH_MS = 100
COUNT = 600
UPTO = Position(9, 0)

Entries = dict[tuple[int, int], int]
USUAL = BulkFileLimits()
SMALL = BulkFileLimits(bulk_file_bytes=3_000, bulk_file_max_bytes=3_000, bulk_write_entries=10, bulk_group_partitions=3)


def some_entries(seed: int = 1) -> Entries:
    """Due times of the positions 3:0, 3:1, …"""
    choose = random.Random(seed)
    return {(3 + number // 200, number % 200): choose.randrange(2_000) for number in range(COUNT)}


def raw_of(position: tuple[int, int]) -> bytes:
    return f"entry {position}".encode()


def make_load(
    directory: Path,
    entries: Entries,
    topic: str = TOPIC,
    width_ms: int = WIDTH_MS,
    upto: Position = UPTO,
    limits: BulkFileLimits = USUAL,
) -> Manifest:
    directory.mkdir()
    pairs = sorted((KEY.pack(time, *at), encode_value(1, raw_of(at))) for at, time in entries.items())
    groups = list(write_groups(directory, "entries", pairs, width_ms, limits))
    placed = [PlacedEntry(*at, time, KEY_LENGTH + 1 + len(raw_of(at))) for at, time in sorted(entries.items())]
    positions = write_positions(directory, "positions", placed)
    assert positions is not None
    manifest = new_manifest(topic, width_ms, EARLIEST, upto, [positions], groups)
    manifest.write(directory)
    return manifest


def fresh_index(store: Store) -> TopicIndex:
    index = TopicIndex(store, TOPIC, partition_width_ms=WIDTH_MS)
    if index.harvested_position is None:
        index.start_at(UPTO)
    return index


def settled(index: TopicIndex) -> TopicIndex:
    while index.settle(10):
        pass
    return index


def drained(index: TopicIndex, name: str, now_ms: int = 10_000) -> Entries:
    found: Entries = {}
    view = index.view(name)
    while due := index.due(view, now_ms, 50):
        for entry in due:
            assert (entry.ledger, entry.entry) not in found
            assert entry.raw == raw_of((entry.ledger, entry.entry))
            found[entry.ledger, entry.entry] = entry.deliver_at_ms
    return found


def test_all_entries_are_found_and_counted(tmp_path: Path) -> None:
    entries = some_entries()
    manifest = make_load(tmp_path / "files", entries, limits=SMALL)
    assert len(manifest.groups) > 3
    with Store.open(tmp_path / "data") as store:
        index = fresh_index(store)
        index.view("a").ack(3, 5)
        index.view("b").advance(Position(3, 99))
        assert BulkLoad(index.bulk, tmp_path / "files").load_all() == COUNT == index.entries
        settled(index).check()
        assert index.counts.pending(index.view("a")) == COUNT - 1
        assert index.counts.pending(index.view("b")) == COUNT - 100
        index.persist_views()
    with Store.open(tmp_path / "data") as store:
        index = settled(fresh_index(store))
        index.check()
        assert drained(index, "a") == {at: time for at, time in entries.items() if at != (3, 5)}
        assert drained(index, "b") == {at: time for at, time in entries.items() if at > (3, 99)}


def test_loading_again_changes_nothing(tmp_path: Path) -> None:
    make_load(tmp_path / "files", some_entries(), limits=SMALL)
    with Store.open(tmp_path / "data") as store:
        index = fresh_index(store)
        BulkLoad(index.bulk, tmp_path / "files").load_all()
        again = BulkLoad(index.bulk, tmp_path / "files")
        assert again.finished
        assert again.load_all() == 0
        index.check()


def test_entries_harvested_and_handed_out_meanwhile_stay(tmp_path: Path) -> None:
    entries = some_entries()
    make_load(tmp_path / "files", entries, limits=SMALL)
    with Store.open(tmp_path / "data") as store:
        index = fresh_index(store)
        view = index.view("a")
        view.active = True
        later = {(10, number): 30 * number for number in range(60)}
        index.add([NewEntry(time, *at, 1, raw_of(at)) for at, time in later.items()], Position(10, 59))
        while index.prefetch(0, 100):
            pass
        found = {(due.ledger, due.entry): due.deliver_at_ms for due in index.due(view, 1_000, 10_000)}
        loading = BulkLoad(index.bulk, tmp_path / "files")
        loading.load_positions()
        for number, group in loading.groups():
            loading.load(number, group)
            index.check()
            more = drained(index, "a", 1_000)
            assert not more.keys() & found.keys()
            found |= more
        loading.finish()
        settled(index).check()
        found |= drained(index, "a")
        assert found == entries | later


def test_a_partition_larger_than_a_file_is_loaded_as_a_whole(tmp_path: Path) -> None:
    entries = dict.fromkeys(some_entries(), 700)
    manifest = make_load(tmp_path / "files", entries, limits=SMALL)
    assert len(manifest.groups) == 1
    assert len(manifest.groups[0].files) > 3
    with Store.open(tmp_path / "data") as store:
        index = fresh_index(store)
        BulkLoad(index.bulk, tmp_path / "files").load_all()
        settled(index).check()
        assert drained(index, "a") == entries


@pytest.mark.parametrize("kind", ["before write", "after write", "before ingest", "after ingest"])
def test_a_crash_at_any_step_leaves_whole_partitions(tmp_path: Path, kind: str) -> None:
    entries = some_entries()
    make_load(tmp_path / "files", entries, limits=SMALL)
    for crash_at in range(1, 100):
        left = crash_at

        def boundary(name: str) -> None:
            nonlocal left
            if name == kind:
                left -= 1
                if not left:
                    raise OSError("the test's")

        with contextlib.suppress(StoreError), Store.open(tmp_path / "data", at_boundary=boundary) as store:
            index = fresh_index(store)
            index.view("a").ack(3, 7)
            BulkLoad(index.bulk, tmp_path / "files").load_all()
        with Store.open(tmp_path / "data") as store:
            index = settled(fresh_index(store))
            index.check()
            if BulkLoad(index.bulk, tmp_path / "files").finished:
                break
    assert crash_at > 2
    with Store.open(tmp_path / "data") as store:
        index = fresh_index(store)
        assert drained(index, "fresh") == entries


def test_an_abandoned_load_keeps_the_counts_right(tmp_path: Path) -> None:
    entries = some_entries()
    make_load(tmp_path / "files", entries, limits=BulkFileLimits(bulk_group_partitions=3))
    with Store.open(tmp_path / "data") as store:
        index = fresh_index(store)
        index.view("a").advance(Position(3, 150))
        loading = BulkLoad(index.bulk, tmp_path / "files")
        loading.load_positions()
        number, group = next(loading.groups())
        loading.load(number, group)
        with pytest.raises(BulkError, match=r"groups of .* are not loaded, the first is number 1"):
            loading.finish()
        loading.abandon()
        settled(index).check()
        inside = [at for at, time in entries.items() if time < 300]
        assert index.entries == len(inside)
        assert index.counts.pending(index.view("a")) == len([at for at in inside if at > (3, 150)])


def damaged(path: Path, change: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    entries = some_entries()
    with Store.open(tmp_path / "data") as store:
        index = fresh_index(store)
        with pytest.raises(BulkError, match="no bulk load in"):
            BulkLoad(index.bulk, tmp_path)
        make_load(tmp_path / "topic", entries, topic="persistent://public/default/other")
        with pytest.raises(BulkError, match="are of persistent://public/default/other, not of"):
            BulkLoad(index.bulk, tmp_path / "topic")
        make_load(tmp_path / "width", entries, width_ms=200)
        with pytest.raises(BulkError, match="partitions of 200 ms"):
            BulkLoad(index.bulk, tmp_path / "width")
        make_load(tmp_path / "upto", entries, upto=Position(9, 1))
        with pytest.raises(BulkError, match=r"reach to 9:1, .* is harvested to 9:0"):
            BulkLoad(index.bulk, tmp_path / "upto")
        manifest = make_load(tmp_path / "newer", entries)
        manifest.model_copy(update={"format": 2}).write(tmp_path / "newer")
        with pytest.raises(BulkError, match="has format 2, this version reads 1"):
            BulkLoad(index.bulk, tmp_path / "newer")
        (tmp_path / "newer" / "manifest.json").write_text("{}")
        with pytest.raises(BulkError, match="is not a manifest"):
            BulkLoad(index.bulk, tmp_path / "newer")
        make_load(tmp_path / "good", entries)
        table = next((tmp_path / "good").glob("entries*.sst"))
        damaged(table, lambda data: data.__setitem__(100, data[100] ^ 1))
        loading = BulkLoad(index.bulk, tmp_path / "good")
        with pytest.raises(BulkError, match="is damaged"):
            loading.load_all()
        table.unlink()
        with pytest.raises(BulkError, match="cannot read"):
            loading.verify(next(loading.groups())[1])
        assert index.entries == 0
        index.check()


def test_entries_that_are_there_already_are_not_loaded_twice(tmp_path: Path) -> None:
    entries = some_entries()
    make_load(tmp_path / "files", entries)
    with Store.open(tmp_path / "data") as store:
        index = fresh_index(store)
        index.backfill([NewEntry(entries[3, 50], 3, 50, 1, raw_of((3, 50)))])
        with pytest.raises(BulkError, match=r"has entries between 3:\d+ and 5:\d+ already"):
            BulkLoad(index.bulk, tmp_path / "files").load_all()
        index.check()


@pytest.mark.parametrize("steps", range(7))
@pytest.mark.parametrize("end", ["given up", "opened anew"])
def test_a_group_cut_short_between_its_steps(tmp_path: Path, steps: int, end: str) -> None:
    """Others write, take and drop in between; the group is in as a whole or not at all, and all of it in the end."""
    entries = some_entries()
    make_load(tmp_path / "files", entries, width_ms=5)
    later = {(10, number): 30 * number for number in range(60)}
    acked: set[tuple[int, int]] = set()
    with Store.open(tmp_path / "data") as store:
        index = TopicIndex(store, TOPIC, partition_width_ms=5, limits=IndexLimits(bulk_step_partitions=5))
        index.start_at(UPTO)
        view = index.view("a")
        view.active = True
        loading = BulkLoad(index.bulk, tmp_path / "files")
        loading.load_positions()
        ((number, group),) = loading.groups()
        going = loading.load_in_steps(number, group, lambda: 0.0)
        for step in range(steps):
            next(going)
            at = (10, step)
            index.add([NewEntry(later[at], *at, 1, raw_of(at))], Position(*at))
            for due in index.due(view, 300, 20):
                view.ack(due.ledger, due.entry)
                acked.add((due.ledger, due.entry))
            index.drop_consumed(300)
        if end == "given up":
            going.close()  # type: ignore[attr-defined]
        else:
            store.recover()
            with contextlib.suppress(StoreError):
                list(going)
        index.check()
    with Store.open(tmp_path / "data") as store:
        index = TopicIndex(store, TOPIC, partition_width_ms=5, limits=IndexLimits(bulk_step_partitions=5))
        settled(index)
        added = dict(list(later.items())[:steps])
        index.check()
        BulkLoad(index.bulk, tmp_path / "files").load_all()
        settled(index).check()
        left, every = drained(index, "a"), entries | added
        assert left == {at: every[at] for at in left}
        assert every.keys() - acked <= left.keys()
        assert all(index.table.get(time // 5) is not None for at, time in every.items() if at not in acked)
