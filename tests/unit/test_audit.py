"""Fingerprints: equal sets of entries have equal ones whatever the order, different ones do not."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracker import EARLIEST, NewEntry, Position, Store, TopicIndex, encode_key
from tracker.audit import (
    PARTITION,
    Cell,
    Scope,
    add_up,
    audit_scope,
    cell_fingerprints,
    index_fingerprints,
    noted_fingerprints,
)
from tracker.fingerprint import Fingerprint, fingerprint

EVERYTHING = Position(2**62, 0)
times = st.integers(0, 2**63 - 1)
keys = st.builds(encode_key, times, st.integers(0, 5), st.integers(0, 2_000))


@given(st.lists(keys, unique=True), st.randoms(use_true_random=False))
def test_order_and_cuts_do_not_matter(some: list[bytes], choose: random.Random) -> None:
    whole = fingerprint(some)
    choose.shuffle(some)
    cut = choose.randint(0, len(some))
    assert fingerprint(some[:cut]).plus(fingerprint(some[cut:])) == whole
    blocks = cell_fingerprints(some, Scope(EARLIEST, EVERYTHING, 1_000))
    total = Fingerprint()
    for part in blocks.values():
        total = total.plus(part)
    assert total == whole


@given(st.lists(keys, unique=True, min_size=1), keys)
def test_another_set_has_another_fingerprint(some: list[bytes], other: bytes) -> None:
    changed = [other, *some[1:]]
    assert (fingerprint(changed) == fingerprint(some)) == (set(changed) == set(some))


def test_numbers_are_not_mixed_up() -> None:
    """The same three numbers in other places are another entry."""
    found = {fingerprint([encode_key(*numbers)]) for numbers in ((1, 2, 3), (3, 2, 1), (2, 1, 3), (1, 3, 2))}
    assert len(found) == 4


def test_a_fingerprint_is_the_same_wherever_it_is_made() -> None:
    """A job's come from another machine, and it may have begun before the bridge was brought up to date."""
    assert fingerprint([encode_key(1, 2, 3), encode_key(4, 5, 6)]) == Fingerprint(2, 0xD6943A56DFBF2C86)


@pytest.mark.parametrize("cut", [0, 400, 2_000])
def test_an_index_has_the_fingerprints_of_its_entries(tmp_path: Path, cut: int) -> None:
    """What is ahead by position, what is held by time partition, the rest not at all; read as a whole or looked up."""
    choose = random.Random(1)
    entries = [
        NewEntry(choose.randrange(10**6), 3 + number // 1_000, number % 1_000, 1, b"x") for number in range(3_000)
    ]
    scope = Scope(Position(3, 10), Position(5, 600), 1_000, cut, tuple(range(0, cut, 3)))
    with Store.open(tmp_path / "data") as store:
        index = TopicIndex(store, "persistent://public/default/audited", partition_width_ms=1_000)
        index.start_at(EARLIEST)
        for start in range(0, len(entries), 500):
            last = entries[start + 499]
            index.add(entries[start : start + 500], Position(last.ledger, last.entry))
        total: dict[Cell, Fingerprint] = {}
        for part in index_fingerprints(index, scope):
            add_up(total, part)
        looked_up: dict[Cell, Fingerprint] = {}
        for part in noted_fingerprints(index, scope, total):
            add_up(looked_up, part)
        ahead = audit_scope(index, scope.after, scope.upto, 499_500, 100)
    expected: dict[Cell, Fingerprint] = {}
    for one in entries:
        number = one.deliver_at_ms // 1_000
        if scope.after < (one.ledger, one.entry) <= scope.upto and (number >= cut or number % 3 == 0):
            assert scope.has(one.deliver_at_ms, Position(one.ledger, one.entry))
            cell = (one.ledger, one.entry >> 9) if number >= cut else (PARTITION, number)
            add_up(expected, {cell: fingerprint([encode_key(one.deliver_at_ms, one.ledger, one.entry)])})
    assert total == expected
    assert looked_up == expected
    assert len(expected) > 3
    held = {one.deliver_at_ms // 1_000 for one in entries} & set(range(499)) | {499}
    assert (ahead.cut, set(ahead.held)) == (500, held)
