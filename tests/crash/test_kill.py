"""A process that works on an index is killed at its write boundaries, again and again: nothing is lost or comes twice.

What it did is replayed into plain sets. After each death a copy of what it left is opened and compared with them: all
that was written must be there, and an operation in flight done or not done. In the form `power` the machine is taken
to have lost power: the log is cut to a random length beyond what was synced last, and what is found must be the state
at some moment since. DELAY_BRIDGE_LONG=1 takes the long form, DELAY_BRIDGE_CRASH_SEED another first seed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.crash.child import (
    BULK_END,
    LOADS,
    MAX_MS,
    OTHER,
    SMALL_FILES,
    SMALL_STORE,
    START,
    TOPIC,
    WIDTH_MS,
    Universe,
    log_sizes,
    number_at,
    numbers_of_load,
    open_index,
    position_at,
)
from tracker import Store, SubscriptionView, TopicIndex, decode_key, encode_key
from tracker.bulk.files import Manifest, new_manifest, write_groups, write_positions
from tracker.bulk.load import _ALL, BulkLoad
from tracker.entries import encode_value
from tracker.keys import FIRST_KEY, time_bound
from tracker.partitions.positions import PlacedEntry
from tracker.store.records import TopicKeys

ROOT = Path(__file__).parents[2]
SEEDS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "seeds.json").read_text())
LONG = os.environ.get("DELAY_BRIDGE_LONG") == "1"
FIRST_SEED = int(os.environ.get("DELAY_BRIDGE_CRASH_SEED", "1"))
CYCLES = 20 if LONG else 12
"""Deaths of one data directory."""
DIRECTORIES = 26 if LONG else 2
CHILD_TIMEOUT_S = 60
OPERATIONS = [
    *("abandon", "positions", "other drop", "group", "drop", "finish"),
    *("other start", "persist", "remove", "add", "view", "backfill"),
]
KINDS = [f"{when} {kind}" for kind in ("ingest", "create", "drop", "sync", "write") for when in ("before", "after")]

Line = dict[str, Any]


@dataclass
class ViewState:
    """What a view knows; `outstanding` dies with the process."""

    mark: int = -1
    acked: set[int] = field(default_factory=set)
    expedited: set[int] = field(default_factory=set)
    outstanding: set[int] = field(default_factory=set)

    def is_acked(self, number: int) -> bool:
        return number <= self.mark or number in self.acked

    def stored(self) -> ViewState:
        """Return a copy of what survives."""
        return ViewState(self.mark, set(self.acked), set(self.expedited))

    def forget_acked(self) -> None:
        self.outstanding = {number for number in self.outstanding if not self.is_acked(number)}
        self.expedited = {number for number in self.expedited if not self.is_acked(number)}


@dataclass
class State:
    """What is on disk, positions as numbers; `other` is the harvested position of the second topic."""

    harvested: int | None = None
    floor: int | None = None
    dropped: int | None = None
    stored: set[int] = field(default_factory=set)
    views: dict[str, ViewState] = field(default_factory=dict)
    other: int | None = None

    def copy(self) -> State:
        views = {name: view.stored() for name, view in self.views.items()}
        return replace(self, stored=set(self.stored), views=views)

    def differences(self, found: State) -> list[str]:
        """Tell how a state found on disk differs from this one."""
        told = [
            f"{name} is {getattr(found, name)}, not {getattr(self, name)}"
            for name in ("harvested", "floor", "other")
            if getattr(found, name) != getattr(self, name)
        ]
        told += _set_difference("entries", self.stored, found.stored)
        if set(found.views) != set(self.views):
            return [*told, f"views are {sorted(found.views)}, not {sorted(self.views)}"]
        reach = range((found.harvested or 0) + 500)
        for name, view in self.views.items():
            acked = {number for number in reach if view.is_acked(number)}
            told += _set_difference(f"acks of {name}", acked, {n for n in reach if found.views[name].is_acked(n)})
            expedited = found.views[name].expedited & self.stored
            told += _set_difference(f"expedited of {name}", view.expedited & self.stored, expedited)
        return told


def _set_difference(what: str, expected: set[int], found: set[int]) -> Iterator[str]:
    if expected - found:
        yield f"{what}: {sorted(expected - found)[:10]} are missing"
    if found - expected:
        yield f"{what}: {sorted(found - expected)[:10]} should not be there"


class Oracle:
    """What may be on disk. `states` are the last one, or with `keeps_all` all since the last sync."""

    def __init__(self, universe: Universe, groups: list[list[set[int]]], keeps_all: bool) -> None:
        self.universe = universe
        self.groups = groups
        self.keeps_all = keeps_all
        self.states = [State()]
        self.live: dict[str, ViewState] = {}
        self.in_flight: Line | None = None
        self.other_was_dropped = False
        self.dropped = 0

    def die(self, state: State) -> None:
        """Go on from what was found on disk."""
        self.states = [state]
        self.live = {name: view.stored() for name, view in state.views.items()}
        self.in_flight = None
        self.other_was_dropped = False

    def replay(self, line: Line) -> None:
        if "do" in line:
            self.in_flight = line
        elif "ok" in line:
            assert self.in_flight is not None
            self._finish(self.in_flight, line["ok"])
            self.in_flight = None
        elif "synced" in line:
            self.states = self.states[-1:]
        elif "handed" in line:
            self._hand_out(self.live[line["handed"]], line)
        elif "asked" in line:
            self._ask(self.live[line["asked"]], line)
        else:
            self._change_acks(line)

    def candidates(self, stored: set[int]) -> Iterator[State]:
        """Yield what may be on disk after a death, the last first."""
        doing = self.in_flight
        if doing is not None:
            last = self.states[-1].copy()
            gone = {self._partition(number) for number in last.stored - stored} if doing["do"] == "drop" else set()
            try:
                self._apply(last, doing, sorted(gone))
                yield last
            except AssertionError:
                if not self.keeps_all:
                    raise
                # Not dropped: it never was stored, as far as the log goes.
        for state in reversed(self.states):
            yield state
            if doing is not None and doing["do"] == "group":
                yield replace(state, stored=state.stored | self.groups[doing["load"]][doing["number"]])

    # --- operations that write

    def _finish(self, line: Line, result: Any) -> None:
        state = self.states[-1].copy()
        known = len(state.stored)
        self._apply(state, line, result)
        if line["do"] == "backfill":
            assert result == len(state.stored) - known, f"{line} stored {result}"
        elif line["do"] == "lower":
            assert result == state.floor, f"{line} returned {result}, not {state.floor}"
        elif line["do"] == "group":
            # What is taken in is durable at once, whatever becomes of the log.
            for former in self.states:
                former.stored |= self.groups[line["load"]][line["number"]]
        self.states = [*self.states, state] if self.keeps_all else [state]
        if line["do"] in ("view", "remove"):
            self.live = {name: self.live.get(name, ViewState()) for name in state.views}

    def _apply(self, state: State, line: Line, result: Any) -> None:
        name = line["do"]
        if name == "start":
            state.harvested = state.floor = START - 1
        elif name == "add":
            assert state.harvested is not None
            state.stored |= self.universe.numbers(range(state.harvested + 1, line["upto"] + 1))
            state.harvested = line["upto"]
        elif name == "backfill":
            state.stored |= self.universe.numbers(range(line["low"] + 1, line["high"] + 1))
        elif name == "lower":
            assert state.floor is not None
            state.floor = min(state.floor, max(line["to"], -1 if state.dropped is None else state.dropped))
        elif name == "group":
            state.stored |= self.groups[line["load"]][line["number"]]
        elif name == "drop":
            self._drop(state, line, result)
        elif name == "view":
            state.views[line["name"]] = ViewState()
        elif name == "remove":
            del state.views[line["name"]]
        elif name == "persist":
            state.views = {name: view.stored() for name, view in self.live.items()}
        elif name.startswith("other"):
            self.other_was_dropped |= name in ("other start", "other drop")
            state.other = {"other start": START - 1, "other add": line.get("upto"), "other drop": None}[name]
        else:
            assert name in ("sync", "positions", "finish", "abandon"), name

    def _drop(self, state: State, line: Line, gone: list[int]) -> None:
        """Drop whole partitions, if that is allowed."""
        numbers = {number for number in state.stored if self._partition(number) in set(gone)}
        for number in numbers:
            assert self.live, f"dropped {number} without a view"
            for name, view in self.live.items():
                assert view.is_acked(number), f"dropped {number}, which {name} has not acked"
        assert all((partition + 1) * WIDTH_MS <= line["now"] for partition in gone), f"{line} dropped {gone}"
        self.dropped += len(gone)
        if numbers:
            assert state.floor is not None
            state.stored -= numbers
            state.floor = max(state.floor, *numbers)
            state.dropped = max(-1 if state.dropped is None else state.dropped, *numbers)

    def _partition(self, number: int) -> int:
        return self.universe.due_ms(number) // WIDTH_MS

    # --- operations on views

    def _hand_out(self, view: ViewState, line: Line) -> None:
        stored = self.states[-1].stored
        for number, due_ms, crc in line["entries"]:
            assert number in stored, f"handed out {number}, which is not stored"
            assert not view.is_acked(number), f"handed out {number}, which is acked"
            assert number not in view.outstanding, f"handed out {number} twice"
            entry = self.universe.entry(number)
            assert entry is not None
            assert (due_ms, crc) == (entry.deliver_at_ms, zlib.crc32(entry.raw)), f"handed out another {number}"
            assert due_ms <= line["now"] or number in view.expedited, f"handed out {number} too early"
            view.outstanding.add(number)
        view.expedited &= stored

    def _ask(self, view: ViewState, line: Line) -> None:
        number = line["number"]
        if view.is_acked(number):
            expected = "ACKED"
        elif number in view.outstanding:
            expected = "DISPATCHED"
        else:
            expected = "PENDING" if number in self.states[-1].stored else "UNKNOWN"
        assert line["standing"] == expected, f"{line}, but it is {expected}"
        if expected == "PENDING":
            view.expedited.add(number)

    def _change_acks(self, line: Line) -> None:
        if "acked" in line:
            view = self.live[line["acked"]]
            view.acked.update(line["numbers"])
        elif "advanced" in line:
            view = self.live[line["advanced"]]
            view.mark = max(view.mark, line["to"])
        else:
            view = self.live[line["reset"]] = ViewState(line["mark"], set(line["numbers"]))
        view.forget_acked()


# --- looking at what was left


def look(store: Store, index: TopicIndex, universe: Universe) -> State:
    """Return what is on disk."""
    found = State(
        harvested=None if index.harvested_position is None else number_at(index.harvested_position),
        floor=None if index.floor is None else number_at(index.floor),
        stored=stored_entries(index, universe),
    )
    for name, view in index.views().items():
        reach = range((found.harvested or 0) + 500)
        acked = {number for number in reach if view.acks.contains(*position_at(number))}
        expedited = {number_at(decode_key(key)[1:]) for key in view.expedited}
        found.views[name] = ViewState(number_at(view.mark_delete_position), acked, expedited)
    if OTHER in store.topics():
        found.other = look_at_other(open_index(store, OTHER), universe)
    return found


def look_at_other(other: TopicIndex, universe: Universe) -> int | None:
    other.check()
    harvested = START - 1 if other.harvested_position is None else number_at(other.harvested_position)
    expected = universe.numbers(range(START, harvested + 1))
    told = list(_set_difference("entries of the other topic", expected, stored_entries(other, universe)))
    assert not told, told
    return None if other.harvested_position is None else harvested


def stored_entries(index: TopicIndex, universe: Universe) -> set[int]:
    """Return the stored numbers; entries outside every known partition are left to `check`."""
    found: set[int] = set()
    for due in index.reader.scan(FIRST_KEY, time_bound(MAX_MS + 1)):
        number = number_at(due[2:4])
        assert number not in found, f"{number} is stored twice"
        found.add(number)
        assert due[1:] == universe.entry(number), f"{number} is not what was stored"
    return found


def settled(index: TopicIndex) -> None:
    while index.settle(10):
        pass
    index.check()


def check_pending(index: TopicIndex, state: State) -> None:
    for name, view in state.views.items():
        pending = len([number for number in state.stored if not view.is_acked(number)])
        assert index.view(name).counter.settled, f"{name} is not settled"
        assert index.counts.pending(index.view(name)) == pending, f"{name} has {pending} pending"


def drained(index: TopicIndex, view: SubscriptionView) -> list[int]:
    found: list[int] = []
    for _ in range(10_000):
        due = index.due(view, MAX_MS, 500)
        found += [number_at(one[2:4]) for one in due]
        if not due and index.next_due_ms(view) is None:
            return found
    raise AssertionError(f"{view.name} never runs dry")


def check_order(index: TopicIndex, state: State, universe: Universe) -> None:
    """Take everything out, with the views there are and a new one."""

    def in_order(numbers: set[int]) -> list[int]:
        return sorted(numbers, key=lambda number: (universe.due_ms(number), number))

    for name, view in {**state.views, "fresh": ViewState()}.items():
        pending = {number for number in state.stored if not view.is_acked(number)}
        first = view.expedited & pending
        found = drained(index, index.view(name))
        told = list(_set_difference(f"drained by {name}", pending, set(found)))
        assert not told, told
        assert set(found[: len(first)]) == first, f"{name} did not get what was asked for first"
        assert found[len(first) :] == in_order(pending - first), f"{name} got entries out of order or twice"


# --- one data directory


class Rig:
    """One data directory, the files of its bulk loads, and what should be in it."""

    def __init__(self, root: Path, form: str, seed: int, within: bool = False) -> None:
        self.data = root / "data"
        self.copy = root / "copy"
        self.form = form
        self.seed = seed
        self.within = within
        self.choose = random.Random(f"{form}:{seed}")
        self.universe = Universe(seed)
        self.loads = [root / f"load-{load}" for load in range(LOADS)]
        self.manifests = [self._make_load(load, directory) for load, directory in enumerate(self.loads)]
        groups = [list(self._groups(load)) for load in range(LOADS)]
        self.oracle = Oracle(self.universe, groups, keeps_all=form == "power")
        self.abandoned: set[int] = set()
        self.killed: Counter[str] = Counter()

    def _make_load(self, load: int, directory: Path) -> Manifest:
        directory.mkdir(parents=True)
        numbers = numbers_of_load(load)
        entries = self.universe.entries(numbers)
        pairs = sorted((encode_key(*entry[:3]), encode_value(entry.message_count, entry.raw)) for entry in entries)
        groups = list(write_groups(directory, "entries", pairs, WIDTH_MS, SMALL_FILES))
        sizes = {key: len(key) + len(value) for key, value in pairs}
        placed = [PlacedEntry(entry[1], entry[2], entry[0], sizes[encode_key(*entry[:3])]) for entry in entries]
        positions = write_positions(directory, "positions", placed)
        assert positions is not None
        after, upto = position_at(numbers[0] - 1), position_at(numbers[-1])
        manifest = new_manifest(TOPIC, WIDTH_MS, after, upto, [positions], groups)
        manifest.write(directory)
        return manifest

    def _groups(self, load: int) -> Iterator[set[int]]:
        entries = {encode_key(*entry[:3]): number_at(entry[1:3]) for entry in self.universe.entries(range(BULK_END))}
        for group in self.manifests[load].groups:
            first, last = bytes.fromhex(group.first_key), bytes.fromhex(group.last_key)
            numbers = set(numbers_of_load(load))
            yield {number for key, number in entries.items() if first <= key <= last and number in numbers}

    def run(self, cycles: int) -> None:
        for cycle in range(cycles):
            kind, count = self._choose_death(cycle)
            try:
                self._cycle(cycle, kind, count)
            except Exception as error:
                raise AssertionError(
                    f"form {self.form}, {'within operations, ' if self.within else ''}seed {self.seed}, "
                    f"cycle {cycle} ({kind} {count}): {str(error)[:2_000]}"
                ) from error

    def _choose_death(self, cycle: int) -> tuple[str, int]:
        """Take a boundary of each kind in turn, every other time any boundary; or one in each operation in turn."""
        if self.within:
            return OPERATIONS[(cycle + 5 * self.seed) % len(OPERATIONS)], self.choose.randint(1, 6)
        if cycle % 2:
            return "any", self.choose.choice([self.choose.randint(1, 8), self.choose.randint(1, 100)])
        kind = KINDS[(cycle // 2 + 6 * self.seed) % len(KINDS)]
        return kind, self.choose.randint(1, 20 if kind.endswith("write") else 2)

    def _cycle(self, cycle: int, kind: str, count: int) -> None:
        synced = log_sizes(self.data)
        for line in self._child(cycle, kind, count):
            if "killed" in line:
                self.killed[line["killed"]] += 1
            elif "durable" in line:
                synced = line["durable"]
            else:
                if line.get("do") == "abandon":
                    self.abandoned.add(line["load"])
                self.oracle.replay(line)
        if self.form == "power":
            self._cut_power(synced)
        shutil.copytree(self.data, self.copy)
        with Store.open(self.copy, SMALL_STORE) as store:
            index = open_index(store)
            state = self._recognized(look(store, index, self.universe))
            self._check(store, index, state.copy())
        shutil.rmtree(self.copy)
        self.oracle.die(state)

    def _child(self, cycle: int, kind: str, count: int) -> list[Line]:
        arguments = {
            "data": str(self.data),
            "seed": self.seed,
            "cycle": cycle,
            "kind": kind,
            "count": count,
            "loads": [str(load) for load in self.loads],
        }
        command = [sys.executable, "-m", "tests.crash.child", json.dumps(arguments)]
        child = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=CHILD_TIMEOUT_S, check=False)
        lines: list[Line] = [json.loads(line) for line in child.stdout.splitlines()]
        assert child.returncode == -signal.SIGKILL, f"child ended with {child.returncode}: {child.stderr.decode()}"
        assert "killed" in lines[-1]
        return lines

    def _cut_power(self, synced: dict[str, int]) -> None:
        newest = max(self.data.glob("*.log"), key=lambda log: int(log.stem), default=None)
        if newest is not None:
            size = newest.stat().st_size
            least = synced.get(newest.name, 0)
            os.truncate(newest, self.choose.choice([least, self.choose.randint(least, size)]))

    def _recognized(self, found: State) -> State:
        """Return the state that what was found must be."""
        told: list[list[str]] = []
        for state in self.oracle.candidates(found.stored):
            if self.form == "power" and found.other is None and self.oracle.other_was_dropped:
                state.other = None  # dropping and creating a topic is durable at once
            told.append(state.differences(found))
            if not told[-1]:
                self._check_floor(state)
                return state
        raise AssertionError(f"not one of {len(told)} states; the nearest: {min(told, key=len)}")

    def _check_floor(self, state: State) -> None:
        if state.harvested is not None and state.floor is not None:
            left_out = self.universe.numbers(range(state.floor + 1, state.harvested + 1)) - state.stored
            assert not left_out, f"{sorted(left_out)[:10]} are missing above the floor {state.floor}"

    def _check(self, store: Store, index: TopicIndex, state: State) -> None:
        """Check the copy of what was left, and that it can be worked with."""
        index.check()
        settled(index)
        under_way = [load for load in range(LOADS) if self._is_under_way(store, load)]
        self._put_away(under_way)
        for load in under_way:
            self._end_load(index, load, state)
        if state.harvested is None:
            return
        settled(index)
        check_pending(index, state)
        check_order(index, state, self.universe)
        index.check()

    def _is_under_way(self, store: Store, load: int) -> bool:
        keys, manifest = TopicKeys(TOPIC), self.manifests[load]
        known = {key for key, _ in store.records(keys.bulk_prefix(manifest.id))}
        return bool(known - {keys.bulk(manifest.id, _ALL)})

    def _put_away(self, under_way: list[int]) -> None:
        """Keep the files of a load that is given up from being loaded again, and only those."""
        for load in self.abandoned:
            there, away = self.loads[load], self.loads[load].with_suffix(".gone")
            if load in under_way and away.exists():
                away.rename(there)
            elif load not in under_way and there.exists():
                there.rename(away)

    def _end_load(self, index: TopicIndex, load: int, state: State) -> None:
        """Bring a load to one of its ends: then all is counted."""
        loading = BulkLoad(index.bulk, self.loads[load])
        if self.choose.random() < 0.5:
            loading.abandon()
            return
        loading.verify_positions()
        loading.load_positions()
        for number, group in loading.groups():
            loading.verify(group)
            loading.load(number, group)
            state.stored |= self.oracle.groups[load][number]
        loading.finish()


@pytest.mark.timeout(3_600 if LONG else 140)
@pytest.mark.parametrize("form", ["kill", "power"])
def test_nothing_is_lost_at_any_boundary(form: str, tmp_path: Path) -> None:
    killed: Counter[str] = Counter()
    dropped = 0
    for seed in range(FIRST_SEED, FIRST_SEED + DIRECTORIES):
        rig = Rig(tmp_path / str(seed), form, seed)
        rig.run(CYCLES)
        killed += rig.killed
        dropped += rig.oracle.dropped
        shutil.rmtree(tmp_path / str(seed))
    assert sum(killed.values()) == DIRECTORIES * CYCLES
    assert set(KINDS) == set(killed), f"never killed {set(KINDS) - set(killed)}"
    assert dropped, "no partition was ever dropped"


@pytest.mark.timeout(3_600 if LONG else 120)
@pytest.mark.parametrize("form", ["kill", "power"])
def test_nothing_is_lost_within_any_operation(form: str, tmp_path: Path) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + (DIRECTORIES if LONG else 1)):
        Rig(tmp_path / str(seed), form, seed, within=True).run(len(OPERATIONS))
        shutil.rmtree(tmp_path / str(seed))


@pytest.mark.parametrize("case", SEEDS, ids=lambda case: f"{case['form']}-{case['seed']}")
def test_what_once_failed(case: dict[str, Any], tmp_path: Path) -> None:
    Rig(tmp_path, case["form"], case["seed"], case.get("within", False)).run(case["cycles"])
