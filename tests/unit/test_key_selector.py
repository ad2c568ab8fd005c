"""Whose the hash of a key is."""

from collections import Counter

import hypothesis
from hypothesis import strategies as st

from bridge.dispatch.dispatcher import Ranges
from bridge.dispatch.keyed.key_selector import HashRing, StickyRanges, points_of
from bridge.protocol.sticky_keys import HASHES

SOME = range(1, HASHES, 97)


def ring(*names: str) -> HashRing[int]:
    """Consumers are numbered."""
    made: HashRing[int] = HashRing()
    for number, name in enumerate(names):
        made.add(number, name)
    return made


def owners(selector: HashRing[int] | StickyRanges[int]) -> dict[int, int | None]:
    return {each: selector.select(each) for each in SOME}


def test_a_ring_of_nobody() -> None:
    assert set(owners(ring()).values()) == {None}


def test_each_has_its_share() -> None:
    shares = Counter(owners(ring("a", "b", "c", "d")).values())
    assert set(shares) == {0, 1, 2, 3}
    assert min(shares.values()) > len(SOME) / 4 / 2


def test_consumers_of_one_name_have_shares_of_their_own() -> None:
    shares = Counter(owners(ring("a", "a", "a")).values())
    assert min(shares.values()) > len(SOME) / 3 / 2


def test_who_comes_again_by_a_name_has_the_same_share() -> None:
    name, other = next(
        (name, other)
        for name in map(str, range(100))
        for other in "ab"
        if len({*points_of(name, 0), *points_of(name, 1), *points_of(other, 0)}) == 300
    )
    selector = ring(name, name, other)
    before = owners(selector)
    selector.remove(0)
    selector.add(7, name)
    assert owners(selector) == {each: 7 if owner == 0 else owner for each, owner in before.items()}


def test_points_that_meet_are_the_first_ones_until_it_leaves() -> None:
    number = next(n for n in range(1, 10_000) if set(points_of(str(n), 0)) & set(points_of("0", 0)))
    selector = ring("0", str(number))
    met = next(iter(set(points_of("0", 0)) & set(points_of(str(number), 0))))
    assert selector.select(met) == 0
    selector.remove(0)
    assert selector.select(met) == 1


@hypothesis.given(st.lists(st.sampled_from("abc"), min_size=1, max_size=6), st.data())
@hypothesis.settings(max_examples=30)
def test_only_the_hashes_of_who_comes_or_goes_move(names: list[str], data: st.DataObject) -> None:
    selector = ring(*names)
    before = owners(selector)
    leaving = data.draw(st.sampled_from(range(len(names))))
    selector.remove(leaving)
    after = owners(selector)
    assert leaving not in after.values()
    assert {each for each in SOME if after[each] != before[each]} == {e for e in SOME if before[e] == leaving}
    selector.add(99, "new")
    assert all(owner in (99, after[each]) for each, owner in owners(selector).items())


# -- ranges

RANGES = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 60)), max_size=4).map(
    lambda drawn: tuple((start, start + length) for start, length in drawn)
)


@hypothesis.given(st.dictionaries(st.integers(0, 5), RANGES, max_size=5), st.sets(st.integers(0, 5)))
def test_ranges_are_as_asked_for(asked: dict[int, Ranges], leaving: set[int]) -> None:
    selector: StickyRanges[int] = StickyRanges()
    for consumer, ranges in asked.items():
        selector.add(consumer, "", ranges)
    for consumer in leaving & asked.keys():
        selector.remove(consumer)
    there = {consumer: ranges for consumer, ranges in asked.items() if consumer not in leaving}
    for sticky_hash in range(270):
        claims = [
            consumer for consumer, ranges in there.items() if any(start <= sticky_hash <= end for start, end in ranges)
        ]
        assert selector.select(sticky_hash) == (claims[-1] if claims else None)
