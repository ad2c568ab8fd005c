"""The topic index against a plain dictionary, through adds, acks, seeks, drops, clock steps and crashes."""

from __future__ import annotations

import shutil
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.helpers import examples
from tracker import AckSet, DueEntry, NewEntry, Position, Store, SubscriptionView, TopicIndex
from tracker.limits import IndexLimits, StoreLimits
from tracker.position import EARLIEST
from tracker.search import Query, Standing
from tracker.store import database as database_module

TOPIC = "persistent://public/default/model"
WIDTH_MS = 100
START = Position(3, 9)
LEDGER_ENTRIES = 10
YEAR_2038_MS = 2**31 * 1000
MAX_MS = 2**63 - 1

times = st.one_of(st.integers(-5, 1_000), st.sampled_from([0, -1, YEAR_2038_MS - 1, YEAR_2038_MS, MAX_MS, 2**64]))
clocks = st.one_of(st.integers(-5, 1_200), st.sampled_from([YEAR_2038_MS, MAX_MS]))
names = st.sampled_from(["a", "b", "c"])
picks = st.integers(0, 10_000)


def quiet_family_options(cache: Any, limits: StoreLimits, damaged: bool = False) -> Any:
    """Return options without compaction, so that an open database's files stand still while they are copied."""
    options = family_options(cache, limits, damaged)
    options.set_disable_auto_compactions(True)
    return options


family_options = database_module.family_options


def patch_family_options(options: Any) -> None:
    database_module.family_options = options


class ViewModel:
    """What a view must know."""

    def __init__(self) -> None:
        self.mark_delete = EARLIEST
        self.acked: set[Position] = set()
        self.outstanding: set[Position] = set()
        self.expedited: set[Position] = set()

    def is_acked(self, position: Position) -> bool:
        return position <= self.mark_delete or position in self.acked

    def snapshot(self) -> ViewModel:
        copy = ViewModel()
        copy.mark_delete, copy.acked, copy.expedited = self.mark_delete, set(self.acked), set(self.expedited)
        return copy


