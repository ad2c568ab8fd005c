"""How pages write values."""

import pytest

from bridge.web.pages import display
from bridge.web.pages.display import NOTHING

NOON = 1_700_000_000_000


@pytest.mark.parametrize(
    ("value", "shown"), [(None, NOTHING), (0, "0"), (1_234_567, "1,234,567"), (1.25, "1.2"), (1234.56, "1,234.6")]
)
def test_counts(value: float | None, shown: str) -> None:
    assert display.count(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, NOTHING),
        (99_999, "99,999"),
        (100_000, "100 k"),
        (812_000, "812 k"),
        (98_765_432, "98.8 M"),
        (5_000_000_000, "5 G"),
        (5_000_000_000_000, "5,000 G"),
    ],
)
def test_counts_where_there_is_little_room(value: int | None, shown: str) -> None:
    assert display.short_count(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, NOTHING),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KB"),
        (1536, "1.5 KB"),
        (200 << 20, "200 MB"),
        (3 << 40, "3 TB"),
    ],
)
def test_sizes(value: int | None, shown: str) -> None:
    assert display.size(value) == shown


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (None, NOTHING),
        (0, "0 ms"),
        (999, "999 ms"),
        (1_250, "1.25 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (3_600_000 + 20 * 60_000 + 5_000, "1 h 20 min"),
        (3_600_000 + 5_000, "1 h"),
        (2 * 86_400_000 + 4 * 3_600_000, "2 d 4 h"),
    ],
)
def test_durations(ms: int | None, shown: str) -> None:
    assert display.duration(ms) == shown


@pytest.mark.parametrize(
    ("distance", "shown"),
    [(0, "now"), (-999, "now"), (61_500, "in 1 min 1 s"), (-5_000, "5 s ago"), (-3_600_500, "1 h ago")],
)
def test_how_far_away_a_time_is(distance: int, shown: str) -> None:
    assert display.away(NOON + distance, NOON) == shown


def test_times_are_utc_and_never_fail() -> None:
    assert display.instant(NOON) == "2023-11-14 22:13:20"
    assert display.rfc3339(NOON + 5) == "2023-11-14T22:13:20.005Z"
    assert display.instant(2**63 - 1) == "9223372036854775808 ms after 1970"
    assert display.rfc3339(2**63 - 1) == ""
    assert (display.instant(None), display.rfc3339(None), display.away(None, NOON)) == (NOTHING, "", NOTHING)


def test_topics() -> None:
    assert display.short_topic("persistent://public/default/orders") == "orders"
    assert display.short_topic("persistent://shop/eu/orders") == "shop/eu/orders"
    assert display.topic_page("persistent://shop/eu/a b/c?d") == "/topic/shop/eu/a%20b%2Fc%3Fd"
    assert display.rest_path("persistent://shop/eu/a b") == "persistent/shop/eu/a%20b"
