"""REST of the bridges among each other."""

import asyncio
import json

from aiohttp import web

from bridge import answers
from bridge.members.plan import Loads
from bridge.web.access.control import visible_names
from bridge.web.request.parameters import ROOT
from bridge.web.request.served import BRIDGE, Served
from bridge.web.rest.answering import Answer, Written

routes = web.RouteTableDef()


@routes.get(f"{ROOT}/owned")
async def owned(request: web.Request) -> Answer[list[answers.Owned]]:
    """List the topic partitions that this bridge owns, of those that the caller may see: other bridges ask for it."""
    topics = request.app[BRIDGE].topics
    loads = {} if topics is None else await topics.owned()
    visible = await visible_names(request, loads)
    found: list[answers.Owned] = [{"topic": name, "load": load} for name, load in loads.items() if name in visible]
    return Answer(Written(await asyncio.to_thread(json.dumps, found)))


@routes.get(f"{ROOT}/members")
async def members(request: web.Request) -> Answer[answers.Members]:
    """Tell which bridges there are, and how much each of them owns."""
    return Answer(await members_answer(request.app[BRIDGE]))


async def members_answer(bridge: Served) -> answers.Members:
    """As of this bridge's last look at them; itself alone where it is not to know others."""
    balance = bridge.balance
    if balance is None:
        loads = {} if bridge.topics is None else await bridge.topics.owned()
        own = _member(bridge.advertised_url, next(filter(None, bridge.web_urls), None), loads)
        return {"members": [own], "trouble": None}
    found = [_member(each.url, each.web_url, balance.shares.get(each.url)) for each in balance.members]
    return {"members": sorted(found, key=lambda each: each["url"]), "trouble": balance.trouble}


def _member(url: str, web_url: str | None, loads: Loads | None) -> answers.Member:
    load = None if loads is None else round(sum(loads.values()), 3)
    return {"url": url, "webUrl": web_url, "owned": None if loads is None else len(loads), "load": load}
