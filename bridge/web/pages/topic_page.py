"""What a topic's page shows, put together from what REST answers: pure. What REST does not tell has no place on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from bridge import answers
from bridge.answers.values import Place
from bridge.web.pages.display import instant, rest_path
from bridge.web.pages.static_files import PLOTLY_NAME
from bridge.web.request.parameters import ROOT

CAUSES: Final = (
    ("permits", "Permits", "no consumer had permits for it"),
    ("rate", "Rate", "a dispatch rate of the broker's policies was used up"),
    ("harvest", "Harvest", "it was published, or read by the bridge, after it was due"),
    ("rebuild", "Rebuild", "the index was being read again"),
    ("bridge", "Bridge", "the bridge itself took longer"),
)
"""Why deliveries are late: the field, its name, and what it means."""
_Counter = Literal[
    "pending",
    "ready",
    "inFlight",
    "toRedeliver",
    "delivered",
    "acked",
    "cancelled",
    "expedited",
    "redelivered",
    "acksRepaired",
]
_COUNTERS: Final[tuple[tuple[_Counter, str, str], ...]] = (
    ("pending", "Pending", "delayed entries that are not acked"),
    ("ready", "Ready", "due, and waiting for permits"),
    ("inFlight", "In flight", "handed out and not acked"),
    ("toRedeliver", "To redeliver", "asked for again by a consumer"),
    ("delivered", "Delivered", "messages sent to consumers"),
    ("acked", "Acked", "entries that consumers of this bridge acked"),
    ("cancelled", "Cancelled", "entries that operators cancelled"),
    ("expedited", "Delivered now", "entries delivered before they were due: operators wanted it, or delays are off"),
    ("redelivered", "Redelivered", "messages that this bridge sent more than once"),
    ("acksRepaired", "Acks repaired", "acks that the broker had forgotten"),
)
_PLACES: Final[tuple[tuple[Place, str], ...]] = (
    ("acked", "acked"),
    ("cancelled", "cancelled"),
    ("expired", "expired or skipped"),
    ("inFlight", "in flight"),
    ("toRedeliver", "to redeliver"),
    ("ready", "ready"),
    ("inTransactions", "in transactions"),
    ("pending", "pending"),
    ("unread", "immediate, to come"),
    ("withheld", "withheld by the broker"),
    ("toFill", "being read again"),
)
_ROLES: Final = {
    "owner": "this bridge dispatches it",
    "standby": "another bridge dispatches it, this one stands by",
    "opening": "not served yet",
    "idle": "nobody is connected to it; served again as soon as somebody is",
    "passed-through": "the broker dispatches it, not a bridge",
}
_LISTED: Final = 100
"""Positions that differ of which an audit's result lists no more on the page."""


class Progress(NamedTuple):
    """How far something is that runs: a share of 1, or None where that is not known."""

    share: float | None
    done: int
    total: int


def topic_values(
    stats: answers.Stats,
    rebuild: answers.Rebuild | None,
    audit: answers.AuditStatus | None,
    actions: Sequence[answers.Action] | None,
    now_ms: int,
    *,
    can_steer: bool = True,
) -> dict[str, Any]:
    """Return what the template needs. `rebuild` and `audit` are the last ones, `actions` the newest first.

    Without `actions` they have no place on the page; without `can_steer` neither has what changes something.
    """
    subscriptions = stats["subscriptions"]
    storms = {each["subscription"]: each["text"] for each in stats["warnings"] if each["code"] == "storm"}
    return {
        "page_data": {"rest": f"{ROOT}/{rest_path(stats['topic'])}", "plotly": f"/static/{PLOTLY_NAME}"},
        "stats": stats,
        "names": sorted(subscriptions),
        "role_means": _ROLES.get(stats["role"], ""),
        "early": sum(each["early"] for each in subscriptions.values()),
        "subscriptions": [_subscription(name, each, storms) for name, each in sorted(subscriptions.items())],
        "warnings": stats["warnings"],
        "rebuild": None if rebuild is None else _rebuild(rebuild),
        "audit": None if audit is None else _audit(audit),
        "busy": any(each is not None and each["state"] in ("queued", "running") for each in (rebuild, audit)),
        "actions": None if actions is None else [_action(each) for each in actions],
        "can_steer": can_steer,
        "now_ms": now_ms,
    }


