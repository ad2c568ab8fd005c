"""The near-term window against a plain dictionary, and what an entry in it costs."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.helpers import examples
from tracker.entries import DueEntry, decode_value, encode_value
from tracker.keys import FIRST_KEY, KEY, KEY_LENGTH, decode_key, encode_key, successor, time_bound
from tracker.limits import IndexLimits
from tracker.near import packed_block
from tracker.near.packed_block import WINDOW_ENTRY_OVERHEAD
from tracker.near.window import NearTermWindow

Pair = tuple[bytes, bytes]

END = time_bound(2**64 - 1)
MANY_BYTES = 10**9
LAST_TIME = 60

times = st.integers(0, LAST_TIME)
bounds = st.builds(
    lambda time, ledger, after: successor(encode_key(time, ledger, 0)) if after else encode_key(time, ledger, 0),
    times,
    st.integers(0, 3),
    st.booleans(),
)
positions = st.tuples(times, st.integers(0, 3), st.integers(0, 3))
# Lengths around the size at which a block is split, and counts on both sides of the longer prefix.
values = st.builds(
    lambda count, length: encode_value(count, b"x" * length),
    st.sampled_from([1, 3, 254, 255, 1_000]),
    st.sampled_from([0, 1, 5, 20, 70, 300]),
)
USUAL = IndexLimits()
SMALL = IndexLimits(window_block_entries=4, window_block_bytes=100)


def due_entry(key: bytes, value: bytes) -> DueEntry:
    count, raw = decode_value(value)
    return DueEntry(key, *decode_key(key), count, raw)


class WindowMachine(RuleBasedStateMachine):
    """Each rule does the same to the window and to a dictionary of stored values."""

    def __init__(self) -> None:
        super().__init__()
        self.window = NearTermWindow(0, USUAL)
        self.held: dict[bytes, bytes] = {}

    @initialize(
        load=st.integers(1, 5), most=st.sampled_from([30, 200, 10**6]), budget=st.sampled_from([0, 500, 2_000, 10**6])
    )
    def start(self, load: int, most: int, budget: int) -> None:
        limits = IndexLimits(window_block_entries=load, window_block_bytes=most, window_read_entries=2)
        self.window = NearTermWindow(budget, limits)

    def between(self, start: bytes, end: bytes) -> list[bytes]:
        return sorted(key for key in self.held if start <= key < end)

    @rule(new=st.dictionaries(positions, values, max_size=25))
    def insert(self, new: dict[tuple[int, int, int], bytes]) -> None:
        found = {encode_key(*position): value for position, value in new.items()}
        pairs = [(key, found[key]) for key in found if self.window.covers(key) and key not in self.held]
        self.window.insert(pairs)
        self.held.update(pairs)
        self.expect_cut()

    @rule(new=st.dictionaries(positions, values, max_size=25), high=bounds)
    def extend(self, new: dict[tuple[int, int, int], bytes], high: bytes) -> None:
        high = max(high, self.window.high)
        pairs = sorted((encode_key(*position), value) for position, value in new.items())
        pairs = [(key, value) for key, value in pairs if self.window.high <= key < high]
        self.window.extend(iter(pairs), high)
        assert self.window.high == high
        self.held.update(pairs)

    def expect_cut(self) -> None:
        """Follow the window's end, which may only go to the first key that was cut."""
        high = self.window.high
        gone = self.between(high, END)
        assert not gone or gone[0] == high
        if gone:
            assert self.cost(self.held) > self.window.budget_bytes
        for key in gone:
            del self.held[key]
        assert self.window.bytes_held <= self.window.budget_bytes

    def cost(self, held: dict[bytes, bytes]) -> int:
        return sum(len(value) + WINDOW_ENTRY_OVERHEAD for value in held.values())

    @rule(bound=bounds, limit=st.integers(0, 12))
    def release_below(self, bound: bytes, limit: int) -> None:
        passed, low, high = self.between(FIRST_KEY, bound), self.window.low, self.window.high
        left = self.window.release_below(bound, limit)
        assert left == (len(passed) > limit)
        assert self.window.low == (passed[limit] if left else max(low, min(bound, high)))
        for key in passed[:limit]:
            del self.held[key]

    @rule(start=bounds, end=bounds)
    def remove_range(self, start: bytes, end: bytes) -> None:
        self.window.remove_range(start, end)
        for key in self.between(start, end):
            del self.held[key]

    @rule(bound=bounds)
    def restart_at(self, bound: bytes) -> None:
        self.window.restart_at(bound)
        self.held.clear()
        assert self.window.low == self.window.high == bound

    @rule(start=bounds, end=bounds)
    def slice(self, start: bytes, end: bytes) -> None:
        assert list(self.window.slice(start, end)) == [
            due_entry(key, self.held[key]) for key in self.between(start, end)
        ]

    @rule(start=bounds, end=bounds)
    def count(self, start: bytes, end: bytes) -> None:
        assert self.window.count(start, end) == len(self.between(start, end))

    @rule(position=positions)
    def get(self, position: tuple[int, int, int]) -> None:
        key = encode_key(*position)
        value = self.held.get(key)
        assert self.window.get(key) == (None if value is None else due_entry(key, value))
        assert self.window.get(successor(key)) is None

    @rule(bound=bounds)
    def first_from(self, bound: bytes) -> None:
        assert self.window.first_from(bound) == next(iter(self.between(bound, END)), None)

    @invariant()
    def agrees(self) -> None:
        self.window.check()
        assert len(self.window) == len(self.held)
        assert self.window.bytes_held == self.cost(self.held)
        assert all(self.window.covers(key) for key in self.held)


