"""The pages people look at. They are rendered from what REST answers, by the same functions."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from bridge.protocol.topic_name import TopicName
from bridge.surroundings import wall_clock_ms
from bridge.tracked_topic import TrackedTopic
from bridge.web import static_files
from bridge.web.overview import overview_answer
from bridge.web.overview_page import overview_values, topics_query
from bridge.web.rendering import load_templates, page
from bridge.web.requests import BRIDGE
from bridge.web.status_page import status_values
from bridge.web.topic_list import topic_rows
from bridge.web.topic_page import topic_values
from bridge.web.views import topic_stats

routes = web.RouteTableDef()


def load_pages() -> None:
    """Read templates, scripts and styles; to be called in a thread before the first request."""
    load_templates()
    static_files.own_files()


@routes.get("/")
async def overview_page(request: web.Request) -> web.Response:
    """Show the bridge as a whole, and a page of its topics."""
    now_ms = wall_clock_ms()
    query = topics_query(request.query)
    overview = await overview_answer(request.app[BRIDGE], now_ms)
    rows = await topic_rows(_topics(request), query.filter, query.sort, descending=query.order == "desc")
    shown = rows[query.offset : query.offset + query.limit]
    return page("overview.html", **overview_values(overview, shown, len(rows), query, now_ms))


@routes.get("/topic/{tenant}/{namespace}/{topic}")
async def topic_page(request: web.Request) -> web.Response:
    """Show one topic partition; where another bridge owns it, what is known here and the way there."""
    match = request.match_info
    name = str(TopicName("persistent", match["tenant"], match["namespace"], match["topic"]))
    topic = next((each for each in _topics(request) if each.topic == name), None)
    if topic is None:
        reason = f"{name} is not tracked by this bridge. It is from the moment a client subscribes to it here."
        return page("not_found.html", 404, reason=reason)
    return page("topic.html", **_topic_values(topic))


@routes.get("/status.html")
async def status_page(request: web.Request) -> web.Response:
    """Tell people and probes whether the bridge serves; 503 when it does not."""
    bridge = request.app[BRIDGE]
    now_ms = wall_clock_ms()
    values = status_values(await overview_answer(bridge, now_ms), bridge.settings.broker_service_url, now_ms)
    return page("status.html", 200 if values["overview"]["ready"] else 503, **values)


def _topics(request: web.Request) -> list[TrackedTopic]:
    known = request.app[BRIDGE].topics
    return [] if known is None else known.all()


def _topic_values(topic: TrackedTopic) -> dict[str, Any]:
    now_ms = wall_clock_ms()
    upkeep = topic.upkeep
    rebuilds = [] if upkeep is None else [status.answer(now_ms) for status in upkeep.rebuilds]
    return topic_values(
        topic_stats(topic),
        rebuilds[0] | {"earlier": rebuilds[1:]} if rebuilds else None,
        None if upkeep is None or upkeep.audit is None else upkeep.audit.answer(),
        None,
        now_ms,
    )
