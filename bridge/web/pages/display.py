"""How pages write numbers, sizes, durations and times: pure functions, also the filters of the templates."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from bridge.notation import times
from bridge.protocol.names import TopicName

NOTHING: Final = "\N{EN DASH}"
"""Stands where there is no value, which is not the same as 0."""
_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_UNITS: Final = ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (_SECOND, "s"))


def count(value: float | None) -> str:
    """Return a count with its thousands apart: `1,234,567`."""
    if value is None:
        return NOTHING
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def short_count(value: float | None) -> str:
    """Return a count that fits where there is little room: `98,765`, `1.23 M`."""
    if value is None or value < 100_000:
        return count(value)
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            scaled = value / size
            return f"{scaled:.3g} {unit}" if scaled < 1000 else f"{scaled:,.0f} {unit}"
    return count(value)


def size(value: float | None) -> str:
    """Return a number of bytes: `512 B`, `1.5 MB`; 1 KB is 1,024 B as in the configuration."""
    if value is None:
        return NOTHING
    scaled, unit = float(value), "B"
    for larger in ("KB", "MB", "GB", "TB", "PB"):
        if scaled < 1024:
            break
        scaled, unit = scaled / 1024, larger
    return f"{scaled:.0f} {unit}" if unit == "B" or scaled >= 100 else f"{scaled:.3g} {unit}"


def duration(ms: float | None) -> str:
    """Return a length of time in its two largest units: `350 ms`, `1.25 s`, `3 h 20 min`."""
    if ms is None:
        return NOTHING
    if ms < _SECOND:
        return f"{ms:.0f} ms"
    if ms < 10 * _SECOND:
        return f"{ms / _SECOND:.3g} s"
    parts: list[str] = []
    rest = int(ms)
    for unit, name in _UNITS:
        if rest >= unit and len(parts) < 2:
            parts.append(f"{rest // unit} {name}")
            rest %= unit
        elif parts:
            break
    return " ".join(parts)


def instant(ms: float | None) -> str:
    """Return a point in time, in UTC, to the second."""
    if ms is None:
        return NOTHING
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):  # a due time may be any 64-bit number
        return f"{ms:.0f} ms after 1970"


def rfc3339(ms: float | None) -> str:
    """Return a point in time as programs read it; empty where there is none or it has no date."""
    return "" if ms is None else times.rfc3339(ms) or ""


def away(ms: float | None, now_ms: float) -> str:
    """Return how far a point in time is from now: `in 5 min`, `12 s ago`."""
    if ms is None:
        return NOTHING
    distance = ms - now_ms
    if abs(distance) < _SECOND:
        return "now"
    length = duration(abs(distance) // _SECOND * _SECOND)
    return f"in {length}" if distance > 0 else f"{length} ago"


def short_topic(topic: str) -> str:
    """Return a topic's name without what goes without saying, as Pulsar's clients let people write it."""
    name = TopicName.parse(topic)
    if (name.tenant, name.namespace) == ("public", "default"):
        return name.name
    return f"{name.tenant}/{name.namespace}/{name.name}"


def topic_page(topic: str) -> str:
    """Return the path of a topic's page."""
    return "/topic/" + TopicName.parse(topic).rest_path.partition("/")[2]


def rest_path(topic: str) -> str:
    """Return the path of a topic below REST's root."""
    return TopicName.parse(topic).rest_path


FILTERS: Final[dict[str, Callable[..., str]]] = {
    "amount": count,
    "short_amount": short_count,
    "size": size,
    "duration": duration,
    "instant": instant,
    "rfc3339": rfc3339,
    "away": away,
    "short_topic": short_topic,
    "topic_page": topic_page,
    "rest_path": rest_path,
}