TestWindow = WindowMachine.TestCase
TestWindow.settings = settings(
    max_examples=examples(200, fast=80),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


# --- single properties


def test_all_reading_agrees_after_random_insertions() -> None:
    chance = random.Random(7)
    window = open_window(MANY_BYTES, SMALL)
    held = {encode_key(chance.randrange(500), 1, entry): encode_value(1, b"v%d" % entry) for entry in range(1_000)}
    pairs = list(held.items())
    for start in range(0, len(pairs), 17):
        window.insert(pairs[start : start + 17])
        window.check()
    assert [due.key for due in window.slice(FIRST_KEY, END)] == sorted(held)
    assert all(window.get(key) == due_entry(key, value) for key, value in pairs)
    assert window.count(time_bound(100), time_bound(200)) == sum(
        time_bound(100) <= key < time_bound(200) for key in held
    )


def test_entries_cut_in_blocks_leave_a_window_worth_reading() -> None:
    cost = WINDOW_ENTRY_OVERHEAD + 11
    window = open_window(100 * cost, SMALL)
    for entry in range(300):
        window.insert([(encode_key(299 - entry, 1, entry), encode_value(1, b"x" * 10))])
        window.check()
    assert 100 * SMALL.near_term_fill <= len(window) <= 100
    assert window.high == encode_key(len(window), 1, 299 - len(window))


def test_an_insertion_beyond_the_budget_leaves_an_empty_range() -> None:
    window = open_window(500, SMALL)
    key = encode_key(5, 1, 0)
    window.insert([(encode_key(7, 1, 1), encode_value(1, b"x" * 600)), (key, encode_value(1, b"x" * 600))])
    window.check()
    assert (len(window), window.low, window.high) == (0, FIRST_KEY, key)


def test_a_long_value_gets_a_block_of_its_own() -> None:
    window = open_window(MANY_BYTES)
    long = encode_value(1, bytes(5 * 1024 * 1024))
    pairs = [(encode_key(time, 1, 0), long if time in (3, 4) else encode_value(1, b"short")) for time in range(9)]
    window.insert(pairs)
    window.check()
    assert [len(due.raw) for due in window.slice(time_bound(2), time_bound(5))] == [5, len(long) - 1, len(long) - 1]
    window.restart_at(FIRST_KEY)
    window.extend(pairs, END)
    window.check()
    assert [due_entry(*pair) for pair in pairs] == list(window.slice(FIRST_KEY, END))


def test_reading_ahead_never_sorts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> list[object]:
        raise AssertionError("sorted")

    window = NearTermWindow(MANY_BYTES, USUAL)
    keys = [encode_key(9, 1, entry) for entry in range(5_100)]
    with monkeypatch.context() as context:
        context.setattr(packed_block, "sorted", refuse, raising=False)
        for first in range(0, len(keys), 300):
            window.extend([(key, encode_value(1, b"x")) for key in keys[first : first + 300]], END)
        assert [due.key for due in window.slice(FIRST_KEY, END)] == keys
    window.check()


def test_a_look_up_finds_no_key_across_two_others() -> None:
    window = open_window(MANY_BYTES)
    one, other = KEY.pack(1, 2, 3), KEY.pack(4, 5, 6)
    window.insert([(one, encode_value(1, b"a")), (other, encode_value(1, b"b"))])
    straddling = (one + other)[8 : 8 + KEY_LENGTH]
    assert window.get(straddling) is None
    window.insert([(straddling, encode_value(1, b"c"))])
    assert window.get(straddling) == due_entry(straddling, encode_value(1, b"c"))


def test_checking_notices_what_does_not_fit() -> None:
    window = open_window(MANY_BYTES)
    window.insert([(encode_key(time, 1, 0), encode_value(1, b"x")) for time in range(5)])
    window.check()
    window.bytes_held += 1
    with pytest.raises(AssertionError, match="bytes miscounted"):
        window.check()
    window.bytes_held -= 1
    window.insert([(encode_key(3, 1, 0), encode_value(1, b"twice"))])
    with pytest.raises(AssertionError, match="held twice"):
        window.check()


# --- memory


@pytest.mark.slow
@pytest.mark.parametrize(("size", "count"), [(0, 40_000), (128, 200_000), (1_000, 40_000), (4_000, 20_000)])
def test_an_entry_costs_little_beside_its_value(size: int, count: int) -> None:
    order = list(range(count))
    random.Random(3).shuffle(order)
    slices = [order[first : first + 500] for first in range(0, count, 500)]

    def insert() -> NearTermWindow:
        window = open_window(MANY_BYTES)
        for numbers in slices:
            window.insert([pair_of(number, size) for number in numbers])
        return window

    def extend() -> NearTermWindow:
        window = NearTermWindow(MANY_BYTES, USUAL)
        for first in range(0, count, 300):
            window.extend((pair_of(number, size) for number in range(first, min(first + 300, count))), END)
        return window

    assert WINDOW_ENTRY_OVERHEAD <= 40
    # Where long values wait to be sorted in, the buffer grows in large steps.
    allowed = WINDOW_ENTRY_OVERHEAD + (size / 100 if size > 1_000 else 0)
    for fill in (insert, extend):
        overhead = measured_overhead(fill)
        assert 28 <= overhead <= allowed, f"{fill.__name__}: {overhead:.1f} B an entry"


def measured_overhead(fill: Callable[[], NearTermWindow]) -> float:
    """Return what a filled window takes beside the stored values, in bytes an entry."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        window = fill()
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    window_values = window.bytes_held - len(window) * WINDOW_ENTRY_OVERHEAD
    return (taken - window_values) / len(window)


def pair_of(number: int, size: int) -> Pair:
    return encode_key(1_790_000_000_000 + number // 3, 100 + number % 7, number), encode_value(1, bytes(size))


def open_window(budget_bytes: int, limits: IndexLimits = USUAL) -> NearTermWindow:
    """Return a window that covers everything."""
    window = NearTermWindow(budget_bytes, limits)
    window.extend([], END)
    return window
