"""Fingerprints: equal sets of entries have equal ones whatever the order, different ones do not."""

import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tracker import EARLIEST, NewEntry, Position, Store, TopicIndex, encode_key, limits
from tracker.audit import Block, add_up, block_fingerprints, index_fingerprints
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
    blocks = block_fingerprints(some, EARLIEST, EVERYTHING)
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


def test_an_index_has_the_fingerprints_of_its_entries(tmp_path: Path) -> None:
    choose = random.Random(1)
    entries = [
        NewEntry(choose.randrange(10**9), 3 + number // 1_000, number % 1_000, 1, b"x") for number in range(3_000)
    ]
    after, upto = Position(3, 10), Position(5, 600)
    with Store.open(tmp_path / "data") as store:
        index = TopicIndex(store, "persistent://public/default/audited")
        index.start_at(EARLIEST)
        for start in range(0, len(entries), 500):
            last = entries[start + 499]
            index.add(entries[start : start + 500], Position(last.ledger, last.entry), 0)
        total: dict[Block, Fingerprint] = {}
        parts = list(index_fingerprints(index, after, upto))
        assert len(parts) == 3_000 // limits.AUDIT_KEYS
        for part in parts:
            add_up(total, part)
    inside = [one for one in entries if after < (one.ledger, one.entry) <= upto]
    expected: dict[Block, Fingerprint] = {}
    for one in inside:
        key = encode_key(one.deliver_at_ms, one.ledger, one.entry)
        add_up(expected, {(one.ledger, one.entry >> 9): fingerprint([key])})
    assert total == expected
    assert sum(found.entries for found in total.values()) == len(inside)
