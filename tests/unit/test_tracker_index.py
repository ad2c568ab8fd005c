"""One topic's index: order, lateness, memory, dropping, restarts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import wait_until
from tracker import (
    EARLIEST,
    AckSet,
    DueEntry,
    NewEntry,
    Position,
    Store,
    StoreError,
    SubscriptionView,
    TopicIndex,
)
from tracker.keys import FIRST_KEY, key_time
from tracker.limits import IndexLimits
from tracker.near.packed_block import WINDOW_ENTRY_OVERHEAD

TOPIC = "persistent://public/default/t"
WIDTH_MS = 100


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def index(store: Store, request: pytest.FixtureRequest) -> TopicIndex:
    """Empty; a parameter says which limits it has."""
    fresh = TopicIndex(store, TOPIC, partition_width_ms=WIDTH_MS, limits=getattr(request, "param", None))
    fresh.start_at(Position(1, 9))
    return fresh


def entry(number: int, time: int, ledger: int = 2) -> NewEntry:
    return NewEntry(time, ledger, number, 1, b"raw-%d" % number)


def add(index: TopicIndex, *times: int) -> None:
    """Add entries after the harvested position, numbered on in ledger 2."""
    harvested = index.harvested_position or EARLIEST
    first = harvested.entry + 1 if harvested.ledger == 2 else 0
    entries = [entry(first + at, time) for at, time in enumerate(times)]
    index.add(entries, Position(2, first + len(times) - 1))


def numbers(found: list[DueEntry]) -> list[int]:
    return [due.entry for due in found]


def active_view(index: TopicIndex, name: str = "s") -> SubscriptionView:
    view = index.view(name)
    view.active = True
    return view


def load_window(index: TopicIndex, now_ms: int) -> None:
    while index.prefetch(now_ms, 10):
        pass


def test_entries_come_in_due_order_and_never_early(index: TopicIndex) -> None:
    view = active_view(index)
    add(index, 30, 10, 20, 20)
    assert index.next_due_ms(view) == 10
    assert index.due(view, 9, 10) == []
    assert numbers(index.due(view, 20, 2)) == [1, 2]
    assert numbers(index.due(view, 20, 10)) == [3]
    assert index.due(view, 29, 10) == []
    assert numbers(index.due(view, 30, 10)) == [0]
    assert index.next_due_ms(view) is None
    index.check()


def test_edge_times_are_kept(index: TopicIndex) -> None:
    view = active_view(index)
    add(index, 2**63 - 1, -5, 0, 2**31 * 1000)
    assert index.due(view, -1, 10) == []
    assert [due.deliver_at_ms for due in index.due(view, 2**31 * 1000 - 1, 10)] == [0, 0]
    assert numbers(index.due(view, 2**63 - 2, 10)) == [3]
    assert numbers(index.due(view, 2**63 - 1, 10)) == [0]
    index.check()


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_clock_that_steps_back_holds_entries_back(index: TopicIndex, in_memory: bool) -> None:
    view = active_view(index)
    index.due(view, 500, 10)
    if in_memory:
        load_window(index, 500)
    add(index, 300, 450, 600)
    assert index.due(view, 299, 10) == []
    assert index.next_due_ms(view) == 300
    assert numbers(index.due(view, 400, 10)) == [0]
    assert numbers(index.due(view, 600, 10)) == [1, 2]
    index.check()


def test_late_entries_come_first(index: TopicIndex) -> None:
    view = active_view(index)
    add(index, 10, 500)
    assert numbers(index.due(view, 400, 10)) == [0]
    add(index, 5, 3)
    assert view.late_count == 2
    assert index.next_due_ms(view) == 3
    assert numbers(index.due(view, 500, 2)) == [3, 2]
    assert numbers(index.due(view, 500, 2)) == [1]


@pytest.mark.parametrize("index", [IndexLimits(late_keys_max=2)], indirect=True, ids=[""])
def test_too_many_late_entries_move_the_cursor_back(index: TopicIndex) -> None:
    view = active_view(index)
    add(index, 10, 20, 30)
    assert numbers(index.due(view, 400, 10)) == [0, 1, 2]
    view.ack(2, 1)
    add(index, 5, 15, 25)
    assert view.late_count == 0
    index.check()
    # The ones outstanding or acked are passed over on the way.
    assert numbers(index.due(view, 400, 10)) == [3, 4, 5]
    index.check()


def test_acks_before_delivery_and_of_unknown_entries_hold(index: TopicIndex) -> None:
    view = active_view(index)
    assert view.ack(2, 1) is None
    add(index, 10, 20, 30)
    assert view.ack(2, 2) is None
    assert numbers(index.due(view, 100, 10)) == [0]
    key = view.ack(2, 0)
    assert key is not None
    assert index.get(key) is not None
    assert view.ack(2, 0) is None


def test_an_ack_cancels_a_late_entry(index: TopicIndex) -> None:
    view = active_view(index)
    index.due(view, 100, 10)
    add(index, 10, 20)
    view.ack(2, 0)
    view.advance(Position(2, 0))
    assert numbers(index.due(view, 100, 10)) == [1]
    index.check()


def test_merging_the_brokers_acks_releases_what_they_cover(index: TopicIndex) -> None:
    view = active_view(index)
    add(index, 10, 20, 30, 40)
    index.due(view, 100, 10)
    view.merge(AckSet.of(Position(2, 0), [(Position(2, 1), Position(2, 2))]))
    assert set(view.outstanding) == {(2, 1), (2, 3)}
    index.check()


def test_a_call_looks_at_a_bounded_number_of_acked_entries(store: Store) -> None:
    index = TopicIndex(store, TOPIC, partition_width_ms=WIDTH_MS, limits=IndexLimits(scan_keys=40))
    index.start_at(EARLIEST)
    view = active_view(index)
    add(index, *range(100))
    for number in range(99):
        view.ack(2, number)
    calls = 0
    while not (found := index.due(view, 200, 10)):
        assert (index.next_due_ms(view) or 0) <= 200
        assert view.is_passing
        calls += 1
    assert numbers(found) == [99]
    assert not view.is_passing
    assert calls == 2


def test_a_view_that_waits_passes_what_is_acked(store: Store) -> None:
    index = TopicIndex(store, TOPIC, partition_width_ms=WIDTH_MS, limits=IndexLimits(scan_keys=40))
    index.start_at(EARLIEST)
    view = index.view("s")
    add(index, *range(100))
    for number in {*range(100)} - {90}:
        view.ack(2, number)
    assert [index.pass_acked(view, 80) for _ in range(3)] == [True, False, False]
    assert key_time(view.cursor) == 80, "no further than to what was due by then"
    assert not index.pass_acked(view, 200)
    assert key_time(view.cursor) == 90
    assert not index.pass_acked(view, 200)
    assert numbers(index.due(view, 200, 10)) == [90]
    index.check()


def test_known_entries_are_skipped(index: TopicIndex) -> None:
    add(index, 10, 20)
    index.add([entry(0, 10), entry(1, 20), entry(2, 30)], Position(2, 5))
    assert index.entries == 3
    index.add([entry(2, 30)], Position(2, 4))
    assert index.harvested_position == Position(2, 5)
    index.check()


def test_disorder_is_refused_before_anything_is_written(index: TopicIndex) -> None:
    with pytest.raises(ValueError, match="out of order"):
        index.add([entry(3, 10), entry(2, 10)], Position(2, 3))
    with pytest.raises(ValueError, match="above the harvested position"):
        index.add([entry(3, 10)], Position(2, 2))
    assert index.entries == 0
    assert index.harvested_position == Position(1, 9)
    index.check()


def test_a_fresh_index_must_be_started_once(store: Store) -> None:
    index = TopicIndex(store, TOPIC)
    assert index.harvested_position is None
    assert index.floor is None
    with pytest.raises(StoreError, match="not started"):
        index.add([], Position(1, 0))
    index.start_at(Position(1, 0))
    with pytest.raises(StoreError, match="begun already"):
        index.start_at(Position(1, 0))


def test_backfill_counts_what_is_new(index: TopicIndex) -> None:
    view = active_view(index)
    add(index, 10)
    index.due(view, 50, 10)
    old = [NewEntry(20, 1, number, 2, b"old") for number in (3, 4)]
    assert index.backfill([*old, old[0], entry(0, 10), entry(9, 10)]) == 2
    assert index.backfill(old) == 0
    assert index.entries == 3
    assert [due[2:5] for due in index.due(view, 50, 10)] == [(1, 3, 2), (1, 4, 2)]
    index.check()


def test_the_floor_does_not_sink_below_what_was_dropped_meanwhile(index: TopicIndex) -> None:
    view = active_view(index)
    index.backfill([NewEntry(20, 1, 3, 1, b"old"), NewEntry(220, 1, 5, 1, b"old")])
    for due in index.due(view, 50, 10):
        view.ack(due.ledger, due.entry)
    assert index.drop_consumed(100) == 1
    assert index.floor == Position(1, 9)
    assert index.lower_floor(EARLIEST) == Position(1, 3)
    assert index.lower_floor(Position(1, 8)) == Position(1, 3)


def test_partitions_are_counted_and_dropped_whole(index: TopicIndex) -> None:
    view = active_view(index)
    add(index, 10, 20, 110)
    assert index.drop_consumed(1_000) == 0
    assert [(p.start_ms, p.end_ms, p.entries, p.max_position.entry) for p in index.partitions(0)] == [
        (0, 100, 2, 1),
        (100, 200, 1, 2),
    ]
    assert index.bytes == 3 * (24 + 1 + 5)
    index.due(view, 50, 10)
    view.ack(2, 0)
    assert index.drop_consumed(100) == 0, "one is outstanding"
    view.ack(2, 1)
    assert index.drop_consumed(99) == 0, "the partition has not passed"
    assert index.drop_consumed(100) == 1
    assert index.floor == Position(2, 1)
    assert index.low_water_key[:8] == (100).to_bytes(8, "big")
    assert numbers(index.due(view, 200, 10)) == [2]
    index.check()


def test_nothing_is_dropped_without_views_or_under_an_inactive_one(index: TopicIndex) -> None:
    add(index, 10)
    assert index.drop_consumed(1_000) == 0
    view = index.view("idle")
    assert index.drop_consumed(1_000) == 0
    view.advance(Position(2, 0))
    assert index.drop_consumed(1_000) == 1
    index.check()


def test_every_view_gets_every_entry(index: TopicIndex) -> None:
    one, other = active_view(index, "one"), active_view(index, "other")
    load_window(index, 0)
    add(index, 10, 20)
    assert numbers(index.due(one, 50, 10)) == [0, 1]
    load_window(index, 50)
    assert numbers(index.due(other, 50, 10)) == [0, 1]


@pytest.mark.parametrize("index", [IndexLimits(drop_examined_max=2)], indirect=True, ids=[""])
def test_partitions_behind_a_blocked_one_are_reached(index: TopicIndex) -> None:
    view = active_view(index)
    add(index, *range(50, 1_050, 100))
    for due in index.due(view, 1_100, 100):
        if due.entry > 3:
            view.ack(due.ledger, due.entry)
    assert sum(index.drop_consumed(1_100) for _ in range(10)) == 6
    assert index.entries == 4
    index.check()


def test_the_window_stays_within_its_budget(store: Store) -> None:
    budget = 20 * (WINDOW_ENTRY_OVERHEAD + 10)
    index = TopicIndex(store, TOPIC, partition_width_ms=WIDTH_MS, near_term_bytes=budget, horizon_ms=10_000)
    index.start_at(EARLIEST)
    view = active_view(index)
    load_window(index, 0)
    add(index, *range(500))
    assert 0 < index.window.bytes_held <= budget
    assert index.window.high <= list(index.partitions(0))[-1].start_ms.to_bytes(8, "big") + bytes(16)
    index.check()
    found: list[DueEntry] = []
    for now in range(0, 500, 7):
        load_window(index, now)
        found += index.due(view, now, 100)
        index.check()
    assert numbers(found) == list(range(498))


def test_a_slow_view_does_not_keep_the_window_from_a_fast_one(store: Store) -> None:
    budget = 20 * (WINDOW_ENTRY_OVERHEAD + 10)
    index = TopicIndex(store, TOPIC, partition_width_ms=WIDTH_MS, near_term_bytes=budget, horizon_ms=100)
    index.start_at(EARLIEST)
    fast, slow = active_view(index, "fast"), active_view(index, "slow")
    add(index, *range(500))
    load_window(index, 0)
    assert numbers(index.due(fast, 400, 1_000)) == list(range(401))
    load_window(index, 400)
    assert index.window.covers(fast.cursor)
    assert numbers(index.due(slow, 450, 1_000)) == list(range(451))
    index.check()


def test_a_seek_starts_over(index: TopicIndex) -> None:
    view = active_view(index)
    add(index, 10, 20, 30)
    assert numbers(index.due(view, 50, 10)) == [0, 1, 2]
    view.ack(2, 0)
    view.reset(AckSet.of(Position(2, 0), [(Position(2, 1), Position(2, 2))]))
    assert view.cursor == FIRST_KEY
    assert numbers(index.due(view, 50, 10)) == [1]
    view.release_all()
    assert numbers(index.due(view, 50, 10)) == [1]
    index.check()


def test_a_restart_forgets_the_outstanding_and_keeps_the_acks(store: Store, index: TopicIndex) -> None:
    view = active_view(index)
    view.covered = True
    add(index, 10, 20, 30, 250)
    index.due(view, 50, 10)
    view.ack(2, 0)
    view.advance(Position(1, 20))
    assert index.persist_views() == 3
    assert index.persist_views() == 0
    view.ack(2, 1)
    again = TopicIndex(store, TOPIC, partition_width_ms=WIDTH_MS)
    assert again.harvested_position == Position(2, 3)
    assert again.floor == Position(1, 9)
    loaded = again.view("s")
    assert (loaded.covered, loaded.active, loaded.mark_delete_position) == (True, False, Position(1, 20))
    assert numbers(again.due(loaded, 50, 10)) == [1, 2]
    again.check()


def test_a_removed_view_is_forgotten(store: Store, index: TopicIndex) -> None:
    for name in ("s", "s2"):
        index.view(name).ack(2, 1)
    index.persist_views()
    index.remove_view("s")
    index.remove_view("unknown")
    again = TopicIndex(store, TOPIC, partition_width_ms=WIDTH_MS)
    assert set(again.views()) == {"s2"}
    assert len(again.view("s").acks) == 0
    assert len(again.view("s2").acks) == 1


def test_another_partition_width_is_refused(store: Store, index: TopicIndex) -> None:
    with pytest.raises(StoreError, match=r"100 ms.*200 ms"):
        TopicIndex(store, TOPIC, partition_width_ms=200)
    with pytest.raises(ValueError, match="at least 1 ms"):
        TopicIndex(store, TOPIC, partition_width_ms=0)


def test_a_failed_write_changes_nothing(index: TopicIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    view = active_view(index)
    add(index, 10)

    def fail(_store: Store, _batch: object) -> None:
        raise StoreError("disk full")

    with monkeypatch.context() as broken:
        broken.setattr(Store, "write", fail)
        with pytest.raises(StoreError):
            add(index, 20)
        view.ack(2, 5)
        with pytest.raises(StoreError):
            index.persist_views()
        with pytest.raises(StoreError):
            index.view("new")
    index.check()
    assert index.harvested_position == Position(2, 0)
    assert set(index.views()) == {"s"}
    assert index.persist_views() == 1


def test_next_due_looks_past_the_window_without_reading(index: TopicIndex) -> None:
    view = active_view(index)
    index.due(view, 0, 10)
    load_window(index, 0)
    add(index, 100_000)
    assert len(index.window) == 0
    assert index.next_due_ms(view) == 100_000
    add(index, 50)
    assert index.next_due_ms(view) == 50


def test_large_message_counts_come_back(index: TopicIndex) -> None:
    view = active_view(index)
    index.add([NewEntry(10, 2, 0, 1_000, b"batch"), NewEntry(10, 2, 1, 0, b"odd")], Position(2, 1))
    assert [due.message_count for due in index.due(view, 10, 10)] == [1_000, 1]


def test_disk_space_of_dropped_partitions_is_given_back(tmp_path: Path) -> None:
    limits = IndexLimits(reclaim_bytes=1_000_000)

    def table_bytes() -> int:
        return sum(file.stat().st_size for file in tmp_path.glob("*.sst"))

    with Store.open(tmp_path) as store:
        index = TopicIndex(store, TOPIC, partition_width_ms=WIDTH_MS, limits=limits)
        index.start_at(EARLIEST)
        choose = random.Random(1)
        entries = [NewEntry(number // 10, 1, number, 1, choose.randbytes(500)) for number in range(10_000)]
        index.add(entries, Position(1, 9_999))
        index.view("a").advance(Position(1, 7_999))
    with Store.open(tmp_path) as store:
        index = TopicIndex(store, TOPIC, partition_width_ms=WIDTH_MS, limits=limits)
        index.view("a").advance(Position(1, 7_999))
        before = table_bytes()
        assert before > 5_000_000
        assert index.drop_consumed(1_000_000) == 8
        assert index.has_space_to_reclaim
        index.reclaim()
        wait_until(lambda: table_bytes() < before * 0.25, "files are gone")
        index.check()
        assert len(index.due(index.view("a"), 1_000_000, 10_000, 2**30)) == 2_000


def test_a_read_that_fails_passes_nothing_over(index: TopicIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    view = active_view(index)
    add(index, 10, 20)

    def fail(*_: object) -> Iterator[DueEntry]:
        raise StoreError("input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(index.reader, "unacked", fail)
        with pytest.raises(StoreError):
            index.due(view, 50, 10)
    assert numbers(index.due(view, 50, 10)) == [0, 1]


def test_views_are_persisted_in_portions(store: Store) -> None:
    """One whose acks are to be counted ends a portion, and what is written one by one is what is read again."""
    index = TopicIndex(store, TOPIC, partition_width_ms=WIDTH_MS, limits=IndexLimits(views_slice=3))
    index.start_at(EARLIEST)
    add(index, *range(10))
    for number in range(8):
        index.view(f"s{number}").ack(2, number)
        if number != 4:
            index.settle(100)
    portions = list(index.portions())
    assert [name for portion in portions for name in portion] == [f"s{number}" for number in range(8)]
    assert max(map(len, portions)) <= 3
    for portion in portions:
        assert index.persist_views([*portion, "gone"]) > 0
    assert index.persist_views() == 0
    again = TopicIndex(store, TOPIC, partition_width_ms=WIDTH_MS)
    assert all(again.view(f"s{number}").acks.contains(2, number) for number in range(8))
    assert {again.counts.pending(again.view(f"s{number}")) for number in range(8)} == {9}
