"""HTTP beside the gateway: is it alive, does it serve, what does it track."""

from __future__ import annotations

import asyncio

from aiohttp import web

from bridge.web.access.control import ACCESS, METRICS, AccessControl, access_context, check_access
from bridge.web.access.guards import add_headers, refuse_other_sites, tell_failures
from bridge.web.front_door.routes import open_front_door
from bridge.web.metrics.exposition import CONTENT_TYPE
from bridge.web.metrics.scrape import exposition, exposition_of_all
from bridge.web.neighbours.asking import NEIGHBOURS, Neighbours, ask_whom_it_is_for, neighbours_context
from bridge.web.pages import login_routes, static_files
from bridge.web.pages import routes as pages
from bridge.web.pages.rendering import load_templates
from bridge.web.request.served import BRIDGE, Served
from bridge.web.rest import action_routes, members_routes, openapi, pending_routes, rebuild_routes, topic_routes
from bridge.web.rest.action_routes import ACTIONS

routes = web.RouteTableDef()
TABLES = (
    routes,
    login_routes.routes,
    action_routes.routes,
    topic_routes.routes,
    members_routes.routes,
    pending_routes.routes,
    rebuild_routes.routes,
    openapi.routes,
    pages.routes,
    static_files.routes,
)


def build_web_app(bridge: Served) -> web.Application:
    """Routes over the running bridge; everything is read from its state when asked."""
    app = web.Application(middlewares=[tell_failures, refuse_other_sites, check_access, ask_whom_it_is_for])
    app[BRIDGE] = bridge
    app[NEIGHBOURS] = Neighbours(bridge.neighbours, bridge.limits.workers)
    app[ACCESS] = AccessControl(bridge.settings, bridge.limits.web, bridge.trusted)
    app[ACTIONS] = bridge.actions
    app.on_response_prepare.append(add_headers)
    app.on_startup.append(_prepare_pages)
    app.cleanup_ctx.append(access_context)
    app.cleanup_ctx.append(neighbours_context)
    for table in TABLES:
        app.add_routes(table)
    open_front_door(app)
    return app


async def _prepare_pages(app: web.Application) -> None:
    await asyncio.to_thread(load_templates)


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
    body = await exposition(bridge, bridge.settings.cluster)
    told = await request.app[NEIGHBOURS].ask_all(request, METRICS)
    if told:
        body = await asyncio.to_thread(exposition_of_all, body, told, bridge.settings.cluster)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})
