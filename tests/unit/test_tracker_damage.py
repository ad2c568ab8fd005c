"""Damaged files: noticed, set aside, reported, filled again; the rest goes on and no entry is ever another."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tracker import EARLIEST, NewEntry, Position, Store, StoreError, TopicIndex
from tracker.care.damage import DamagedRange

TOPIC = "persistent://public/default/damaged"
WIDTH_MS = 100
COUNT = 4_000
LAST = Position(3 + COUNT // 500, 0)

Entries = dict[tuple[int, int], int]


def raw_of(position: tuple[int, int]) -> bytes:
    return random.Random(str(position)).randbytes(100)


def some_entries(seed: int) -> Entries:
    choose = random.Random(seed)
    return {(3 + number // 500, number % 500): choose.randrange(4_000) for number in range(COUNT)}


def new_entries(entries: Entries) -> list[NewEntry]:
    return [NewEntry(time, *at, 1, raw_of(at)) for at, time in sorted(entries.items())]


def open_index(store: Store) -> TopicIndex:
    return TopicIndex(store, TOPIC, partition_width_ms=WIDTH_MS)


def fill(path: Path, entries: Entries) -> None:
    """Several files of entries, all written out."""
    with Store.open(path) as store:
        index = open_index(store)
        index.start_at(EARLIEST)
        index.view("a")
        index.add(new_entries(entries), LAST)


def data_file(path: Path) -> Path:
    """The file with the entries."""
    return max(path.glob("*.sst"), key=lambda file: file.stat().st_size)


def flip_bit(path: Path, choose: random.Random) -> None:
    file = data_file(path)
    data = bytearray(file.read_bytes())
    # Not in the last part: there is what RocksDB needs to find the rest.
    at = choose.randrange(len(data) * 7 // 8)
    data[at] ^= 1 << choose.randrange(8)
    file.write_bytes(data)


def truncate(path: Path, choose: random.Random) -> None:
    file = data_file(path)
    size = choose.randrange(file.stat().st_size)
    with file.open("r+b") as data:
        data.truncate(size)


def drained(index: TopicIndex, name: str = "a", ack: bool = True) -> Entries:
    found: Entries = {}
    view = index.view(name)
    for _ in range(10_000):
        due = index.due(view, 10_000, 50)
        for entry in due:
            at = (entry.ledger, entry.entry)
            assert at not in found
            assert entry.raw == raw_of(at)
            found[at] = entry.deliver_at_ms
            if ack:
                view.ack(*at)
        time = index.next_due_ms(view)
        if not due and (time is None or time > 10_000):
            return found
    raise AssertionError("the view never runs dry")


def is_lost(at: tuple[int, int], time: int, ranges: list[DamagedRange]) -> bool:
    return any(known.start_ms <= time < known.end_ms and known.lowest <= at <= known.highest for known in ranges)


def move_all(index: TopicIndex) -> None:
    for _ in range(10_000):
        if not index.damage.move_some(70):
            break
    else:
        raise AssertionError("moving never ends")
    while index.settle(100):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("harm", [flip_bit, truncate])
def test_what_is_lost_is_reported_and_filled_again(
    tmp_path: Path, harm: Callable[[Path, random.Random], None], seed: int
) -> None:
    choose = random.Random(seed)
    entries = some_entries(seed)
    fill(tmp_path, entries)
    harm(tmp_path, choose)
    with Store.open(tmp_path) as store:
        index = open_index(store)
        delivered = drained(index)
        ranges = index.damage.ranges
        assert {at for at, time in entries.items() if not is_lost(at, time, ranges)} <= delivered.keys()
        if harm is flip_bit:
            assert sum(known.entries for known in ranges) + index.entries == COUNT
        index.check()
        later = {(20, number): choose.randrange(4_000) for number in range(200)}
        index.add(new_entries(later), Position(20, 199))
        found = drained(index)
        assert found == later
        delivered |= found
        index.persist_views()
        index.check()
    with Store.open(tmp_path) as store:
        index = open_index(store)
        assert index.damage.ranges == ranges, "known after a restart"
        assert not drained(index), "what was acked stays so"
        for known in ranges:
            within = {at: time for at, time in entries.items() if known.lowest <= at <= known.highest}
            index.backfill(new_entries(within))
        index.damage.healed()
        assert index.damage.ranges == []
        delivered |= drained(index)
        assert delivered == entries | later
        move_all(index)
        index.check()
        assert index.entries == COUNT + 200
        assert drained(index, "fresh", ack=False) == entries | later
        index.persist_views()
    with Store.open(tmp_path) as store:
        index = open_index(store)
        assert not index.families.damaged
        move_all(index)
        index.check()
        assert index.counts.pending(index.view("a")) == 0
        assert drained(index, "fresh", ack=False) == entries | later


def test_reading_ahead_and_looking_around_find_damage_too(tmp_path: Path) -> None:
    entries = some_entries(1)
    fill(tmp_path, entries)
    flip_bit(tmp_path, random.Random(5))
    with Store.open(tmp_path) as store:
        index = open_index(store)
        index.view("a").active = True
        for now_ms in range(0, 10_001, WIDTH_MS):
            while index.prefetch(now_ms, 100):
                pass
        ranges = index.damage.ranges
        assert ranges
        index.check()
        assert sum(1 for _ in index.search._disk.scan(bytes(24), b"\x80" + bytes(23))) == index.entries
        lost = next(at for at, time in entries.items() if is_lost(at, time, ranges))
        assert index.search.locate(Position(*lost)) is None
        healthy = {at: time for at, time in entries.items() if not is_lost(at, time, ranges)}
        assert drained(index) == healthy


def test_a_move_goes_on_after_a_restart_while_entries_come_and_go(tmp_path: Path) -> None:
    entries = some_entries(3)
    fill(tmp_path, entries)
    flip_bit(tmp_path, random.Random(3))
    with Store.open(tmp_path) as store:
        drained(open_index(store), "b", ack=False)
    number, more = 0, dict[tuple[int, int], int]()
    for _ in range(200):
        with Store.open(tmp_path) as store:
            index = open_index(store)
            if not index.families.damaged:
                break
            index.damage.move_some(300)
            new = {(20, number + step): 37 * (number + step) % 4_000 for step in range(20)}
            number += 20
            index.add(new_entries(new), Position(20, number - 1))
            more |= new
            index.check()
    else:
        raise AssertionError("the move never ends")
    with Store.open(tmp_path) as store:
        index = open_index(store)
        healthy = {at: time for at, time in entries.items() if not is_lost(at, time, index.damage.ranges)}
        assert drained(index) == healthy | more


def test_records_that_cannot_be_read_are_a_clear_error(tmp_path: Path) -> None:
    fill(tmp_path, some_entries(2))
    for file in tmp_path.glob("*.sst"):
        file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(StoreError, match="cannot"), Store.open(tmp_path) as store:
        open_index(store)
