"""What the first worker answers for all of this host; a bridge without others answers for itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlencode

from aiohttp import web

from bridge import answers
from bridge.clock import wall_clock_ms
from bridge.dispatch.subscription_stats import Lateness
from bridge.web.access.control import visible_topics
from bridge.web.neighbours.asking import NEIGHBOURS, Told
from bridge.web.neighbours.sums import acts_as_one, overview_as_one, rows_as_one
from bridge.web.request.parameters import ROOT, refused
from bridge.web.request.served import BRIDGE, limits_of
from bridge.web.rest.overview import overview_answer
from bridge.web.rest.topic_list import sort_rows, topic_rows
from bridge.web.rest.views import lateness_answer

_ROWS: web.RequestKey[dict[str, list[answers.TopicRow]]] = web.RequestKey("rows of other workers", dict)


async def rows_together(
    request: web.Request, wanted: str, sort: str, *, descending: bool = False
) -> list[answers.TopicRow]:
    """Topic partitions with `wanted` in their names that the caller may see, sorted by a field."""
    topics = await visible_topics(request)
    rows = await topic_rows(topics, wanted, sort, limits_of(request).topics_slice, descending=descending)
    if not request.app[NEIGHBOURS]:
        return rows
    others = await _rows_of_others(request, wanted)
    return sort_rows(rows_as_one([*rows, *others]), sort, descending=descending)


async def overview_together(request: web.Request) -> answers.Overview:
    """The bridge as a whole, and the topics that the caller may see added up."""
    topics = await visible_topics(request)
    own = await overview_answer(request.app[BRIDGE], topics, wall_clock_ms())
    if not request.app[NEIGHBOURS]:
        return own
    told = await request.app[NEIGHBOURS].ask_all(request, f"{ROOT}/overview")
    others, silent = await _read(told)
    together = overview_as_one(own, others, silent)
    lateness = Lateness(together["latenessBuckets"], sum(together["latenessBuckets"]))
    lateness.max_ms = max(each["lateness"]["maxMs"] for each in (own, *others))
    rows = await _rows_of_others(request, "")
    distinct = {topic.topic for topic in topics}.union(row["topic"] for row in rows)
    return {**together, "lateness": lateness_answer(lateness), "topics": len(distinct)}


async def acts_together(
    request: web.Request, own: list[answers.Action], target: str, limit: int
) -> list[answers.Action]:
    """Acts of operators, newest first: each worker keeps its own.

    Raises HTTPBadRequest for those before one of them.
    """
    if not request.app[NEIGHBOURS]:
        return own
    if "before" in request.query:
        reason = f"before: each worker numbers its acts, ask one at its own port: {request.query['before']!r}"
        raise refused(web.HTTPBadRequest, reason)
    others, _ = await _read(await request.app[NEIGHBOURS].ask_all(request, target))
    return acts_as_one([own, *others])[:limit]


async def _rows_of_others(request: web.Request, wanted: str) -> list[answers.TopicRow]:
    """Asked for once in a request: the overview counts them, and the page of it lists them."""
    if _ROWS not in request:
        request[_ROWS] = {}
    known = request[_ROWS]
    if wanted not in known:
        known[wanted] = await _ask_for_rows(request, wanted)
    return known[wanted]


async def _ask_for_rows(request: web.Request, wanted: str) -> list[answers.TopicRow]:
    page = limits_of(request).topics_page_max
    found: list[answers.TopicRow] = []
    offset = 0
    while True:
        query = urlencode({"filter": wanted, "offset": offset, "limit": page})
        told = await request.app[NEIGHBOURS].ask_all(request, f"{ROOT}/topics?{query}")
        parts, _ = await _read(told)
        found += [row for part in parts for row in part]
        offset += page
        if all(len(part) < page for part in parts):
            return found


async def _read(told: list[Told]) -> tuple[list[Any], dict[str, str]]:
    """What they answered; and who did not, with why."""
    silent = {each.web_url: each.trouble for each in told if each.trouble is not None}
    texts = [each.text for each in told if each.trouble is None]
    return await asyncio.to_thread(lambda: [json.loads(text) for text in texts]), silent
