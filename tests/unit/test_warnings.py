"""Warnings and the forecast of storms, from an index and what the broker says."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.answers.values import Severity
from bridge.dispatch.subscription_stats import Cause, SubscriptionStats
from bridge.limits import OperatorLimits
from bridge.net.certificates import ServerCertificate, TlsFiles
from bridge.operate.storm import Forecast, SecondsOnDisk, forecast
from bridge.operate.waiting import DeliveryState, Lately, RecentLateness, waiting_warnings
from bridge.operate.warnings import (
    ACK_HOLES_WARNING,
    PINNED_BYTES_WARNING,
    Policies,
    ShownRate,
    topic_warnings,
)
from bridge.web.rest.overview import certificate_warnings
from tests.authority import Authority
from tracker import NewEntry, Position, Store, TopicIndex

WIDTH_MS = 60_000
DAY_MS = 86_400_000
NOW = 1_800_000_000_000
LIMITS = OperatorLimits()


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
    index.add(entries, Position(1, first + len(entries) - 1))


def codes(index: TopicIndex, policies: Policies, forecasts: dict[str, Forecast] | None = None) -> list[str]:
    return [each.code for each in topic_warnings(index, policies, forecasts or {}, NOW, LIMITS, None)]


def test_messages_that_expire_before_they_are_due(index: TopicIndex) -> None:
    assert codes(index, Policies(message_ttl_s=60)) == []
    add(index, [7_200_000])
    assert codes(index, Policies(message_ttl_s=3 * 3_600)) == []
    (warned,) = topic_warnings(index, Policies(message_ttl_s=3_600), {}, NOW, LIMITS, None)
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
    found = topic_warnings(
        index, Policies(unbridged={"s": ("worker-1", "worker-2"), "other": ()}), {}, NOW, LIMITS, None
    )
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
    (warned,) = topic_warnings(index, Policies(), {}, NOW, LIMITS, "no broker")
    assert (warned.code, warned.text) == ("rebuild-failed", "the last rebuild failed: no broker")


def test_the_busiest_time_ahead_is_found(index: TopicIndex) -> None:
    view = index.view("s")
    assert forecast(index, view, NOW, 10.0) is None
    busy = 30 * WIDTH_MS
    add(index, [busy + number * 10 for number in range(6_000)] + [50 * WIDTH_MS] * 5)
    found = forecast(index, view, NOW, 20.0)
    assert found is not None
    assert found.peak_per_second == 6_000 / (WIDTH_MS / 1000)
    assert found.peak_at_ms == (NOW + busy) // WIDTH_MS * WIDTH_MS
    assert found.behind_entries == 6_000 - 20 * 60
    assert found.catch_up_s == found.behind_entries / 20
    assert codes(index, Policies(), {"s": found}) == ["storm"]


@pytest.mark.parametrize(("entries", "shown"), [(30, 0.01), (900, 1.0), (900, 0.0), (6_000, 100.0)])
def test_what_is_little_or_can_be_taken_is_no_storm(index: TopicIndex, entries: int, shown: float) -> None:
    """The first is 0.5 messages a second."""
    add(index, [30 * WIDTH_MS + number * WIDTH_MS // entries for number in range(entries)])
    found = forecast(index, index.view("s"), NOW, shown)
    assert found is not None
    assert codes(index, Policies(), {"s": found}) == []


def test_a_storm_is_told_when_nobody_knows_what_consumers_take(index: TopicIndex) -> None:
    add(index, [30 * WIDTH_MS + number * WIDTH_MS // 70_000 for number in range(70_000)])
    found = forecast(index, index.view("s"), NOW, 0.0)
    assert found is not None
    assert found.catch_up_s is None
    (warned,) = topic_warnings(index, Policies(), {"s": found}, NOW, LIMITS, None)
    assert (warned.code, warned.subscription) == ("storm", "s")
    assert "1,167 messages a second come due" in warned.text
    assert "not known" in warned.text


async def test_a_burst_within_a_time_partition_on_disk_is_seen(index: TopicIndex) -> None:
    """On average it is 33 a second."""
    burst = 10 * WIDTH_MS + 7_000
    add(index, [burst + number % 1000 for number in range(2_000)] + [20 * WIDTH_MS] * 10)
    seconds = SecondsOnDisk(LIMITS)
    await seconds.look(index, NOW)
    found = forecast(index, index.view("s"), NOW, 10.0, seconds.looked)
    assert found is not None
    assert (found.peak_per_second, found.peak_at_ms) == (2_000.0, NOW + burst)
    assert found.catch_up_s == 199.0
    before = seconds.looked
    await seconds.look(index, NOW)
    assert next(iter(seconds.looked.values())) is next(iter(before.values())), "not read again"
    await seconds.look(index, NOW + 11 * WIDTH_MS)
    assert seconds.looked == {}, "it has passed"


def test_what_consumers_cannot_take_adds_up(index: TopicIndex) -> None:
    """Ten minutes of 100 a second, of which 40 are taken."""
    for minute in range(10, 20):
        add(index, [minute * WIDTH_MS + number * 10 for number in range(6_000)])
    found = forecast(index, index.view("s"), NOW, 40.0)
    assert found is not None
    assert found.behind_entries == 10 * 60 * 60
    assert found.catch_up_s == 900.0


# -- what waits already

QUIET = Lately(0, {})


def told(state: DeliveryState) -> dict[str, str]:
    return dict(waiting_warnings("s", state, LIMITS))


def test_what_nobody_takes_is_told() -> None:
    eight = 8 * 60_000
    assert "8 min: no consumer is connected" in told(DeliveryState(eight, 0, False, False, QUIET))["no-consumers"]
    assert "do not ask for more" in told(DeliveryState(eight, 2, False, False, QUIET))["no-permits"]
    assert "too much is unacked" in told(DeliveryState(eight, 2, False, True, QUIET))["no-permits"]
    assert told(DeliveryState(eight, 2, True, False, QUIET)) == {}
    assert told(DeliveryState(30_000, 0, False, False, QUIET)) == {}
    assert told(DeliveryState(-eight, 0, False, False, QUIET)) == {}


def test_lateness_of_the_last_minutes_is_told_with_its_cause() -> None:
    stats, recent = SubscriptionStats(), RecentLateness(LIMITS)

    def deliver(count: int, cause: Cause | None) -> None:
        stats.first_delivery([0] * count, 0)
        if cause is not None:
            stats.too_late[cause] += count

    def lately() -> dict[str, str]:
        return told(DeliveryState(0, 1, True, False, recent.lately(stats)))

    recent.note(0.0, stats)
    deliver(500, None)
    assert lately() == {}
    deliver(30, Cause.permits)
    deliver(10, Cause.bridge)
    deliver(99, Cause.harvest)
    assert "40 of 639 deliveries of s in the last 5 minutes" in lately()["late"]
    assert "for want of permits" in lately()["late"]
    for second in range(0, 400, 5):
        recent.note(float(second), stats)
    assert lately() == {}, "that was long ago"


def test_the_next_due_time_is_an_entrys(index: TopicIndex) -> None:
    view = index.view("s")
    assert index.first_waiting_ms(view) is None
    add(index, [40 * WIDTH_MS, 80 * WIDTH_MS, 30 * WIDTH_MS])
    view.active = True
    for now in (NOW, NOW + WIDTH_MS):
        index.prefetch(now, 100)
        assert index.due(view, now, 10) == []
        assert index.first_waiting_ms(view) == NOW + 30 * WIDTH_MS, "however far the near term reaches"
    view.ack(1, 2)
    assert index.first_waiting_ms(view) == NOW + 40 * WIDTH_MS
    assert len(index.due(view, NOW + 50 * WIDTH_MS, 10)) == 1
    assert index.first_waiting_ms(view) == NOW + 80 * WIDTH_MS, "what somebody was given does not wait"
    add(index, [45 * WIDTH_MS])
    assert index.first_waiting_ms(view) == NOW + 45 * WIDTH_MS, "stored behind the others of its time"


def test_an_instant_in_memory_is_a_peak_of_its_own(index: TopicIndex) -> None:
    add(index, [20_000] * 1_300 + [100_000] * 1_400)
    index.view("s").active = True
    while index.prefetch(NOW, 100):
        pass
    found = forecast(index, index.view("s"), NOW, 50.0)
    assert found is not None
    assert (found.peak_per_second, found.peak_at_ms) == (1_400.0, NOW + 100_000)


def test_the_rate_shown_is_the_highest_over_some_seconds() -> None:
    shown = ShownRate()
    for second, count in enumerate([0, 100, 200, 300, 400, 500, 500, 500, 500, 500, 500, 20, 20]):
        shown.note(float(second), count)
    assert shown.per_second == 100.0


def test_a_certificate_that_ends(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue()
    certificate = ServerCertificate(TlsFiles(*pair), "localhost")
    ends_ms = int(certificate.expires_s * 1000)
    assert not certificate_warnings(certificate, ends_ms - 15 * DAY_MS)
    [warning] = certificate_warnings(certificate, ends_ms - 3 * DAY_MS)
    assert (warning.severity, warning.code) == (Severity.warning, "certificate")
    assert "ends in 3.0 days" in warning.text
    [warning] = certificate_warnings(certificate, ends_ms + 1000)
    assert (warning.severity, warning.code) == (Severity.critical, "certificate")
    pair.key.write_text("")
    certificate.look()
    [warning] = certificate_warnings(certificate, ends_ms - 15 * DAY_MS)
    assert "cannot be used, the former ones stay: tls_key_file_path" in warning.text
    other = ServerCertificate(TlsFiles(*Authority(tmp_path).issue()), "elsewhere")
    [warning] = certificate_warnings(other, ends_ms - 15 * DAY_MS)
    assert (warning.severity, warning.code) == (Severity.critical, "certificate")
    assert "is not for elsewhere" in warning.text
