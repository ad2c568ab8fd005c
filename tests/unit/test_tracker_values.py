"""Positions, keys, stored values and ack sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker import EARLIEST, KEY_LENGTH, AckSet, Position, decode_key, encode_key, parse_ranges
from tracker.entries import decode_value, encode_value
from tracker.keys import FIRST_KEY, key_time, successor, time_bound

numbers = st.integers(0, 2**63 - 1)
keys = st.tuples(numbers, numbers, numbers)


def test_position_prints_and_parses() -> None:
    assert str(Position(3, 5)) == "3:5"
    assert Position.parse(" 3:-1 ") == Position(3, -1)
    assert Position(3, -1) < Position(3, 0) < Position(4, -1)


@pytest.mark.parametrize("text", ["", "3", "3:", "a:1", "3:5:1"])
def test_position_names_what_it_cannot_parse(text: str) -> None:
    with pytest.raises(ValueError, match="not a position") as caught:
        Position.parse(text)
    assert repr(text) in str(caught.value)


@given(keys, keys)
def test_keys_sort_like_their_fields(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    assert (encode_key(*one) < encode_key(*other)) == (one < other)
    assert decode_key(encode_key(*one)) == one
    assert len(encode_key(*one)) == KEY_LENGTH


def test_keys_clamp_times_they_cannot_hold() -> None:
    assert decode_key(encode_key(-5, 1, 2)) == (0, 1, 2)
    assert decode_key(encode_key(2**64, 1, 2)) == (2**63 - 1, 1, 2)


def test_bounds_lie_between_keys() -> None:
    key = encode_key(7, 1, 2)
    assert key < successor(key) < encode_key(7, 1, 3)
    assert encode_key(6, 2**63, 0) < time_bound(7) <= encode_key(7, 0, 0)
    assert time_bound(-3) == FIRST_KEY
    assert key_time(successor(key)) == 7


@pytest.mark.parametrize(("count", "prefix"), [(1, 1), (254, 1), (255, 5), (100_000, 5)])
def test_values_carry_the_message_count(count: int, prefix: int) -> None:
    value = encode_value(count, b"raw")
    assert len(value) == prefix + 3
    assert decode_value(value) == (count, b"raw")


def test_an_entry_counts_at_least_one_message() -> None:
    assert decode_value(encode_value(0, b"")) == (1, b"")


def test_ranges_parse_as_the_broker_prints_them() -> None:
    assert parse_ranges("[]") == []
    assert parse_ranges("[(3:1..3:4],(3:5..3:6]]") == [
        (Position(3, 1), Position(3, 4)),
        (Position(3, 5), Position(3, 6)),
    ]
    assert parse_ranges("[(3:-1..3:0]]") == [(Position(3, -1), Position(3, 0))]


@pytest.mark.parametrize("text", ["", "(3:1..3:4]", "[(3:1..3:4)]", "[3:1..3:4]", "[(3:1..3:4]"])
def test_a_bad_range_list_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="not a list of acked ranges"):
        parse_ranges(text)


def test_adding_an_ack_tells_whether_it_is_new() -> None:
    acks = AckSet(Position(3, 4))
    assert acks.add(3, 6)
    assert not acks.add(3, 6)
    assert not acks.add(3, 4)
    assert not acks.add(2, 99)
    assert acks.contains(3, 6)
    assert acks.contains(3, 0)
    assert acks.contains(2, 99)
    assert not acks.contains(3, 5)
    assert not acks.contains(4, 0)
    assert len(acks) == 1
    acks.check()


@pytest.mark.parametrize("entry", [-1, 2**32, 2**63])
def test_acks_of_impossible_entries_are_ignored(entry: int) -> None:
    acks = AckSet()
    acks.add(3, 1)
    assert not acks.add(3, entry)
    assert len(acks) == 1
    assert acks.contains(3, 2**63) is False


def test_advancing_prunes_and_never_goes_back() -> None:
    acks = AckSet()
    for ledger, entry in ((1, 5), (2, 0), (2, 3), (3, 1)):
        acks.add(ledger, entry)
    acks.take_dirty()
    acks.advance(Position(2, 2))
    assert len(acks) == 2
    assert [(ledger, record is None) for ledger, record in acks.take_dirty()] == [(1, True), (2, False)]
    acks.advance(Position(1, 0))
    assert acks.mark_delete_position == Position(2, 2)
    acks.check()


def test_merging_ranges_is_open_below_and_closed_above() -> None:
    acks = AckSet(Position(3, 0))
    acks.merge_ranges(parse_ranges("[(3:1..3:4],(5:-1..5:0]]"))
    assert [entry for entry in range(7) if acks.contains(3, entry)] == [0, 2, 3, 4]
    assert acks.contains(5, 0)
    assert list(acks.ranges()) == parse_ranges("[(3:1..3:4],(5:-1..5:0]]")


def test_a_range_over_two_ledgers_counts_in_the_upper_one() -> None:
    acks = AckSet()
    acks.merge_ranges([(Position(3, 7), Position(4, 1))])
    assert [entry for entry in range(3) if acks.contains(4, entry)] == [0, 1]
    assert not acks.contains(3, 8)


def test_a_reset_replaces_everything() -> None:
    acks = AckSet(Position(5, 0))
    acks.add(7, 1)
    acks.take_dirty()
    acks.reset(Position(1, 0), parse_ranges("[(2:1..2:2]]"))
    assert not acks.contains(7, 1)
    assert not acks.contains(5, 0)
    assert acks.contains(2, 2)
    assert [(ledger, record is None) for ledger, record in acks.take_dirty()] == [(2, False), (7, True)]


@given(st.sets(st.tuples(st.integers(0, 3), st.integers(0, 300))), st.tuples(st.integers(-1, 3), st.integers(-1, 300)))
def test_records_and_ranges_rebuild_the_set(entries: set[tuple[int, int]], mark: tuple[int, int]) -> None:
    acks = AckSet(Position(*mark))
    for ledger, entry in entries:
        acks.add(ledger, entry)
    records = [(ledger, record) for ledger, record in acks.take_dirty() if record is not None]
    loaded = AckSet.load(Position(*mark), records)
    merged = AckSet(Position(*mark))
    merged.merge_ranges(acks.ranges())
    for ledger in range(4):
        for entry in range(301):
            expected = (ledger, entry) <= mark or (ledger, entry) in entries
            assert loaded.contains(ledger, entry) == merged.contains(ledger, entry) == expected
    assert len(loaded) == len(merged) == len(acks)
    assert not loaded.take_dirty()
    loaded.check()


def test_a_failed_write_hands_ledgers_out_again() -> None:
    acks = AckSet(EARLIEST)
    acks.add(3, 1)
    first = acks.take_dirty()
    assert acks.take_dirty() == []
    acks.mark_dirty(ledger for ledger, _ in first)
    assert acks.take_dirty() == first


def test_states_of_one_cursor_are_joined_and_compared() -> None:
    """`update` forgets nothing, `replace` everything, `missing_in` names what exists and only one side has acked."""
    ours = AckSet.of(Position(2, 1), parse_ranges("[(2:3..2:5],(3:-1..3:1]]"))
    theirs = AckSet.of(Position(1, 9), parse_ranges("[(2:0..2:1],(3:0..3:1]]"))
    assert list(ours.missing_in(theirs, {1: 11, 2: 6, 3: 2, 4: 7})) == [(1, 10), (2, 0), (2, 4), (2, 5), (3, 0)]
    assert list(ours.missing_in(theirs, {2: 5})) == [(2, 0), (2, 4)]
    assert list(theirs.missing_in(ours, {1: 11, 2: 6, 3: 2})) == []
    theirs.update(ours)
    assert theirs.mark_delete_position == Position(2, 1)
    assert list(theirs.ranges()) == parse_ranges("[(2:3..2:5],(3:-1..3:1]]")
    assert theirs.highest == Position(3, 1)
    theirs.replace(AckSet.of(Position(1, 0), parse_ranges("[(2:0..2:1]]")))
    assert theirs.mark_delete_position == Position(1, 0)
    assert list(theirs.ranges()) == parse_ranges("[(2:0..2:1]]")
    assert [ledger for ledger, record in theirs.take_dirty() if record is None] == [3]
