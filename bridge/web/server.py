"""HTTP beside the gateway: is it alive, does it serve, what does it track."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from bridge.web import pages, pending_routes, static_files, topic_routes, upkeep_routes
from bridge.web.metrics import exposition
from bridge.web.requests import BRIDGE

if TYPE_CHECKING:
    from bridge.app import Bridge

routes = web.RouteTableDef()


def build_web_app(bridge: Bridge) -> web.Application:
    """Routes over the running bridge; everything is read from its state when asked."""
    app = web.Application()
    app[BRIDGE] = bridge
    app.add_routes(routes)
    for module in (topic_routes, pending_routes, upkeep_routes, pages, static_files):
        app.add_routes(module.routes)
    return app


@routes.get("/healthz")
async def healthz(request: web.Request) -> web.Response:
    """Answer as long as the process does."""
    return web.json_response({"status": "alive"})


@routes.get("/readyz")
async def readyz(request: web.Request) -> web.Response:
    """Tell whether clients are served."""
    reason = request.app[BRIDGE].not_ready
    if reason is not None:
        return web.json_response({"reason": reason}, status=503)
    return web.json_response({"status": "serving"})


@routes.get("/metrics")
async def metrics(request: web.Request) -> web.Response:
    """Answer a scrape."""
    bridge = request.app[BRIDGE]
    body = exposition(bridge, bridge.settings.cluster)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})
