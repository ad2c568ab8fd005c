"""Which bridge is ready for which topics, and which topics move."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.members.plan import Orphans, invitations, moves, owned_elsewhere

A, B, C = "pulsar://a:6650", "pulsar://b:6650", "pulsar://c:6650"


def topics(count: int, load: float = 1.0, prefix: str = "t") -> dict[str, float]:
    return {f"persistent://public/default/{prefix}-{number}": load for number in range(count)}


def test_every_topic_has_as_many_standbys_as_are_wanted() -> None:
    shares = {A: topics(100), B: topics(50, prefix="u"), C: {}}
    for count in (0, 1, 2, 5):
        chosen = {url: invitations(url, shares, count) for url in shares}
        for owner, loads in shares.items():
            for topic in loads:
                ready = [url for url in shares if topic in chosen[url]]
                assert owner not in ready
                assert len(ready) == min(count, 2)


def test_standbys_are_spread() -> None:
    shares = {A: topics(300), B: {}, C: {}}
    assert 110 < len(invitations(B, shares, 1)) < 190


def test_a_bridge_alone_has_nothing_to_do() -> None:
    assert invitations(A, {A: topics(5)}, 1) == set()
    assert moves(A, {A: topics(5)}, (), 3) == []
    assert owned_elsewhere(A, {A: topics(5)}) == {}


def test_nobody_has_to_be_ready_for_what_nobody_uses() -> None:
    """It would be connected to a topic that the broker may want to clean up."""
    assert invitations(B, {A: {"idle": 0.0, "used": 1.0}, B: {}}, 1) == {"used"}


def test_a_newcomer_takes_its_share_from_those_who_have_most() -> None:
    shares = {A: topics(30), B: topics(30, prefix="u"), C: dict[str, float]()}
    taken = moves(C, shares, (), 100)
    assert 18 <= len(taken) <= 20
    assert 9 <= len([topic for topic in taken if topic in shares[A]]) <= 10
    assert moves(A, shares, (), 100) == moves(B, shares, (), 100) == [], "who has more than the mean takes nothing"


def test_no_more_than_was_asked_for() -> None:
    assert len(moves(B, {A: topics(30), B: {}}, (), 3)) == 3


def test_what_is_ready_goes_first() -> None:
    shares = {A: topics(10), B: dict[str, float]()}
    ready = {"persistent://public/default/t-3", "persistent://public/default/t-7"}
    assert set(moves(B, shares, ready, 2)) == ready


def test_one_topic_that_is_all_the_work_stays() -> None:
    """Wherever it is, that bridge has most."""
    shares = {A: {"big": 50.0}, B: topics(3)}
    assert moves(B, shares, (), 3) == []


def test_topics_without_anybody_stay() -> None:
    assert moves(B, {A: topics(10, load=0.0), B: {}}, (), 3) == []


def test_what_nobody_owns_any_more_is_an_orphan_once() -> None:
    orphans = Orphans(5.0)
    assert orphans.of({A: {"t": 1.0, "idle": 0.0}, B: {"u": 1.0}}, 100.0) == set()
    assert orphans.of({B: {"u": 1.0}}, 105.0) == set(), "it may be on its way"
    assert orphans.of({B: {"u": 1.0, "idle": 0.0}}, 106.0) == {"t"}
    assert orphans.of({B: {"u": 1.0}}, 107.0) == set()


loads = st.dictionaries(st.integers(0, 10_000).map(str), st.just(0.0) | st.floats(1.0, 20.0), max_size=30)


@given(st.lists(loads, min_size=2, max_size=5), st.integers(1, 5))
def test_moves_bring_shares_closer_and_come_to_an_end(given: list[dict[str, float]], at_once: int) -> None:
    """Every bridge takes by the same picture, all at once, until nobody takes anything."""
    shares = {
        f"b{number}": {f"{number}-{name}": load for name, load in own.items()} for number, own in enumerate(given)
    }
    for _ in range(500):
        taken = {url: moves(url, shares, (), at_once) for url in shares}
        if not any(taken.values()):
            break
        before = spread(shares)
        for url, names in taken.items():
            for name in names:
                for own in shares.values():
                    if name in own:
                        shares[url][name] = own.pop(name)
                        break
        assert spread(shares) <= before + 1e-6
    else:
        pytest.fail("it never ends")


def spread(shares: dict[str, dict[str, float]]) -> float:
    """How far the sums are from equal, squares added up."""
    return sum(sum(own.values()) ** 2 for own in shares.values())


@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0, 1.5, 7.0]), max_size=12), min_size=2, max_size=5),
    st.integers(1, 4),
)
def test_who_is_draining_is_left_with_nothing_and_gets_nothing(loads: list[list[float]], draining: int) -> None:
    """All looks at once, again and again, as bridges do: what it had is with the others, as even as it fits."""
    shares = {
        f"pulsar://b{number}:6650": {f"t{number}-{each}": load for each, load in enumerate(some)}
        for number, some in enumerate(loads)
    }
    leaving = set(list(shares)[: min(draining, len(shares) - 1)])
    for _ in range(100):
        seen = {url: dict(share) for url, share in shares.items()}
        taken: set[str] = set()
        for url in shares:
            for topic in moves(url, seen, (), 3, leaving):
                if topic in taken:
                    continue  # the line decides among two who take the same
                taken.add(topic)
                source = next(each for each in shares if topic in shares[each])
                shares[url][topic] = shares[source].pop(topic)
        if not taken:
            break
    assert not any(load for url in leaving for load in shares[url].values())
    assert not any(url in leaving for url, share in shares.items() if any(share.values()))


def test_nobody_stands_by_where_it_is_draining() -> None:
    shares = {A: topics(30), B: {}, C: {}}
    assert invitations(B, shares, 1, {B}) == set()
    assert invitations(C, shares, 1, {B}) == set(shares[A])
    assert moves(B, shares, (), 3, {B}) == []
    assert len(moves(C, {A: topics(3), B: {}, C: {}}, (), 3, {A, B})) == 3
