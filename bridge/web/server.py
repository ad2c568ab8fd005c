"""HTTP beside the gateway: is it alive, does it serve, what does it track."""

import json
from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from bridge.protocol.topic_name import TopicName
from bridge.rebuild_status import Engine
from bridge.tracked_topic import TrackedTopic, wall_clock_ms
from bridge.upkeep import Upkeep
from bridge.web.metrics import exposition
from bridge.web.views import partition_table, topic_stats, topic_summary

if TYPE_CHECKING:
    from bridge.app import Bridge

ROOT = "/admin/v2/delayed"


def build_web_app(bridge: "Bridge") -> web.Application:
    """Routes over the running bridge; everything is read from its state when asked."""
    routes = _Routes(bridge)
    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", routes.healthz),
            web.get("/readyz", routes.readyz),
            web.get("/metrics", routes.metrics),
            web.get(f"{ROOT}/topics", routes.topics),
            web.get(f"{ROOT}/persistent/{{tenant}}/{{namespace}}/{{topic}}/stats", routes.stats),
            web.get(f"{ROOT}/persistent/{{tenant}}/{{namespace}}/{{topic}}/partitions", routes.partitions),
            web.get(f"{ROOT}/persistent/{{tenant}}/{{namespace}}/{{topic}}/rebuild", routes.rebuild_status),
            web.put(f"{ROOT}/persistent/{{tenant}}/{{namespace}}/{{topic}}/rebuild", routes.rebuild),
            web.delete(f"{ROOT}/persistent/{{tenant}}/{{namespace}}/{{topic}}/rebuild", routes.cancel_rebuild),
            web.get(f"{ROOT}/persistent/{{tenant}}/{{namespace}}/{{topic}}/audit", routes.audit_status),
            web.put(f"{ROOT}/persistent/{{tenant}}/{{namespace}}/{{topic}}/audit", routes.audit),
        ]
    )
    return app


class _Routes:
    def __init__(self, bridge: "Bridge") -> None:
        self._bridge = bridge

    async def healthz(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "alive"})

    async def readyz(self, request: web.Request) -> web.Response:
        reason = self._bridge.not_ready
        if reason is not None:
            return web.json_response({"reason": reason}, status=503)
        return web.json_response({"status": "serving"})

    async def metrics(self, request: web.Request) -> web.Response:
        body = exposition(self._bridge, self._bridge.settings.cluster)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def topics(self, request: web.Request) -> web.Response:
        topics = self._bridge.topics
        return web.json_response([] if topics is None else [topic_summary(topic) for topic in topics.all()])

    async def stats(self, request: web.Request) -> web.Response:
        return web.json_response(topic_stats(self._tracked(request)))

    async def partitions(self, request: web.Request) -> web.Response:
        text = await partition_table(self._tracked(request), wall_clock_ms())
        return web.Response(text=text, content_type="application/json")

    async def rebuild_status(self, request: web.Request) -> web.Response:
        topic = self._tracked(request)
        answers = [status.answer(wall_clock_ms()) for status in _upkeep(topic).rebuilds]
        if not answers:
            raise _refused(web.HTTPNotFound, f"no rebuild of {topic.topic} since this bridge took it over")
        return web.json_response(answers[0] | {"earlier": answers[1:]})

    async def rebuild(self, request: web.Request) -> web.Response:
        topic = self._tracked(request)
        status = _upkeep(topic).start_rebuild(_engine(request))
        if status is None:
            raise _busy(topic)
        return web.json_response(status.answer(wall_clock_ms()), status=202)

    async def cancel_rebuild(self, request: web.Request) -> web.Response:
        topic = self._tracked(request)
        status = _upkeep(topic).cancel_rebuild()
        if status is None:
            raise _refused(web.HTTPConflict, f"no rebuild of {topic.topic} that an operator started is under way")
        return web.json_response(status.answer(wall_clock_ms()), status=202)

    async def audit_status(self, request: web.Request) -> web.Response:
        topic = self._tracked(request)
        status = _upkeep(topic).audit
        if status is None:
            raise _refused(web.HTTPNotFound, f"no audit of {topic.topic} since this bridge took it over")
        return web.json_response(status.answer())

    async def audit(self, request: web.Request) -> web.Response:
        topic = self._tracked(request)
        status = _upkeep(topic).start_audit(_engine(request))
        if status is None:
            raise _busy(topic)
        return web.json_response(status.answer(), status=202)

    def _tracked(self, request: web.Request) -> TrackedTopic:
        match = request.match_info
        name = str(TopicName("persistent", match["tenant"], match["namespace"], match["topic"]))
        topic = None if self._bridge.topics is None else self._bridge.topics.get(name)
        if topic is None:
            raise _refused(web.HTTPNotFound, f"{name} is not tracked by this bridge")
        return topic


def _refused(kind: type[web.HTTPError], reason: str) -> web.HTTPError:
    return kind(text=json.dumps({"reason": reason}), content_type="application/json")


def _upkeep(topic: TrackedTopic) -> Upkeep:
    if topic.upkeep is None:
        reason = f"{topic.topic} is not owned by this bridge, its role is {topic.role}"
        raise _refused(web.HTTPConflict, reason)
    return topic.upkeep


def _engine(request: web.Request) -> Engine:
    engine = request.query.get("engine", Engine.auto)
    if engine not in [each.value for each in Engine]:
        engines = ", ".join(each.value for each in Engine)
        raise _refused(web.HTTPBadRequest, f"no engine {engine!r}, there are {engines}")
    return Engine(engine)


def _busy(topic: TrackedTopic) -> web.HTTPError:
    what = "a rebuild" if _upkeep(topic).is_rebuilding else "an audit"
    return _refused(web.HTTPConflict, f"{what} of {topic.topic} is under way")
