"""Counts for charts and overviews: the same as counting the entries one by one."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracker import NewEntry, Position, Store, TopicIndex
from tracker.partitions.page import PAGE_PARTITIONS

WIDTH_MS = 1_000
START = 1_800_000_000_000
COUNT = 4_000
SPAN = 300 * WIDTH_MS


@pytest.fixture
def index(tmp_path: Path) -> Iterator[TopicIndex]:
    choose = random.Random(4)
    with Store.open(tmp_path) as store:
        made = TopicIndex(store, "persistent://a/b/c", partition_width_ms=WIDTH_MS, near_term_bytes=1 << 16)
        made.start_at(Position(1, -1))
        dues = [START + choose.randrange(SPAN) for _ in range(COUNT)]
        made.add([NewEntry(due, 1, n, 1, bytes(20)) for n, due in enumerate(dues)], Position(1, COUNT))
        view = made.view("s")
        view.active = True
        for number in range(0, COUNT, 3):
            view.ack(1, number)
        while made.settle(100):
            pass
        while made.prefetch(START, 100):
            pass
        assert 0 < len(made.window) < COUNT, "a part of it is in memory"
        made.dues = dues  # type: ignore[attr-defined]
        yield made


def dues(index: TopicIndex, *, pending: bool = False) -> list[int]:
    known: list[int] = index.dues  # type: ignore[attr-defined]
    return [due for number, due in enumerate(known) if not pending or number % 3]


@pytest.mark.parametrize("per_bar", [1, 7, PAGE_PARTITIONS, 3 * PAGE_PARTITIONS])
def test_bars_are_what_the_partitions_are(index: TopicIndex, per_bar: int) -> None:
    view = index.view("s")
    first = START // WIDTH_MS // per_bar * per_bar
    count = -(-(START // WIDTH_MS + 300 - first) // per_bar)
    bars = list(index.counts.bars(first, per_bar, count, view))
    for bar in bars:
        end = bar.start_ms + per_bar * WIDTH_MS
        assert bar.entries == sum(bar.start_ms <= due < end for due in dues(index))
        assert bar.pending == sum(bar.start_ms <= due < end for due in dues(index, pending=True))
    partitions = list(index.partitions(START))
    assert sum(bar.entries for bar in bars) == COUNT
    assert sum(bar.bytes for bar in bars) == index.bytes
    in_memory = [each for each in partitions if each.tier == "memory"]
    assert sum(bar.memory_entries for bar in bars) == sum(each.entries for each in in_memory)
    assert sum(bar.memory_bytes for bar in bars) == sum(each.bytes for each in in_memory)
    assert all(bar.pending is None for bar in index.counts.bars(first, per_bar, count, None))


@pytest.mark.parametrize(
    ("start", "end"), [(0, SPAN), (500, 20_500), (1_250, 1_750), (90_000, 250_400), (400_000, 500_000)]
)
def test_about_is_about_right(index: TopicIndex, start: int, end: int) -> None:
    view = index.view("s")
    for known, of in ((dues(index), None), (dues(index, pending=True), view)):
        exact = sum(START + start <= due < START + end for due in known)
        (about,) = index.counts.about(START + start, [START + end], of)
        # At most what lies in the two partitions that the bounds cut is guessed.
        assert abs(about - exact) <= 20
        if start % WIDTH_MS == end % WIDTH_MS == 0 and of is None:
            assert about == exact


def test_about_adds_up_bound_by_bound(index: TopicIndex) -> None:
    view, ends = index.view("s"), [START + each for each in (300, 900, 1_700, 60_000, 60_400, 250_123, 10 * SPAN)]
    together = index.counts.about(START + 250, ends, view)
    assert together == [index.counts.about(START + 250, [end], view)[0] for end in ends]
    assert together == sorted(together)
    assert together[-1] == pytest.approx(len(dues(index, pending=True)), abs=20)


def test_the_first_and_the_last(index: TopicIndex) -> None:
    assert index.latest_ms() == max(dues(index))
    span = index.table.span()
    assert span == (min(dues(index)) // WIDTH_MS, max(dues(index)) // WIDTH_MS)


def test_nothing_is_nothing(tmp_path: Path) -> None:
    with Store.open(tmp_path / "empty") as store:
        empty = TopicIndex(store, "persistent://a/b/d", partition_width_ms=WIDTH_MS)
        empty.start_at(Position(1, -1))
        assert empty.latest_ms() is None
        assert empty.table.span() is None
        assert empty.counts.about(START, [START + 1, START + SPAN], empty.view("s")) == [0, 0]
        assert [bar.entries for bar in empty.counts.bars(0, 10, 3, None)] == [0, 0, 0]
