"""Dispatch rates: what may go out, and when."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.broker.policies import UNLIMITED, Rate
from bridge.dispatch.rate_limit import WAIT_S, RateLimiter, Throttle


class Entry(NamedTuple):
    message_count: int
    raw: bytes


ONE = Entry(1, b"x" * 100)


def limiter(rate: Rate) -> RateLimiter:
    made = RateLimiter()
    made.set_rate(rate, 0.0)
    return made


def go(throttle: Throttle, now_s: float, entries: list[Entry]) -> int:
    """Send what is let; returns how much that is."""
    if throttle.wait_s(now_s) > 0:
        return 0
    count = throttle.fitting(entries)
    throttle.spend(entries[:count])
    return count


def test_nothing_is_limited_at_first() -> None:
    throttle = Throttle(RateLimiter())
    assert not throttle.limits
    assert throttle.wait_s(0.0) == 0
    assert throttle.entries(300) == 300


def test_a_period_at_once_and_then_the_rate() -> None:
    throttle = Throttle(limiter(Rate(messages=20, period_s=2)))
    assert go(throttle, 0.0, [ONE] * 50) == 20
    assert throttle.wait_s(0.0) == pytest.approx(0.1)
    assert go(throttle, 0.05, [ONE] * 50) == 0
    assert go(throttle, 1.0, [ONE] * 50) == 10
    assert go(throttle, 100.0, [ONE] * 50) == 20, "more than a period is not saved"


def test_a_large_batch_goes_out_and_is_paid_for_later() -> None:
    throttle = Throttle(limiter(Rate(messages=10)))
    assert go(throttle, 0.0, [Entry(1, b""), Entry(100, b""), ONE]) == 2
    assert throttle.wait_s(0.0) == pytest.approx(9.2)
    assert go(throttle, 9.1, [ONE]) == 0
    assert go(throttle, 9.2, [ONE] * 2) == 1


def test_bytes_count_too() -> None:
    throttle = Throttle(limiter(Rate(messages=1_000, bytes=250)))
    assert go(throttle, 0.0, [ONE] * 9) == 3
    assert go(throttle, 0.1, [ONE] * 9) == 0
    assert go(throttle, 1.0, [ONE] * 9) == 2
    throttle.wait_s(2.0)
    assert 1 <= throttle.entries(300) < 10, "as many as are worth while to take"


def test_the_stricter_one_of_topic_and_subscription_holds() -> None:
    topic = limiter(Rate(messages=30))
    first, second = Throttle(topic), Throttle(topic)
    first.subscription.set_rate(Rate(messages=10), 0.0)
    assert go(first, 0.0, [ONE] * 50) == 10
    assert go(second, 0.0, [ONE] * 50) == 20
    assert first.wait_s(0.0) == pytest.approx(0.1)
    assert go(first, 0.5, [ONE] * 50) == 5
    assert go(second, 0.5, [ONE] * 50) == 10


def test_high_rates_are_not_looked_at_for_each_message() -> None:
    throttle = Throttle(limiter(Rate(messages=100_000)))
    go(throttle, 0.0, [ONE] * 100_000)
    assert throttle.wait_s(0.0) == WAIT_S


def test_rates_that_change() -> None:
    topic = limiter(Rate(messages=10))
    throttle = Throttle(topic)
    go(throttle, 0.0, [Entry(50, b"")])
    topic.set_rate(Rate(messages=10), 0.0)
    assert throttle.wait_s(0.0) == pytest.approx(4.1), "the same rate changes nothing"
    topic.set_rate(Rate(messages=100), 0.0)
    assert throttle.wait_s(0.0) == pytest.approx(0.01), "what was owed to the former rate is forgotten"
    assert go(throttle, 1.0, [ONE] * 500) == 100
    topic.set_rate(UNLIMITED, 1.0)
    assert go(throttle, 1.0, [ONE] * 500) == 500


def test_a_clock_that_goes_back_gives_nothing_twice() -> None:
    throttle = Throttle(limiter(Rate(messages=10)))
    go(throttle, 5.0, [ONE] * 4)
    assert go(throttle, 1.0, [ONE] * 50) == 6
    assert go(throttle, 5.0, [ONE] * 50) == 0
    assert go(throttle, 6.0, [ONE] * 50) == 10


@given(
    st.builds(Rate, st.integers(0, 50), st.integers(0, 5_000), st.integers(1, 10)),
    st.lists(st.tuples(st.floats(0, 3), st.lists(st.tuples(st.integers(1, 9), st.integers(0, 900)), max_size=30))),
)
def test_never_more_than_a_period_and_the_rate(rate: Rate, steps: list[tuple[float, list[tuple[int, int]]]]) -> None:
    """But for what the last entry had too much."""
    throttle, now_s = Throttle(limiter(rate)), 0.0
    messages = size = 0
    for pause_s, offered in steps:
        now_s += pause_s
        entries = [Entry(count, bytes(length)) for count, length in offered]
        sent = entries[: go(throttle, now_s, entries)]
        messages, size = messages + sum(each.message_count for each in sent), size + sum(len(e.raw) for e in sent)
        periods = 1 + now_s / rate.period_s
        assert not rate.messages or messages < rate.messages * periods + 9.001
        assert not rate.bytes or size < rate.bytes * periods + 900.001
        if (wait_s := throttle.wait_s(now_s)) > 0:
            now_s += wait_s * 1.001
            assert throttle.wait_s(now_s) == 0, "no longer than it says"


def test_relative_rates() -> None:
    assert Rate(10, 1_000, 2, relative=True).beside((5.9, 100.0)) == Rate(15, 1_100, 2)
    assert Rate(10, 0, 2, relative=True).beside((5.9, 100.0)) == Rate(15, 0, 2)
    assert Rate(10, 0, 2).beside((5.9, 100.0)) == Rate(10, 0, 2)
