"""The broker's HTTP interface at the bridge's web port: `/lookup/**`, and `/admin/**` but for what is the bridge's own.

The broker decides who may what: the caller's credentials go to it, the bridge's own never do.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator

from aiohttp import web

from bridge.topics.topics import Topics
from bridge.web.access.control import ACCESS
from bridge.web.front_door import headers
from bridge.web.front_door.bodies import BadBody
from bridge.web.front_door.broker import Broker, NoAnswer, Question
from bridge.web.front_door.calls import Call, Kind, NotAsked, call_of, is_for_clients
from bridge.web.front_door.lookups import NotToldHow, led
from bridge.web.front_door.relay import Ended, Relay, TooLarge, TooMany
from bridge.web.front_door.stats_calls import REMARK, Asking, with_partitions, without_own
from bridge.web.request.parameters import refused
from bridge.web.request.served import BRIDGE

ADMIN = "/admin/{relayed:(?!v2/delayed(?:/|$)).*}"
LOOKUP = "/lookup/{relayed:.*}"


@dataclasses.dataclass(frozen=True)
class FrontDoor:
    """How far it is open."""

    relay: Relay
    only_clients: bool


_CHANGED = (Kind.lookup, Kind.subscriptions, Kind.stats, Kind.partitioned_stats)
"""Kinds of calls whose answers are changed."""
FRONT_DOOR: web.AppKey[FrontDoor] = web.AppKey("front_door", FrontDoor)


def open_front_door(app: web.Application) -> None:
    """Add the routes, unless settings leave it closed. To be called after every other route is there."""
    bridge = app[BRIDGE]
    settings, limits = bridge.settings, bridge.limits.web
    if settings.front_door == "off":
        return
    relay = Relay(Broker(settings.broker_web_url, limits, bridge.trusted), limits)
    app[FRONT_DOOR] = FrontDoor(relay, settings.front_door == "clients")
    app.on_shutdown.append(_stop)
    app.cleanup_ctx.append(_context)
    for path in (ADMIN, LOOKUP):
        app.router.add_route("*", path, enter)


async def _stop(app: web.Application) -> None:
    app[FRONT_DOOR].relay.stopping.set()


async def _context(app: web.Application) -> AsyncIterator[None]:
    yield
    await app[FRONT_DOOR].relay.broker.close()


async def enter(request: web.Request) -> web.StreamResponse:
    """Ask the broker, and answer as it does. What goes wrong on the way is told as a proxy tells it."""
    door = request.app[FRONT_DOOR]
    try:
        call = call_of(request.method, request.rel_url.raw_path)
        if door.only_clients and not is_for_clients(call):
            raise NotAsked("the setting front_door lets only pass what clients ask: see the bridge's settings", 404)
        with door.relay.counted(call):
            return await door.relay.while_there(request, lambda: _answer(request, door.relay, call))
    except (NotAsked, NoAnswer, BadBody) as error:
        return _told(error.status, str(error))
    except TooMany as error:
        return _told(503, str(error), **{"Retry-After": "1"})
    except (Ended, NotToldHow) as error:
        return _told(503, str(error))


async def _answer(request: web.Request, relay: Relay, call: Call) -> web.StreamResponse:
    own = request.app[ACCESS].is_own(request.headers.get("Authorization", ""))
    question = await relay.question(request, with_credentials=not own)
    if request.method != "GET" or call.kind not in _CHANGED:
        return await relay.pass_on(request, question)
    try:
        return await _changed(request, relay, call, question)
    except TooLarge as error:
        return await relay.pass_on(request, question, {REMARK: f"broker; {error}"})


async def _changed(request: web.Request, relay: Relay, call: Call, question: Question) -> web.Response:
    topics, each = _topics(request), True
    if call.kind is Kind.partitioned_stats:
        question, each = with_partitions(question)
    answer, text = await relay.whole(question)
    if answer.status != 200:
        return web.Response(status=answer.status, body=text, headers=headers.answered(answer.headers))
    anew = headers.answered_anew(answer.headers)
    asking = Asking(relay, topics, question, request.app[BRIDGE].advertised_url)
    if call.kind is Kind.lookup:
        owner = await topics.owner_urls(call.topic)
        text = led(text, owner, request.app[BRIDGE].web_urls, call.topic, by_tls=request.secure)
    elif call.kind is Kind.subscriptions:
        text = text if asking.show_own else without_own(text)
    else:
        of_topic = call.kind is Kind.stats
        told = await (asking.of_topic(call.topic, text) if of_topic else asking.of_partitions(text, each=each))
        text = json.dumps(told.stats).encode()
        anew[REMARK] = headers.one_line(told.remark)
    return web.Response(body=text, headers=anew, content_type="application/json")


def _topics(request: web.Request) -> Topics:
    topics = request.app[BRIDGE].topics
    if topics is None:
        raise refused(web.HTTPServiceUnavailable, "the bridge is starting")
    return topics


def _told(status: int, reason: str, **more: str) -> web.Response:
    return web.json_response({"reason": reason}, status=status, headers=more)
