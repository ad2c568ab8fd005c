"""REST of the bridges among each other."""

import asyncio
import json

from aiohttp import web

from bridge import answers
from bridge.clock import wall_clock_ms
from bridge.members.membership import Member
from bridge.members.plan import Loads
from bridge.web.access.control import visible_names
from bridge.web.neighbours.asking import NEIGHBOURS
from bridge.web.request.parameters import ROOT, refused
from bridge.web.request.served import BRIDGE, Served
from bridge.web.rest.action_routes import note_action
from bridge.web.rest.answering import Answer, Written

routes = web.RouteTableDef()
DRAIN = f"{ROOT}/drain"


@routes.get(f"{ROOT}/owned")
async def owned(request: web.Request) -> Answer[answers.Owned]:
    """List the topic partitions that this bridge owns, of those that the caller may see: other bridges ask for it."""
    bridge = request.app[BRIDGE]
    loads = {} if bridge.topics is None else await bridge.topics.owned()
    visible = await visible_names(request, loads)
    draining = bridge.balance is not None and bridge.balance.draining
    found: answers.Owned = {
        "draining": draining,
        "nowMs": wall_clock_ms(),
        "topics": [{"topic": name, "load": load} for name, load in loads.items() if name in visible],
    }
    return Answer(Written(await asyncio.to_thread(json.dumps, found)))


@routes.get(f"{ROOT}/members")
async def members(request: web.Request) -> Answer[answers.Members]:
    """Tell which bridges there are, and how much each of them owns."""
    return Answer(await members_answer(request.app[BRIDGE]))


@routes.get(DRAIN)
async def drain_status(request: web.Request) -> Answer[answers.Drain]:
    """Tell whether others take over what this bridge owns, and what is left."""
    return Answer(await _drain_together(request))


@routes.put(DRAIN)
async def drain(request: web.Request) -> Answer[answers.Drain]:
    """Have others take over what this bridge owns."""
    return await _set_draining(request, draining=True)


@routes.delete(DRAIN)
async def join(request: web.Request) -> Answer[answers.Drain]:
    """Take a share again."""
    return await _set_draining(request, draining=False)


async def _set_draining(request: web.Request, *, draining: bool) -> Answer[answers.Drain]:
    balance = request.app[BRIDGE].balance
    if balance is None:
        raise refused(web.HTTPConflict, "this bridge knows no others that could take over: members_topic is off")
    balance.drain(draining)
    status = await _drain_together(request)
    await note_action(request, "drain" if draining else "join", topic=None, outcomes={"topics": status["left"]})
    return Answer(status, status=202)


async def _drain_together(request: web.Request) -> answers.Drain:
    """Of all workers of the host. Raises HTTPBadGateway when one of them does not answer."""
    bridge = request.app[BRIDGE]
    loads = {} if bridge.topics is None else await bridge.topics.owned()
    left = sum(load > 0 for load in loads.values())
    for told in await request.app[NEIGHBOURS].ask_all(request, DRAIN, request.method):
        if told.trouble is not None:
            raise refused(web.HTTPBadGateway, f"the worker at {told.web_url} does not answer: {told.trouble}")
        left += json.loads(told.text)["left"]
    return {"draining": bridge.balance is not None and bridge.balance.draining, "left": left}


async def members_answer(bridge: Served) -> answers.Members:
    """As of this bridge's last look at them; itself alone where it is not to know others."""
    balance = bridge.balance
    if balance is None:
        loads = {} if bridge.topics is None else await bridge.topics.owned()
        own = _member(Member(bridge.advertised_url, next(filter(None, bridge.web_urls), None)), loads)
        return {"members": [own], "trouble": None}
    found = [
        _member(
            each,
            balance.shares.get(each.url),
            draining=each.url in balance.leaving,
            offset_ms=0.0 if each.url == bridge.advertised_url else balance.clock_offsets_ms.get(each.url),
        )
        for each in balance.members
    ]
    return {"members": sorted(found, key=lambda each: each["url"]), "trouble": balance.trouble}


def _member(
    member: Member, loads: Loads | None, *, draining: bool = False, offset_ms: float | None = 0.0
) -> answers.Member:
    return {
        "url": member.url,
        "webUrl": member.web_url,
        "draining": draining,
        "owned": None if loads is None else len(loads),
        "load": None if loads is None else round(sum(loads.values()), 3),
        "clockOffsetMs": None if offset_ms is None else round(offset_ms),
    }