def _subscription(name: str, stats: answers.Subscription, storms: Mapping[str | None, str]) -> dict[str, Any]:
    lateness = stats["lateness"]
    consumers = stats["consumers"]
    return {
        "name": name,
        "type": stats["type"],
        "early": stats["early"],
        "settling": not stats["pendingSettled"],
        "counters": [(label, says, stats[field]) for field, label, says in _COUNTERS],
        "books": _books(stats["books"]),
        "lateness": [
            ("P50", lateness["p50Ms"]),
            ("P99", lateness["p99Ms"]),
            ("P99.9", lateness["p999Ms"]),
            ("Most", lateness["maxMs"]),
        ],
        "deliveries": lateness["count"],
        "causes": _causes(stats["latenessCauses"]),
        "consumers": consumers,
        "permits": sum(each["availablePermits"] for each in consumers),
        "waits": _what_it_waits_for(stats),
        "forecast": stats["forecast"],
        "storm": storms.get(name),
    }


def _books(books: answers.Books | None) -> dict[str, Any] | None:
    """Published, and the places that hold anything; None before they were drawn."""
    if books is None:
        return None
    places, twice = books["places"], books["twice"] or ()
    differences = (abs(each or 0) for each in (books["difference"], books["differenceByCounters"]))
    return {
        "published": None if places is None else places["published"],
        "places": [] if places is None else [(says, places[field]) for field, says in _PLACES if places[field]],
        "astray": max(differences) + len(twice),
        "unknown": books["unknown"],
        "listed": [*(books["missing"] or ()), *twice][:_LISTED],
    }


def _what_it_waits_for(stats: answers.Subscription) -> str | None:
    consumers = stats["consumers"]
    if not consumers:
        return "No consumer is connected: what comes due waits."
    if not stats["dispatching"]:
        return "Its cursor is being read from the broker: delivery begins right after."
    if all(each["availablePermits"] <= 0 for each in consumers):
        return "No consumer has permits: what comes due waits until one takes messages."
    return None


def _causes(counted: Mapping[str, int]) -> list[dict[str, Any]]:
    total = sum(counted.get(field, 0) for field, _, _ in CAUSES)
    return [
        {
            "field": field,
            "label": label,
            "says": says,
            "count": counted.get(field, 0),
            "percent": 100 * counted.get(field, 0) / total if total else 0,
        }
        for field, label, says in CAUSES
    ]


def _rebuild(status: answers.Rebuild) -> dict[str, Any]:
    return {
        **status,
        "running": status["state"] in ("queued", "running"),
        "stoppable": status["state"] in ("queued", "running") and status["trigger"] == "operator",
        "progress": _progress(status),
        "took_ms": _took(status),
        "earlier": [{**each, "took_ms": _took(each)} for each in status["earlier"]],
    }


def _audit(status: answers.AuditStatus) -> dict[str, Any]:
    missing, unexpected = list(status["missing"]), list(status["unexpected"])
    listed = missing[:_LISTED] + unexpected[:_LISTED]
    return {
        **status,
        "running": status["state"] == "running",
        "progress": _progress(status),
        "took_ms": _took(status),
        "missing": missing[:_LISTED],
        "unexpected": unexpected[:_LISTED],
        "not_listed": max(status["differing"] - len(listed), 0),
    }


def _progress(status: answers.RebuildStatus | answers.AuditStatus) -> Progress:
    done, total = status["entriesRead"], status["entriesTotal"]
    return Progress(min(done / total, 1) if total else None, done, total)


def _took(status: answers.RebuildStatus | answers.AuditStatus) -> int | None:
    return None if status["finishedAt"] is None else status["finishedAt"] - status["startedAt"]


def _action(action: answers.Action) -> dict[str, Any]:
    positions = action["positions"]
    return {
        **action,
        "when": instant(datetime.fromisoformat(action["time"]).timestamp() * 1000),
        "amount": positions if isinstance(positions, int) else len(positions),
        "some": [] if isinstance(positions, int) else list(positions)[:3],
        "outcomes": _outcomes(action["outcomes"]),
    }


def _outcomes(counted: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    return sorted(counted.items())
