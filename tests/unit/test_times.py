"""Times as users write them."""

import pytest

from bridge.notation.times import format_time, parse_time_ms


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1800000000000", 1_800_000_000_000),
        ("0", 0),
        ("2027-01-15T08:00:00Z", 1_800_000_000_000),
        ("2027-01-15T08:00:00.250Z", 1_800_000_000_250),
        ("2027-01-15T09:00:00+01:00", 1_800_000_000_000),
        (" 2027-01-15T08:00:00 ", 1_800_000_000_000),
        ("2027-01-15", 1_799_971_200_000),
    ],
)
def test_times_are_read(text: str, time_ms: int) -> None:
    assert parse_time_ms(text) == time_ms


@pytest.mark.parametrize("text", ["", "now", "-5", "1e9", "2027-13-01", "12345678901234567890"])
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a time: .*RFC 3339"):
        parse_time_ms(text)


def test_times_are_written() -> None:
    assert format_time(1_800_000_000_250) == "2027-01-15T08:00:00.250Z"
    assert format_time(2**62) == str(2**62), "beyond every calendar"
    assert parse_time_ms(format_time(1_234_567_890_123)) == 1_234_567_890_123
