"""What the status page says, put together from what REST answers: pure."""

from __future__ import annotations

from typing import Any

from bridge import answers
from bridge.web.pages.display import count, duration, instant, size


def status_values(overview: answers.Overview, broker_service_url: str | None, now_ms: int) -> dict[str, Any]:
    """Return what the template needs: names and values, in words; without the broker's URL no counts either."""
    failure = overview["storageFailure"]
    free, total = size(overview["diskFree"]), size(overview["diskTotal"])
    offset = overview["clockOffsetMs"]
    facts = {
        "Version": overview["version"],
        "Up since": f"{instant(overview['startedAt'])}, {duration(now_ms - overview['startedAt'])}",
        "Storage": f"{free} of {total} free" if failure is None else f"nothing can be stored: {failure}",
        "Clock": _clock(offset),
    }
    if broker_service_url is not None:
        facts |= {"Broker": broker_service_url, **_counts(overview)}
    return {"overview": overview, "facts": list(facts.items())}


def _counts(overview: answers.Overview) -> dict[str, str]:
    return {
        "Topics": f"{count(overview['topics'])}, {count(overview['owned'])} of them owned by this bridge",
        "Entries in the index": f"{count(overview['entries'])}, {size(overview['storageSize'])} before compression",
        "Pending": count(overview["pending"]),
        "Client connections": count(overview["clientConnections"]),
    }


def _clock(offset_ms: int | None) -> str:
    if offset_ms is None:
        return "not compared with the broker's yet"
    if offset_ms == 0:
        return "agrees with the broker's, to the second"
    return f"at least {duration(abs(offset_ms))} {'behind' if offset_ms > 0 else 'ahead of'} the broker's"
