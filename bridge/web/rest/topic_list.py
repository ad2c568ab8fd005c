"""The list of tracked topic partitions: filtered, sorted, a page at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from bridge import answers
from bridge.topics.tracked_topic import TrackedTopic
from bridge.web.rest.views import topic_row

Row = TypeVar("Row", bound=Mapping[str, Any])


async def topic_rows(
    topics: Iterable[TrackedTopic], wanted: str, sort: str, at_a_time: int, *, descending: bool = False
) -> list[answers.TopicRow]:
    """Return the topics with `wanted` in their names, sorted by a field; others get their turn in between."""
    wanted = wanted.lower()
    rows = []
    for number, topic in enumerate(list(topics), 1):
        if wanted in topic.topic.lower():
            rows.append(topic_row(topic))
        if number % at_a_time == 0:
            await asyncio.sleep(0)
    return sort_rows(rows, sort, descending=descending)


def sort_rows(rows: list[Row], field: str, *, descending: bool) -> list[Row]:
    """Sort by a field, equal ones by topic; what has no value comes last either way."""
    rows = sorted(rows, key=lambda row: row["topic"])
    with_value = [row for row in rows if row[field] is not None]
    with_value.sort(key=lambda row: row[field], reverse=descending)
    return with_value + [row for row in rows if row[field] is None]
