"""A data directory of an older format is opened and brought up to this one."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tracker import Position, Store, StoreError, TopicIndex

DATA = Path(__file__).parent.parent / "data"
TOPICS = {"persistent://public/default/old": 300_000, "persistent://public/default/narrow": 1_000}
BASE_MS = 1_790_000_000_000


@pytest.fixture
def first_format(tmp_path: Path) -> Path:
    """Two topics with entries 4:0 … 6:99; `a` acked every third, `b` all up to 5:49."""
    with tarfile.open(DATA / "format-1.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def due_ms(number: int, width_ms: int) -> int:
    return BASE_MS + (number * 7919) % 100_000 * (width_ms // 1000)


def test_everything_is_there_after_the_upgrade(first_format: Path) -> None:
    for _ in range(2):
        with Store.open(first_format) as store:
            for topic, width_ms in TOPICS.items():
                index = TopicIndex(store, topic, partition_width_ms=width_ms)
                assert index.harvested_position == Position(7, 5)
                assert index.floor == Position(3, 9)
                assert index.entries == 300
                while index.settle(10):
                    pass
                index.check()
                assert index.view("a").covered
                assert index.counts.pending(index.view("a")) == 200
                assert index.counts.pending(index.view("b")) == 150
                for number in (0, 150, 299):
                    entry = index.search.locate(Position(4 + number // 100, number % 100))
                    assert entry is not None
                    assert entry.deliver_at_ms == due_ms(number, width_ms)
                    assert entry.raw == f"raw {number}".encode() * 3
                index.persist_views()


def test_another_width_is_refused_before_anything_is_changed(first_format: Path) -> None:
    topic = next(iter(TOPICS))
    with Store.open(first_format) as store, pytest.raises(StoreError, match="300000 ms, it cannot be opened with 7 ms"):
        TopicIndex(store, topic, partition_width_ms=7)
    with Store.open(first_format) as store:
        assert TopicIndex(store, topic).entries == 300
