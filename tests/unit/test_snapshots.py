"""Snapshots: what an index held is what another one has, no more is claimed, and nothing damaged is believed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.clock import system_randbits
from bridge.refill.snapshots.folder import GRACE_S, SnapshotFolder
from bridge.refill.snapshots.restoring import Found, Restore, find
from bridge.refill.snapshots.share import SnapshotShare
from bridge.refill.snapshots.writing import SnapshotTaker
from tracker import NewEntry, Position, Store, TopicIndex
from tracker.bulk.files import BulkError
from tracker.snapshots.contents import SNAPSHOT_FORMAT, Snapshot

TOPIC = "persistent://public/default/snapshots"
WIDTH_MS = 100
IDENTITY = 77
START = Position(3, -1)
NOW_MS = 1_000_000_000_000


class Place:
    """A data directory with an index, beside a shared folder."""

    def __init__(self, folder: Path, shared: Path) -> None:
        folder.mkdir(exist_ok=True)
        if not shared.is_file():
            shared.mkdir(exist_ok=True)
        self.store = Store.open(folder / "data")
        self.index = TopicIndex(self.store, TOPIC, partition_width_ms=WIDTH_MS)
        self.share = SnapshotShare(shared, 3_600_000, folder / "on-the-way", system_randbits)
        self.now_ms = NOW_MS
        self.taker = SnapshotTaker(TOPIC, self.index, self.share, lambda: self.now_ms)

    def close(self) -> None:
        self.share.close()
        self.store.close()

    def add(self, first: int, times: list[int]) -> None:
        entries = [NewEntry(time, 3, first + number, 1, raw_of(first + number)) for number, time in enumerate(times)]
        self.index.add(entries, Position(3, first + len(times) - 1))

    def take(self) -> Snapshot:
        self.now_ms += 1
        return asyncio.run(self.taker.take())[0]

    def find(self, identity: int = IDENTITY) -> Found | None:
        return asyncio.run(find(self.share, TOPIC, identity))

    def begin(self, upto: Position = START, found: Found | None = None) -> None:
        self.index.start_at(upto)
        self.index.identify(IDENTITY)
        if found is not None:
            self.index.restore.give_views(found.views)

    def load(self, found: Found, on_loaded: Callable[[], None] = lambda: None) -> bool:
        return asyncio.run(Restore(TOPIC, self.index, self.share, found, lambda _: asyncio.sleep(0)).run(on_loaded))

    def begin_with_snapshot(self, upto: Position) -> bool:
        """As a bridge does whose topic ends there."""
        found = self.find()
        assert found is not None
        self.begin(upto, found)
        return self.load(found)


@pytest.fixture
def place(tmp_path: Path) -> Any:
    made: list[Place] = []

    def make(name: str = "a") -> Place:
        made.append(Place(tmp_path / name, tmp_path / "shared"))
        return made[-1]

    yield make
    for each in made:
        each.close()


def raw_of(entry: int) -> bytes:
    return f"entry {entry}".encode() * 3


def everything(index: TopicIndex) -> dict[int, tuple[int, bytes]]:
    return {one.entry: (one.deliver_at_ms, one.raw) for one in index.reader.scan(bytes(24), b"\x80" + bytes(23))}


def counters(index: TopicIndex) -> list[tuple[int, ...]]:
    return [(each.number, each.entries, each.size, *each.lowest, *each.highest) for each in index.table]


def settled(index: TopicIndex) -> TopicIndex:
    while index.settle(10):
        pass
    return index


def folder_of(place: Place) -> SnapshotFolder:
    return SnapshotFolder(place.share.shared, TOPIC, IDENTITY)


def covered(index: TopicIndex, *names: str) -> None:
    for name in names:
        index.view(name).covered = True


def test_an_index_and_its_snapshot_agree(place: Callable[..., Place]) -> None:
    here, there = place("a"), place("b")
    here.begin()
    here.add(0, [2_000 + 7 * number % 3_000 for number in range(2_000)])
    view = here.index.view("s")
    view.history = 5
    covered(here.index, "s")
    for entry in range(0, 2_000, 3):
        view.ack(3, entry)
    snapshot = here.take()
    assert (snapshot.upto, snapshot.after, snapshot.entries) == (Position(3, 1_999), START, 2_000)
    end = Position(3, 2_999)
    assert there.begin_with_snapshot(end)
    index = settled(there.index)
    index.check()
    assert everything(index) == everything(here.index)
    assert counters(index) == counters(here.index)
    assert index.floor == START
    assert [each[3:] for each in index.damage.missing] == [(Position(3, 2_000), end)]
    assert not index.damage.ranges
    other = index.view("s")
    assert other.covered
    assert (other.history, [*other.acks.ranges()]) == (5, [*view.acks.ranges()])
    assert index.counts.pending(other) == settled(here.index).counts.pending(view)
    for entry in (0, 1, 1_999):
        found = index.search.locate(Position(3, entry))
        assert found is not None
        assert found.raw == raw_of(entry)
    # The rest is read, as after any takeover by a bridge that is behind.
    assert index.backfill([NewEntry(5_000, 3, 2_500, 1, b"rest")]) == 1
    index.damage.healed()
    assert settled(index).entries == 2_001
    index.check()


def test_what_did_not_change_keeps_its_files(place: Callable[..., Place]) -> None:
    here = place()
    here.begin()
    here.add(0, [number * WIDTH_MS for number in range(1, 2_000)])
    first = here.take()
    names = {file.name for group in first.load.groups for file in group.files}
    assert len(names) > 5
    here.add(1_999, [150])
    second = here.take()
    again = {file.name for group in second.load.groups for file in group.files}
    assert len(again - names) == 1
    assert len(names - again) == 1
    assert here.taker.status.made_at_ms is None
    assert second.entries == 2_000
    third = here.take()
    assert {file.name for group in third.load.groups for file in group.files} == again
    assert third.load.positions == second.load.positions != first.load.positions


def test_what_nobody_names_is_removed_later(place: Callable[..., Place]) -> None:
    here = place()
    here.begin()
    folder = folder_of(here)
    for number in range(4):
        here.add(number, [500])
        here.take()
    assert len(folder.manifests()) == 2
    kept = {name for each in folder.manifests() for name in files_of(folder, each)}
    unnamed = {each.name for each in folder.path.iterdir()} - kept - {*folder.manifests()}
    assert unnamed  # somebody may be about to name them
    for name in unnamed:
        os.utime(folder.path / name, (0, 0))
    here.take()
    left = {each.name for each in folder.path.iterdir()}
    assert not unnamed & left
    newest = folder.newest()
    assert newest is not None
    assert {file.name for file in newest.files} <= left
    assert GRACE_S > 600


def files_of(folder: SnapshotFolder, name: str) -> set[str]:
    return {file.name for file in Snapshot.decode((folder.path / name).read_bytes()).files}


DAMAGES: dict[str, Callable[[Path], object]] = {
    "one byte": lambda path: path.write_bytes(path.read_bytes()[:-9] + b"?" + path.read_bytes()[-8:]),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_each_damaged_file_is_refused(place: Callable[..., Place], damage: Callable[[Path], object]) -> None:
    here = place()
    here.begin()
    here.add(0, [number * WIDTH_MS for number in range(1, 300)])
    here.index.view("s").ack(3, 7)
    covered(here.index, "s")
    here.take()
    folder = folder_of(here)
    for number, path in enumerate(sorted(folder.path.iterdir())):
        good = path.read_bytes()
        damage(path)
        there = place(f"b{number}")
        if path.suffix in (".manifest", ".views"):
            assert there.find() is None
        else:
            assert not there.begin_with_snapshot(Position(3, 400))
            assert not there.index.table.loading
            assert there.index.floor == Position(3, 400)
            assert not there.index.view("s").covered
            settled(there.index).check()
        path.write_bytes(good)
    newest = folder.newest()
    assert newest is not None


def test_a_snapshot_of_a_newer_format_or_another_topic_is_refused(place: Callable[..., Place]) -> None:
    here = place()
    here.begin()
    here.add(0, [500])
    snapshot = here.take()
    for changed in (
        snapshot.model_copy(update={"format": SNAPSHOT_FORMAT + 1}),
        snapshot.model_copy(update={"identity": IDENTITY + 1}),
        snapshot.model_copy(update={"load": snapshot.load.model_copy(update={"topic": "persistent://a/b/c"})}),
        snapshot.model_copy(update={"views": snapshot.views.model_copy(update={"name": "../../secret"})}),
    ):
        folder = folder_of(here)
        for name in folder.manifests():
            (folder.path / name).unlink()
        folder.publish(changed, "0" * 32)
        with pytest.raises(BulkError):
            folder.newest()
        assert here.find() is None
    assert here.find(IDENTITY + 1) is None


def test_an_index_that_lacks_something_is_not_written(place: Callable[..., Place]) -> None:
    here = place()
    here.begin()
    here.add(0, [500])
    view = here.index.view("s")
    with pytest.raises(BulkError):
        here.take()
    view.covered = True
    here.index.skip_to(Position(3, 9))
    with pytest.raises(BulkError):
        here.take()
    here.index.damage.healed()
    begun = here.index.source.begin()
    assert begun is not None
    here.index.backfill([NewEntry(600, 3, 5, 1, b"late")])
    assert here.index.source.end(begun) is None
    here.take()


def test_dropped_entries_are_claimed_only_where_they_are_acked(place: Callable[..., Place]) -> None:
    here, there = place("a"), place("b")
    here.begin()
    here.add(0, [100, 5_000, 110, 5_000])
    for name in ("behind", "set back"):
        view = here.index.view(name)
        view.covered = True
        for entry in (0, 2):
            view.ack(3, entry)
    settled(here.index)
    assert here.index.drop_consumed(1_000) == 1
    assert here.index.floor == Position(3, 2)
    here.take()
    found = there.find()
    assert found is not None
    there.begin(Position(3, 9), found)
    there.index.view("set back").reset(type(view.acks)(START))  # a seek since
    assert there.load(found)
    assert there.index.floor == Position(3, 2)
    assert there.index.view("behind").covered
    assert not there.index.view("set back").covered


def test_a_load_that_was_cut_short_goes_on(place: Callable[..., Place], tmp_path: Path) -> None:
    here, there = place("a"), place("b")
    here.begin()
    here.add(0, [number * WIDTH_MS for number in range(1, 2_000)])
    covered(here.index, "s")
    here.take()
    found = there.find()
    assert found is not None
    there.begin(Position(3, 2_500), found)
    loaded = 0

    def stop() -> None:
        nonlocal loaded
        loaded += 1
        if loaded == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        there.load(found, stop)
    assert there.index.bulk.unfinished() == {found.snapshot.load.id}
    there.store.close()
    again = place("b")
    assert again.index.floor == Position(3, 2_500)
    assert again.load(found)
    assert everything(again.index) == everything(here.index)
    assert again.index.floor == START
    settled(again.index).check()


def test_who_is_no_owner_any_more_leaves_no_manifest(place: Callable[..., Place]) -> None:
    here = place()
    here.begin()
    here.add(0, [number * WIDTH_MS for number in range(1, 1_000)])

    async def cancelled() -> None:
        taking = asyncio.ensure_future(here.taker.take())
        await asyncio.sleep(0.01)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking

    asyncio.run(cancelled())
    assert not folder_of(here).manifests()


def test_the_one_that_goes_furthest_is_the_snapshot(place: Callable[..., Place]) -> None:
    here, there = place("a"), place("b")
    for each, count in ((here, 5), (there, 3)):
        each.begin()
        each.add(0, [500] * count)
        each.take()
    newest = folder_of(here).newest()
    assert newest is not None
    assert newest.upto == Position(3, 4)


def test_a_folder_that_cannot_be_written_is_told_once(
    place: Callable[..., Place], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "shared").write_text("a file")
    here = place()
    here.begin()
    here.add(0, [500])
    for _ in range(2):
        asyncio.run(here.taker._try())
    status = here.taker.status
    assert status.error is not None
    assert status.made_at_ms is None
    assert status.age_ms(NOW_MS + 5) == 5
    assert here.find() is None


step = st.tuples(st.sampled_from(["add", "ack", "drop", "take"]), st.integers(0, 40), st.integers(0, 30))


@given(st.lists(step, max_size=25))
@pytest.mark.slow
@settings(max_examples=20, deadline=None)
def test_whatever_happens_the_snapshot_is_what_the_index_was(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("model")
    here, there = Place(folder / "a", folder / "shared"), Place(folder / "b", folder / "shared")
    try:
        here.begin()
        covered(here.index, "s")
        entries = now_ms = 0
        for what, number, more in [*steps, ("take", 0, 0)]:
            if what == "add":
                times = [now_ms + number * 30 + each * 11 for each in range(more)]
                if times:
                    here.add(entries, times)
                entries += more
            elif what == "ack":
                for each in range(number, number + more):
                    if each < entries:
                        here.index.view("s").ack(3, each)
            elif what == "drop":
                now_ms += number * 10
                settled(here.index).drop_consumed(now_ms)
            else:
                here.take()
        end = Position(3, entries + 10)
        assert there.begin_with_snapshot(end)
        index = settled(there.index)
        index.check()
        wanted, found = everything(here.index), everything(index)
        acks = index.view("s").acks
        assert wanted.items() <= found.items()
        assert all(acks.contains(3, entry) for entry in found.keys() - wanted.keys())
        assert index.view("s").covered
        assert index.counts.pending(index.view("s")) == settled(here.index).counts.pending(here.index.view("s"))
        assert here.index.floor == index.floor
    finally:
        here.close()
        there.close()
