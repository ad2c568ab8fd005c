"""Warnings and the forecast of storms, from an index and what the broker says."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.warned import (
    ACK_HOLES_WARNING,
    PINNED_BYTES_WARNING,
    Forecast,
    Policies,
    Severity,
    ShownRate,
    forecast,
    topic_warnings,
)
from tracker import NewEntry, Position, Store, TopicIndex

WIDTH_MS = 60_000
NOW = 1_800_000_000_000


@pytest.fixture
def index(tmp_path: Path) -> Iterator[TopicIndex]:
    with Store.open(tmp_path) as store:
        made = TopicIndex(store, "persistent://a/b/c", partition_width_ms=WIDTH_MS)
        made.start_at(Position(1, -1))
        made.view("s")
        yield made


def add(index: TopicIndex, dues: list[int]) -> None:
    """Entries due at these times from now on, in ms."""
    known = index.harvested_position
    assert known is not None
    first = known.entry + 1
    entries = [NewEntry(NOW + due, 1, first + number, 1, b"x") for number, due in enumerate(dues)]
    index.add(entries, Position(1, first + len(entries) - 1), NOW)


def codes(index: TopicIndex, policies: Policies, forecasts: dict[str, Forecast] | None = None) -> list[str]:
    return [each.code for each in topic_warnings(index, policies, forecasts or {}, NOW, None)]


def test_messages_that_expire_before_they_are_due(index: TopicIndex) -> None:
    assert codes(index, Policies(message_ttl_s=60)) == []
    add(index, [7_200_000])
    assert codes(index, Policies(message_ttl_s=3 * 3_600)) == []
    (warned,) = topic_warnings(index, Policies(message_ttl_s=3_600), {}, NOW, None)
    assert (warned.code, warned.severity) == ("message-ttl", Severity.critical)
    assert "7200 s" in warned.text
    assert "3600 s" in warned.text


def test_a_quota_of_age_shorter_than_the_delay(index: TopicIndex) -> None:
    add(index, [7_200_000])
    assert codes(index, Policies(quota_age_s=3_600)) == ["backlog-quota"]
    assert codes(index, Policies(quota_age_s=8_000)) == []


def test_a_backlog_near_its_quota(index: TopicIndex) -> None:
    assert codes(index, Policies(quota_bytes=1_000, backlog_bytes=801)) == ["backlog-quota"]
    assert codes(index, Policies(quota_bytes=1_000, backlog_bytes=799)) == []
    assert codes(index, Policies(backlog_bytes=799)) == []


def test_consumers_past_the_bridge_and_pinned_bytes(index: TopicIndex) -> None:
    found = topic_warnings(index, Policies(unbridged={"s": ("worker-1", "worker-2"), "other": ()}), {}, NOW, None)
    assert [(each.code, each.subscription) for each in found] == [("unbridged-consumers", "s")]
    assert "worker-1, worker-2" in found[0].text
    assert codes(index, Policies(pinned_bytes={"s": PINNED_BYTES_WARNING + 1})) == ["pinned-bytes"]
    assert codes(index, Policies(pinned_bytes={"s": PINNED_BYTES_WARNING})) == []


def test_ack_holes_near_the_cliff(index: TopicIndex) -> None:
    view = index.view("s")
    add(index, [1_000] * (2 * ACK_HOLES_WARNING + 2))
    for entry in range(1, 2 * ACK_HOLES_WARNING, 2):
        view.ack(1, entry)
    assert view.acks.holes == ACK_HOLES_WARNING
    assert codes(index, Policies()) == []
    view.ack(1, 2 * ACK_HOLES_WARNING + 1)
    assert codes(index, Policies()) == ["ack-holes"]
    view.ack(1, 2 * ACK_HOLES_WARNING)  # joins the last two stretches
    assert codes(index, Policies()) == []


def test_a_failed_rebuild(index: TopicIndex) -> None:
    (warned,) = topic_warnings(index, Policies(), {}, NOW, "no broker")
    assert (warned.code, warned.text) == ("rebuild-failed", "the last rebuild failed: no broker")


def test_the_busiest_time_ahead_is_found(index: TopicIndex) -> None:
    view = index.view("s")
    assert forecast(index, view, NOW, 10.0) is None
    busy = 30 * WIDTH_MS
    add(index, [busy + number * 10 for number in range(600)] + [50 * WIDTH_MS] * 5)
    found = forecast(index, view, NOW, 2.0)
    assert found is not None
    assert found.peak_per_second == 600 / (WIDTH_MS / 1000)
    assert found.peak_at_ms == (NOW + busy) // WIDTH_MS * WIDTH_MS
    assert found.catch_up_s == 300.0
    assert codes(index, Policies(), {"s": found}) == ["storm"]
    calm = forecast(index, view, NOW, 0.0)
    assert calm is not None
    assert calm.catch_up_s is None, "nothing was shown: nothing can be said"
    assert codes(index, Policies(), {"s": calm}) == []


def test_an_instant_in_memory_is_a_peak_of_its_own(index: TopicIndex) -> None:
    add(index, [20_000] * 300 + [100_000] * 400)
    index.view("s").active = True
    while index.prefetch(NOW, 100):
        pass
    found = forecast(index, index.view("s"), NOW, 50.0)
    assert found is not None
    assert (found.peak_per_second, found.peak_at_ms) == (400.0, NOW + 100_000)


def test_the_rate_shown_is_the_highest_over_some_seconds() -> None:
    shown = ShownRate()
    for second, count in enumerate([0, 100, 200, 300, 400, 500, 500, 500, 500, 500, 500, 20, 20]):
        shown.note(float(second), count)
    assert shown.per_second == 100.0
