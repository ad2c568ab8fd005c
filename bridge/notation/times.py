"""Times as users write them: RFC 3339 or epoch milliseconds."""

import re
from datetime import UTC, datetime


def parse_time_ms(text: str) -> int:
    """Epoch ms of `2030-01-31T08:00:00Z` (a date alone begins at midnight, without a zone it is UTC) or of a number
    of them. Raises ValueError naming the value.
    """
    value = text.strip()
    if re.fullmatch(r"\d{1,18}", value):
        return int(value)
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"not a time: {text!r} (expected RFC 3339 or epoch milliseconds)") from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return round(when.timestamp() * 1000)


def rfc3339(time_ms: float) -> str | None:
    """In UTC, to the millisecond; None for a time that no calendar holds."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return None


def format_time(time_ms: int) -> str:
    """RFC 3339; a time that no calendar holds stays a number."""
    return rfc3339(time_ms) or str(time_ms)
