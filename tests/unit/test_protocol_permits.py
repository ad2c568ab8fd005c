"""The broker's count of a consumer's permits, kept as the broker keeps it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.protocol.permits import MAX_GRANT, Permits

INT = st.integers(-(2**31), 2**31 - 1)


def test_a_batch_takes_it_below_zero_and_the_debt_is_granted_too() -> None:
    permits = Permits()
    assert permits.top_up(10) == [10]
    permits.use(1_000)
    assert permits.count == -990
    assert permits.top_up(10) == [1_000]
    assert permits.top_up(10) == []
    assert permits.top_up(5) == []


def test_a_flow_command_carries_no_more_than_a_broker_understands() -> None:
    permits = Permits()
    permits.use(2**31 - 1)
    assert permits.top_up(10) == [MAX_GRANT, 10]


@given(sizes=st.lists(st.one_of(INT, st.integers(-5, 5)), max_size=20), wanted=st.integers(0, 10_000))
def test_it_is_what_a_broker_counts(sizes: list[int], wanted: int) -> None:
    """`count` of a Java int to which the same is added; after topping up it is at least what was wanted."""
    permits, broker = Permits(), 0
    for size in sizes:
        permits.use(size)
        broker -= size
        for grant in permits.top_up(wanted):
            assert 0 < grant <= MAX_GRANT
            broker += grant
        assert permits.count >= wanted
        assert (permits.count - broker) % 2**32 == 0
        assert -(2**31) <= permits.count < 2**31


@pytest.mark.parametrize("wrong", [-(2**31), 2**31 - 1])
def test_two_that_wrap_around(wrong: int) -> None:
    permits = Permits()
    permits.top_up(10)
    permits.use(wrong)
    permits.use(wrong)
    assert permits.count == 10 - 2 * wrong - (2**32 if wrong < 0 else -(2**32))
