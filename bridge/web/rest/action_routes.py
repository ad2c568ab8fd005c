"""Acts of operators: noted by the routes that do them, and told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiohttp import web

from bridge import answers
from bridge.operate.action_log import ActionLog
from bridge.web.access.control import CALLER, Permission, require, visible_names
from bridge.web.request.parameters import ROOT, number_in, refused
from bridge.web.request.served import limits_of
from bridge.web.rest.answering import Answer
from bridge.web.rest.together import acts_together

routes = web.RouteTableDef()

ACTIONS: web.AppKey[ActionLog] = web.AppKey("actions", ActionLog)
DEFAULT_LIMIT = 100
MAX_ID = 2**63 - 1


async def note_action(
    request: web.Request,
    action: str,
    *,
    topic: str | None,
    subscription: str | None = None,
    positions: Sequence[str] = (),
    outcomes: Mapping[str, int] | None = None,
) -> None:
    """Note what was done for the caller of a request."""
    await request.app[ACTIONS].note(
        request[CALLER].name,
        request.remote or "",
        action,
        topic,
        subscription=subscription,
        positions=positions,
        outcomes=outcomes,
    )


@routes.get(f"{ROOT}/actions")
async def actions(request: web.Request) -> Answer[list[answers.Action]]:
    """List the last acts, newest first, on topics that the caller may steer."""
    limit = number_in(request, "limit", DEFAULT_LIMIT, 1, limits_of(request).actions_page_max)
    before = number_in(request, "before", 0, 1, MAX_ID) or None
    if request[CALLER].rules.sees_all:
        await require(request, Permission.STEER)
    found: list[answers.Action] = []
    scanned = 0
    while len(found) < limit and scanned < limits_of(request).actions_scanned_max:
        part = await _read(request, limit, before)
        found += await _of_the_callers(request, part)
        scanned += len(part)
        if len(part) < limit:
            break
        before = part[-1]["id"]
    return Answer(await acts_together(request, found[:limit], request.path_qs, limit))


async def _of_the_callers(request: web.Request, records: list[answers.Action]) -> list[answers.Action]:
    named = [record["topic"] for record in records if record["topic"]]
    allowed = await visible_names(request, named, Permission.STEER)
    return [record for record in records if record["topic"] in allowed]


async def _read(request: web.Request, limit: int, before: int | None) -> list[answers.Action]:
    try:
        return await request.app[ACTIONS].latest(limit, before)
    except OSError as error:
        raise refused(web.HTTPInternalServerError, f"cannot read the acts: {error.strerror or error}") from error
