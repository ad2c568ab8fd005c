"""The pages people look at. They are rendered from what REST answers, by the same functions."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from bridge import answers
from bridge.clock import wall_clock_ms
from bridge.topics.tracked_topic import TrackedTopic
from bridge.web.access.control import ACCESS, CALLER, Permission, may
from bridge.web.neighbours.asking import lead_to_worker
from bridge.web.pages import static_files
from bridge.web.pages.overview_page import overview_values, topics_query
from bridge.web.pages.rendering import large_page, load_templates, page
from bridge.web.pages.status_page import status_values
from bridge.web.pages.topic_page import topic_values
from bridge.web.request.parameters import topic_name
from bridge.web.request.served import BRIDGE, limits_of
from bridge.web.rest.action_routes import ACTIONS
from bridge.web.rest.members_routes import members_answer
from bridge.web.rest.overview import overview_answer
from bridge.web.rest.together import overview_together, rows_together
from bridge.web.rest.views import topic_stats

routes = web.RouteTableDef()

ACTIONS_SHOWN = 20
"""Acts of operators on a topic's page."""


def load_pages() -> None:
    """Read templates, scripts and styles; to be called in a thread before the first request."""
    load_templates()
    static_files.own_files()


@routes.get("/")
async def overview_page(request: web.Request) -> web.Response:
    """Show the bridge as a whole, and a page of its topics."""
    now_ms = wall_clock_ms()
    query = topics_query(request.query)
    overview = await overview_together(request)
    rows = await rows_together(request, query.filter, query.sort, descending=query.order == "desc")
    shown = rows[query.offset : query.offset + query.limit]
    members = await members_answer(request.app[BRIDGE])
    values = overview_values(overview, shown, len(rows), query, now_ms, members)
    return await large_page("overview.html", actor=_actor(request), **values)


@routes.get("/topic/{tenant}/{namespace}/{topic}")
async def topic_page(request: web.Request) -> web.Response:
    """Show one topic partition; where another bridge owns it, what is known here and the way there."""
    name = str(topic_name(request))
    known = request.app[BRIDGE].topics
    topic = None if known is None else known.get(name)
    lead_to_worker(request, name, topic)
    if topic is None:
        reason = f"{name} is not tracked by this bridge. It is from the moment a client subscribes to it here."
        return page("not_found.html", 404, actor=_actor(request), reason=reason)
    can_steer = await may(request, Permission.STEER, name)
    actions, trouble = await _actions(request, name) if can_steer else (None, None)
    values = _topic_values(topic, actions, can_steer=can_steer)
    return await large_page("topic.html", actor=_actor(request), actions_trouble=trouble, **values)


@routes.get("/status.html")
async def status_page(request: web.Request) -> web.Response:
    """Tell people and probes whether the bridge serves; 503 when it does not.

    Nobody has to log in for it, so it tells of topics and the broker only where nobody has to at all.
    """
    bridge = request.app[BRIDGE]
    now_ms = wall_clock_ms()
    is_open = request.app[ACCESS].mode == "off"
    topics = bridge.topics.all() if is_open and bridge.topics is not None else []
    overview = await overview_answer(bridge, topics, now_ms)
    values = status_values(overview, bridge.settings.broker_service_url if is_open else None, now_ms)
    return page("status.html", 200 if values["overview"]["ready"] else 503, **values)


def _actor(request: web.Request) -> str | None:
    """Who is logged in, where one has to."""
    return None if request.app[ACCESS].mode == "off" else request[CALLER].name


async def _actions(request: web.Request, topic: str) -> tuple[list[answers.Action], str | None]:
    """The latest acts on a topic among the latest of all, and why some may be missing."""
    acts = request.app[ACTIONS]
    try:
        latest = await acts.latest(limits_of(request).actions_page_max)
    except OSError as error:
        return [], f"The log of acts cannot be read: {error.strerror or error}"
    return [each for each in latest if each["topic"] == topic][:ACTIONS_SHOWN], acts.failure


def _topic_values(topic: TrackedTopic, actions: list[answers.Action] | None, *, can_steer: bool) -> dict[str, Any]:
    now_ms = wall_clock_ms()
    rebuilds = None if topic.tenure is None else topic.tenure.rebuilds
    return topic_values(
        topic_stats(topic),
        None if rebuilds is None else rebuilds.history_answer(),
        None if rebuilds is None or rebuilds.audit is None else rebuilds.audit.answer(),
        actions,
        now_ms,
        can_steer=can_steer,
    )
