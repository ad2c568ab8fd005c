"""A set of positions behaves as a set of pairs does."""

from hypothesis import given
from hypothesis import strategies as st

from tracker import AckSet, Position
from tracker.position_set import PositionSet

positions = st.tuples(st.integers(0, 3), st.integers(0, 9))
some = st.sets(positions)


@given(some, some)
def test_as_sets_of_pairs(ours: set[tuple[int, int]], theirs: set[tuple[int, int]]) -> None:
    a, b = PositionSet(ours), PositionSet(theirs)
    assert list(a) == sorted(ours)
    assert (len(a), bool(a)) == (len(ours), bool(ours))
    assert list(a | b) == sorted(ours | theirs)
    assert list(a & b) == sorted(ours & theirs)
    assert list(a - b) == sorted(ours - theirs)
    assert (a == b) == (ours == theirs)
    assert list(a) == sorted(ours), "nothing has changed"


@given(some, positions)
def test_parts_of_it(ours: set[tuple[int, int]], at: tuple[int, int]) -> None:
    found = PositionSet(ours)
    assert list(found.after(at)) == sorted(each for each in ours if each > at)
    assert list(found.upto(at)) == sorted(each for each in ours if each <= at)
    assert list(found.within([at[0]])) == sorted(each for each in ours if each[0] == at[0])
    assert (at in found) == (at in ours)
    assert found.discard(at) == (at in ours)
    assert list(found) == sorted(ours - {at})


@given(some, positions, some)
def test_those_that_are_acked(ours: set[tuple[int, int]], upto: tuple[int, int], single: set[tuple[int, int]]) -> None:
    acks = AckSet(Position(*upto))
    for each in single:
        acks.add(*each)
    assert list(PositionSet(ours).acked(acks)) == sorted(each for each in ours if each <= upto or each in single)


def test_what_exists() -> None:
    sizes = {1: 2, 2: 0, 4: 3, 7: 9}
    assert list(PositionSet.existing(sizes, (4, 1))) == [(1, 0), (1, 1), (4, 0), (4, 1)]
    assert list(PositionSet.existing(sizes, (5, -1))) == [(1, 0), (1, 1), (4, 0), (4, 1), (4, 2)]
    assert not PositionSet.existing(sizes, (-1, -1))


def test_what_no_entry_can_have_is_left_out() -> None:
    assert not PositionSet([(1, -1), (-1, 3), (1, 1 << 40)])
    assert (1, 1 << 40) not in PositionSet([(1, 1)])
