"""HTTP beside the gateway: is it alive, does it serve, what does it track."""

from typing import TYPE_CHECKING, Any

from aiohttp import web

from bridge.tracked_topic import TrackedTopic

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
            web.get(f"{ROOT}/topics", routes.topics),
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

    async def topics(self, request: web.Request) -> web.Response:
        topics = self._bridge.topics
        return web.json_response([] if topics is None else [topic_summary(topic) for topic in topics.all()])


def topic_summary(topic: TrackedTopic) -> dict[str, Any]:
    """One row of the list of tracked topic partitions."""
    index = topic.index
    harvested = None if index is None else index.harvested_position
    return {
        "topic": topic.topic,
        "role": topic.role,
        "owner": topic.owner,
        "harvestedPosition": None if harvested is None else str(harvested),
        "entries": 0 if index is None else index.entries,
        "storageSize": 0 if index is None else index.bytes,
    }
