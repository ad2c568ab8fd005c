"""Numbers, lengths of time and sizes as users write them."""

from typing import Any

import pytest

from bridge.notation.numbers import whole_number
from bridge.notation.quantities import DURATION_MAX_MS, SIZE_MAX, parse_duration_ms, parse_size

DAY_MS = 86_400_000


def test_numbers_within_bounds_are_read() -> None:
    assert [whole_number(text, 0, 10) for text in ("0", "10", "007")] == [0, 10, 7]
    assert whole_number(str(2**63 - 1), 1, 2**63 - 1) == 2**63 - 1


@pytest.mark.parametrize("text", ["", "x", "-1", "+1", " 1", "1.0", "1e0", "٣", "²", "1_0", "4", "11", "0" * 51 + "5"])
def test_what_is_no_number_is_named_with_its_bounds(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a port: .* \(expected 5 to 10\)") as caught:
        whole_number(text, 5, 10, "port")
    assert repr(text[:50]) in str(caught.value)


def test_what_is_much_too_long_is_cut_in_the_message() -> None:
    with pytest.raises(ValueError, match=r"^not a number: '9{50}' ") as caught:
        whole_number("9" * 10_000, 0, 10)
    assert len(str(caught.value)) < 100


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250ms", 250),
        ("1.5s", 1_500),
        (" 5m ", 300_000),
        ("3h", 3 * 3_600_000),
        ("2d", 2 * DAY_MS),
        (7, 7),
        (f"{DURATION_MAX_MS}ms", DURATION_MAX_MS),
    ],
)
def test_durations_are_read(text: Any, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    "value", ["", "5", "s", "-1s", "5 s", "1e3s", "1w", "٣s", True, "9" * 400 + "d", f"{DURATION_MAX_MS}s", -1]
)
def test_what_is_no_duration_is_named(value: Any) -> None:
    with pytest.raises(ValueError, match="not a duration") as caught:
        parse_duration_ms(value)
    assert str(value)[:50] in str(caught.value)


@pytest.mark.parametrize("value", ["0h", "0.4ms", "9ms", 9])
def test_durations_that_are_too_short(value: Any) -> None:
    with pytest.raises(ValueError, match=rf"not a duration: '?{value}'? \(expected at least 10 ms\)"):
        parse_duration_ms(value, least_ms=10)
    assert parse_duration_ms("10ms", least_ms=10) == 10


def test_sizes_are_read() -> None:
    assert [parse_size(text) for text in ("10", "1 KB", "1.5m", "2GB", 9)] == [10, 1024, 3 << 19, 2 << 30, 9]


@pytest.mark.parametrize("value", ["", "x", "-1", "1tb", "9" * 400, "9" * 400 + "gb", "9999999999gb", SIZE_MAX + 1])
def test_what_is_no_size_is_named(value: Any) -> None:
    with pytest.raises(ValueError, match="not a size") as caught:
        parse_size(value)
    assert str(value)[:50] in str(caught.value)
