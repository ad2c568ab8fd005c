"""REST of a topic partition's rebuilds and audits."""

from aiohttp import web

from bridge import answers
from bridge.answers.values import Engine
from bridge.clock import wall_clock_ms
from bridge.refill.rebuilds import Rebuilds
from bridge.topics.tracked_topic import TrackedTopic
from bridge.web.request.parameters import TOPIC, not_served, refused, served_topic
from bridge.web.rest.action_routes import note_action
from bridge.web.rest.answering import Answer

routes = web.RouteTableDef()


@routes.get(f"{TOPIC}/rebuild")
async def rebuild_status(request: web.Request) -> Answer[answers.Rebuild]:
    """Tell of the last rebuilds, the newest first."""
    topic = await served_topic(request)
    answer = _rebuilds(topic).history_answer()
    if answer is None:
        raise refused(web.HTTPNotFound, f"no rebuild of {topic.topic} since this bridge took it over")
    return Answer(answer)


@routes.put(f"{TOPIC}/rebuild")
async def rebuild(request: web.Request) -> Answer[answers.RebuildStatus]:
    """Start a rebuild."""
    topic = await served_topic(request)
    status = _rebuilds(topic).start_rebuild(_engine(request))
    if status is None:
        raise _busy(topic)
    await note_action(request, "rebuild", topic=topic.topic, outcomes={"started": 1})
    return Answer(status.answer(wall_clock_ms()), status=202)


@routes.delete(f"{TOPIC}/rebuild")
async def cancel_rebuild(request: web.Request) -> Answer[answers.RebuildStatus]:
    """End the rebuild that an operator started."""
    topic = await served_topic(request)
    status = _rebuilds(topic).cancel_rebuild()
    if status is None:
        raise refused(web.HTTPConflict, f"no rebuild of {topic.topic} that an operator started is under way")
    await note_action(request, "cancel-rebuild", topic=topic.topic, outcomes={"cancelled": 1})
    return Answer(status.answer(wall_clock_ms()), status=202)


@routes.get(f"{TOPIC}/audit")
async def audit_status(request: web.Request) -> Answer[answers.AuditStatus]:
    """Tell of the last audit."""
    topic = await served_topic(request)
    status = _rebuilds(topic).audit
    if status is None:
        raise refused(web.HTTPNotFound, f"no audit of {topic.topic} since this bridge took it over")
    return Answer(status.answer())


@routes.put(f"{TOPIC}/audit")
async def audit(request: web.Request) -> Answer[answers.AuditStatus]:
    """Start an audit."""
    topic = await served_topic(request)
    status = _rebuilds(topic).start_audit(_engine(request))
    if status is None:
        raise _busy(topic)
    await note_action(request, "audit", topic=topic.topic, outcomes={"started": 1})
    return Answer(status.answer(), status=202)


def _rebuilds(topic: TrackedTopic) -> Rebuilds:
    if topic.tenure is None:
        raise refused(web.HTTPConflict, f"{topic.topic} is not owned by this bridge: {not_served(topic)}")
    return topic.tenure.rebuilds


def _engine(request: web.Request) -> Engine:
    engine = request.query.get("engine", Engine.auto)
    if engine not in [each.value for each in Engine]:
        engines = ", ".join(each.value for each in Engine)
        raise refused(web.HTTPBadRequest, f"no engine {engine!r}, there are {engines}")
    return Engine(engine)


def _busy(topic: TrackedTopic) -> web.HTTPError:
    what = "a rebuild" if _rebuilds(topic).is_rebuilding else "an audit"
    return refused(web.HTTPConflict, f"{what} of {topic.topic} is under way")