class TopicIndexMachine(RuleBasedStateMachine):
    """Each rule does the same to the index and to the model; the invariants compare them."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        patch_family_options(quiet_family_options)
        self.generation = 0
        self.store = Store.open(self.root / "0")
        self.index: TopicIndex
        self.stored: dict[Position, int] = {}
        self.history: dict[Position, int] = {}
        self.views: dict[str, ViewModel] = {}
        self.persisted: dict[str, ViewModel] = {}
        self.harvested = START
        self.limits = IndexLimits()

    @initialize(
        budget=st.sampled_from([0, 200, 500, 1_200, 10**6]),
        late_max=st.sampled_from([2, 100_000]),
        journal=st.sampled_from([1, 7, 100_000]),
        horizon=st.sampled_from([0, 50, 200, 10**5]),
        history=st.lists(times, min_size=20, max_size=20),
    )
    def start(self, budget: int, late_max: int, journal: int, horizon: int, history: list[int]) -> None:
        self.limits = IndexLimits(late_keys_max=late_max, journal_entries=journal)
        self.budget, self.horizon = budget, horizon
        self.open_index()
        self.index.start_at(START)
        self.history = {self.position_at(n): time for n, time in enumerate(history)}
        for name in ("a", "b"):
            self.create_view(name)

    def teardown(self) -> None:
        patch_family_options(family_options)
        self.store.close()
        shutil.rmtree(self.root)

    def open_index(self) -> None:
        self.index = TopicIndex(
            self.store,
            TOPIC,
            partition_width_ms=WIDTH_MS,
            near_term_bytes=self.budget,
            horizon_ms=self.horizon,
            limits=self.limits,
        )

    @staticmethod
    def position_at(number: int) -> Position:
        return Position(1 + number // LEDGER_ENTRIES, number % LEDGER_ENTRIES)

    @staticmethod
    def stored_time(time: int) -> int:
        return max(0, min(time, MAX_MS))

    def entry(self, position: Position, time: int) -> NewEntry:
        return NewEntry(time, position.ledger, position.entry, 1 + position.entry % 3, str(position).encode() * 5)

    def remember(self, position: Position, time: int) -> None:
        self.stored[position] = self.stored_time(time)

    def pending(self, name: str) -> dict[Position, int]:
        model = self.views[name]
        return {
            position: time
            for position, time in self.stored.items()
            if not model.is_acked(position) and position not in model.outstanding
        }

    def view(self, name: str) -> SubscriptionView:
        return self.index.view(name)

    # --- filling

    @rule(new=st.lists(times, max_size=8), repeat=st.booleans(), skip=st.integers(0, 2))
    def add(self, new: list[int], repeat: bool, skip: int) -> None:
        number = (self.harvested.ledger - 1) * LEDGER_ENTRIES + self.harvested.entry + 1 + skip
        entries = []
        if repeat and self.harvested in self.stored:
            entries.append(self.entry(self.harvested, self.stored[self.harvested]))
        for time in new:
            entries.append(self.entry(self.position_at(number), time))
            self.remember(self.position_at(number), time)
            number += 1
        self.harvested = max(self.harvested, self.position_at(number - 1))
        self.index.add(entries, self.harvested)

    @rule(numbers=st.lists(st.integers(0, 19), max_size=8))
    def backfill(self, numbers: list[int]) -> None:
        positions = [self.position_at(number) for number in numbers]
        new = {position for position in positions if position not in self.stored}
        count = self.index.backfill([self.entry(at, self.history[at]) for at in positions])
        assert count == len(new)
        for position in new:
            self.remember(position, self.history[position])

    @rule()
    def lower_floor(self) -> None:
        assert self.index.lower_floor(EARLIEST) == self.index.floor

    # --- reading

    @rule(name=names, now=clocks, limit=st.integers(1, 6))
    def due(self, name: str, now: int, limit: int) -> None:
        if name in self.views:
            self.take(name, now, limit)

    @rule(name=names, now=clocks, limit=st.integers(1, 6))
    def drain(self, name: str, now: int, limit: int) -> None:
        if name not in self.views:
            return
        for _ in range(1_000):
            if not self.take(name, now, limit):
                time = self.index.next_due_ms(self.view(name))
                if time is None or time > now:
                    break
        else:
            raise AssertionError("the view never runs dry")
        assert not [time for time in self.pending(name).values() if time <= now]

    def take(self, name: str, now: int, limit: int) -> list[DueEntry]:
        expected = self.pending(name)
        found = self.index.due(self.view(name), now, limit)
        assert len(found) <= limit
        expedited = self.views[name].expedited
        keys = [due.key for due in found]
        assert len(set(keys)) == len(keys)
        ordered = [due.key for due in found if Position(due.ledger, due.entry) not in expedited]
        assert sum(after < before for before, after in pairwise(ordered)) <= 1, "late, then in order"
        for due in found:
            position = Position(due.ledger, due.entry)
            assert due.deliver_at_ms == expected[position]
            assert due.deliver_at_ms <= now or position in expedited
            assert due[4:] == self.entry(position, 0)[3:]
            assert self.index.get(due.key) == due
            self.views[name].outstanding.add(position)
        return found

    @rule(now=clocks, limit=st.integers(1, 5))
    def prefetch(self, now: int, limit: int) -> None:
        self.index.prefetch(now, limit)

    @rule(now=clocks)
    def prefetch_all(self, now: int) -> None:
        for _ in range(1_000):
            if not self.index.prefetch(now, 3):
                return
        raise AssertionError("prefetch never ends")

    @rule(name=names, now=clocks)
    def pass_acked(self, name: str, now: int) -> None:
        if name in self.views:
            for _ in range(1_000):
                if not self.index.pass_acked(self.index.view(name), now):
                    return
            raise AssertionError("passing never ends")

    # --- acks

    @rule(name=names, pick=picks, only_outstanding=st.booleans())
    def ack(self, name: str, pick: int, only_outstanding: bool) -> None:
        model = self.views.get(name)
        known = sorted(model.outstanding if only_outstanding else self.stored) if model else []
        if model and known:
            self.ack_position(name, known[pick % len(known)])

    @rule(name=names, ledger=st.integers(0, 12), entry=st.integers(0, LEDGER_ENTRIES - 1))
    def ack_anything(self, name: str, ledger: int, entry: int) -> None:
        if name in self.views:
            self.ack_position(name, Position(ledger, entry))

    def ack_position(self, name: str, position: Position) -> None:
        model = self.views[name]
        key = self.view(name).ack(*position)
        assert (key is not None) == (position in model.outstanding)
        model.acked.add(position)
        model.outstanding.discard(position)
        model.expedited.discard(position)

    @rule(name=names)
    def ack_all_outstanding(self, name: str) -> None:
        if name in self.views:
            for position in sorted(self.views[name].outstanding):
                self.ack_position(name, position)

    @rule(name=names, number=st.integers(-1, 60))
    def advance(self, name: str, number: int) -> None:
        if name in self.views:
            position = self.position_at(number)
            self.view(name).advance(position)
            model = self.views[name]
            model.mark_delete = max(model.mark_delete, position)
            model.outstanding = {at for at in model.outstanding if at > model.mark_delete}
            model.expedited = {at for at in model.expedited if at > model.mark_delete}

    @rule(name=names, number=st.integers(-1, 40), run=st.integers(0, 5))
    def seek(self, name: str, number: int, run: int) -> None:
        if name in self.views:
            mark, lower = self.position_at(number), self.position_at(number + 2)
            upper = Position(lower.ledger, lower.entry + run)
            self.view(name).reset(AckSet.of(mark, [(lower, upper)]))
            model = self.views[name] = ViewModel()
            model.mark_delete = mark
            model.acked = {Position(lower.ledger, entry) for entry in range(lower.entry + 1, upper.entry + 1)}

    @rule(name=names)
    def release_all(self, name: str) -> None:
        if name in self.views:
            self.view(name).release_all()
            self.views[name].outstanding.clear()

    # --- asking and steering

    @rule(name=names, pick=picks)
    def deliver_now(self, name: str, pick: int) -> None:
        model = self.views.get(name)
        if not model or not self.history:
            return
        position = sorted({*self.stored, *self.history})[pick % len({*self.stored, *self.history})]
        standing = self.index.deliver_now(self.view(name), position)
        assert standing is self.standing(model, position)
        if standing is Standing.PENDING:
            model.expedited.add(position)

    def standing(self, model: ViewModel, position: Position) -> Standing:
        if model.is_acked(position):
            return Standing.ACKED
        if position in model.outstanding:
            return Standing.DISPATCHED
        return Standing.PENDING if position in self.stored else Standing.UNKNOWN

    @rule(name=names, limit=st.integers(1, 5), scan_limit=st.integers(1, 7), start=times, end=times)
    def search(self, name: str, limit: int, scan_limit: int, start: int, end: int) -> None:
        model = self.views.get(name)
        if not model:
            return
        found, cursor = [], None
        query = Query(start, end, matches=lambda due: due.entry % 3 != 0)
        for _ in range(1_000):
            page = self.index.search.page(self.view(name), query, cursor, limit, scan_limit)
            assert len(page.found) <= limit
            found += page.found
            cursor = page.cursor
            if cursor is None:
                break
        expected = sorted(
            (time, position)
            for position, time in self.stored.items()
            if start <= time < end and position.entry % 3 and not model.is_acked(position)
        )
        assert [(one.entry.deliver_at_ms, Position(one.entry.ledger, one.entry.entry)) for one in found] == expected
        for one in found:
            assert one.standing is self.standing(model, Position(one.entry.ledger, one.entry.entry))

    @rule(name=names, start=st.integers(-50, 1_000), step=st.integers(1, 400), steps=st.integers(1, 6))
    def count(self, name: str, start: int, step: int, steps: int) -> None:
        model = self.views.get(name)
        if not model:
            return
        settled = self.view(name).counter.settled
        for number in range(steps):
            low = start + number * step
            inside = [position for position, time in self.stored.items() if low <= time < low + step]
            assert self.index.counts.between(low, low + step, None) == len(inside)
            pending = len([position for position in inside if not model.is_acked(position)])
            counted = self.index.counts.between(low, low + step, self.view(name))
            assert counted == pending if settled else counted >= pending

    @rule(limit=st.integers(1, 3))
    def settle(self, limit: int) -> None:
        self.index.settle(limit)

    @rule()
    def settle_all(self) -> None:
        for _ in range(1_000):
            if not self.index.settle(2):
                break
        else:
            raise AssertionError("settling never ends")
        for name, model in self.views.items():
            pending = [position for position in self.stored if not model.is_acked(position)]
            assert self.index.counts.pending(self.view(name)) == len(pending)

    # --- views

    @rule(name=names, active=st.booleans())
    def activate(self, name: str, active: bool) -> None:
        if name in self.views:
            self.view(name).active = active

    @rule(name=names)
    def create_view(self, name: str) -> None:
        if name not in self.views:
            self.view(name)
            self.views[name] = ViewModel()
            self.persisted[name] = ViewModel()

    @precondition(lambda self: len(self.views) > 1)
    @rule(name=names)
    def remove_view(self, name: str) -> None:
        self.index.remove_view(name)
        self.views.pop(name, None)
        self.persisted.pop(name, None)

    @rule()
    def persist_views(self) -> None:
        self.index.persist_views()
        self.persisted = {name: model.snapshot() for name, model in self.views.items()}

    # --- dropping and crashing

    @rule(now=clocks)
    def drop_consumed(self, now: int) -> None:
        before = {partition.start_ms: partition for partition in self.index.partitions(now)}
        count = self.index.drop_consumed(now)
        left = {partition.start_ms for partition in self.index.partitions(now)}
        gone = set(before) - left
        assert len(gone) == count
        for position, time in list(self.stored.items()):
            start = time // WIDTH_MS * WIDTH_MS
            if start in gone:
                assert before[start].end_ms <= now
                assert all(model.is_acked(position) for model in self.views.values())
                assert self.index.floor is not None
                assert position <= self.index.floor
                del self.stored[position]

    @rule(now=clocks)
    def finish(self, now: int) -> None:
        for name in self.views:
            self.drain(name, now, 5)
            self.ack_all_outstanding(name)
        self.drop_consumed(now)
        assert not [time for time in self.stored.values() if time // WIDTH_MS * WIDTH_MS + WIDTH_MS <= now]

    @rule()
    def crash(self) -> None:
        # A copy of an open database is what a killed process leaves behind.
        old, self.generation = self.store, self.generation + 1
        path = self.root / str(self.generation)
        shutil.copytree(old.path, path)
        old.close()
        shutil.rmtree(old.path)
        self.store = Store.open(path)
        self.open_index()
        assert set(self.index.views()) == set(self.views)
        self.views = {name: model.snapshot() for name, model in self.persisted.items()}

    @invariant()
    def agrees_with_disk(self) -> None:
        if self.views:
            self.index.check()
            assert self.index.harvested_position == self.harvested
            assert self.index.entries == len(self.stored)
            for partition in self.index.partitions(0):
                times = [t for t in self.stored.values() if partition.start_ms <= t < partition.end_ms]
                assert partition.entries == len(times)

    @invariant()
    def next_due_is_a_lower_bound(self) -> None:
        for name in self.views:
            pending = self.pending(name)
            if pending:
                time = self.index.next_due_ms(self.view(name))
                assert time is not None
                assert time <= min(pending.values())
                if self.views[name].expedited & set(pending):
                    assert time == 0

    @invariant()
    def acks_and_outstanding_agree(self) -> None:
        for name, model in self.views.items():
            view = self.view(name)
            assert set(view.outstanding) == model.outstanding
            single = {position for position in model.acked if position > model.mark_delete}
            assert len(view.acks) == len(single)
            assert all(view.acks.contains(*position) for position in single)


TestTopicIndex = TopicIndexMachine.TestCase
TestTopicIndex.settings = settings(
    max_examples=examples(100, fast=20),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
