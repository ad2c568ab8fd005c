"""What the overview shows, put together from what REST answers: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from bridge import answers
from bridge.notation.numbers import whole_number

ROWS: Final = 50
"""Topics on one page."""
MAX_ROWS: Final = 200
WARNINGS_SHOWN: Final = 8
"""Further ones are folded away."""
_ORDERS: Final = ("asc", "desc")
_BOUNDS: Final = (("60", "minute"), ("3600", "hour"), ("86400", "day"))


class Column(NamedTuple):
    """One column of the table of topics; `key` is the field to sort by."""

    key: str
    label: str
    numeric: bool = True


COLUMNS: Final = (
    Column("topic", "Topic", False),
    Column("role", "Role", False),
    Column("entries", "Entries"),
    Column("pending", "Pending"),
    Column("earliestDeliverAt", "Next due"),
    Column("latenessP99Ms", "Late, P99"),
    Column("memorySize", "Memory"),
    Column("storageSize", "Disk"),
    Column("early", "Early"),
    Column("rebuild", "Rebuild", False),
)


class TopicsQuery(NamedTuple):
    """Which topics to show, as the page's address says."""

    filter: str = ""
    sort: str = "topic"
    order: str = "asc"
    offset: int = 0
    limit: int = ROWS

    def address(self, **changes: Any) -> str:
        """Return the page's address with some of it changed; what is as usual is left out."""
        wanted = self._replace(**changes)._asdict()
        usual = TopicsQuery()._asdict()
        return "/?" + urlencode({name: value for name, value in wanted.items() if value != usual[name]})


def topics_query(given: Mapping[str, str]) -> TopicsQuery:
    """Read the page's address; what makes no sense counts as not given."""
    sort = given.get("sort", "topic")
    order = given.get("order", "asc")
    return TopicsQuery(
        given.get("filter", "").strip(),
        sort if sort in {column.key for column in COLUMNS} else "topic",
        order if order in _ORDERS else "asc",
        _number(given.get("offset"), 0, 0, 1 << 31),
        _number(given.get("limit"), ROWS, 1, MAX_ROWS),
    )


def overview_values(
    overview: answers.Overview,
    topics: Sequence[answers.TopicRow],
    total: int,
    query: TopicsQuery,
    now_ms: int,
    members: answers.Members | None = None,
) -> dict[str, Any]:
    """Return what the template needs; `total`: the topics that the filter lets through, on all pages."""
    several = members is not None and (len(members["members"]) > 1 or members["trouble"] is not None)
    return {
        "members": _shares(members) if members is not None and several else None,
        "members_trouble": None if members is None else members["trouble"],
        "overview": overview,
        "warnings_shown": WARNINGS_SHOWN,
        "due": [(name, overview["dueWithin"].get(bound, 0)) for bound, name in _BOUNDS],
        "disk_used": _share(overview["diskFree"], overview["diskTotal"]),
        "topics": topics,
        "query": query,
        "headings": [_heading(column, query) for column in COLUMNS],
        "pager": _pager(query, len(topics), total),
        "why_empty": None if topics else _why_empty(overview, query, total),
        "now_ms": now_ms,
    }


def _shares(members: answers.Members) -> list[dict[str, Any]]:
    """With what part of all work each does, 0 to 1; None where it does not say."""
    total = sum(each["load"] or 0.0 for each in members["members"])
    return [
        {**each, "share": None if each["load"] is None or not total else each["load"] / total}
        for each in members["members"]
    ]


def _heading(column: Column, query: TopicsQuery) -> dict[str, Any]:
    current = column.key == query.sort
    usual = "desc" if column.numeric and column.key != "earliestDeliverAt" else "asc"
    order = _ORDERS[1 - _ORDERS.index(query.order)] if current else usual
    return {
        "label": column.label,
        "numeric": column.numeric,
        "sorted": {"asc": "ascending", "desc": "descending"}[query.order] if current else None,
        "address": query.address(sort=column.key, order=order, offset=0),
    }


def _pager(query: TopicsQuery, shown: int, total: int) -> dict[str, Any]:
    end = query.offset + shown
    return {
        "first": query.offset + 1 if shown else 0,
        "last": end if shown else 0,
        "total": total,
        "before": query.address(offset=max(query.offset - query.limit, 0)) if query.offset > 0 else None,
        "after": query.address(offset=end) if shown and end < total else None,
    }


def _why_empty(overview: answers.Overview, query: TopicsQuery, total: int) -> str:
    if total and query.offset:
        return "There are not so many topics any more: go back to the first page."
    if query.filter and overview["topics"]:
        return f"None of the {overview['topics']:,} tracked topics has “{query.filter}” in its name."
    if not overview["ready"]:
        return "This bridge does not serve yet; topics appear here as soon as it does."
    return (
        "No topic is tracked yet. One appears here when a client subscribes through this bridge "
        "with a durable Shared subscription."
    )


def _share(free: int, total: int) -> float | None:
    return 1 - free / total if total else None


def _number(text: str | None, default: int, low: int, high: int) -> int:
    try:
        return default if text is None else whole_number(text, low, high)
    except ValueError:
        return default
