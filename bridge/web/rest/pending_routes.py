"""REST of single entries: search, cancel, deliver now."""

import json
from collections import Counter
from collections.abc import Sequence

from aiohttp import web

from bridge import answers
from bridge.answers.values import Outcome
from bridge.operate.pending import Pending, Wanted
from bridge.operate.steering import NotTracked, Steering, SteeringError
from bridge.web.request.parameters import (
    TOPIC,
    flag_in,
    index_of,
    not_served,
    number_in,
    position_from,
    refused,
    served_topic,
    time_in,
    tracked_topic,
    view_of,
)
from bridge.web.request.served import limits_of
from bridge.web.request.shown import subscriptions_shown
from bridge.web.rest.action_routes import note_action
from bridge.web.rest.answering import Answer
from tracker import Position, StoreError

SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"
PENDING = f"{SUBSCRIPTION}/pending"
ENTRY = f"{PENDING}/{{position}}"
DEFAULT_LIMIT = 100

routes = web.RouteTableDef()


@routes.get(PENDING)
async def pending(request: web.Request) -> Answer[answers.Pending]:
    """Search what a subscription has not acked yet."""
    topic = tracked_topic(request)
    index = index_of(topic)
    name = request.match_info["subscription"]
    wanted = _wanted(request)
    view = view_of(index, name)
    limit = number_in(request, "limit", DEFAULT_LIMIT, 1, limits_of(request).search_page_max)
    search = Pending(index, view, subscriptions_shown(topic).get(name), limits_of(request))
    try:
        page = await search.search(wanted, request.query.get("cursor"), limit, payload=flag_in(request, "payload"))
    except ValueError as error:
        raise refused(web.HTTPBadRequest, str(error)) from None
    except StoreError as error:
        raise refused(web.HTTPServiceUnavailable, str(error)) from error
    return Answer(page)


@routes.delete(ENTRY)
async def cancel(request: web.Request) -> Answer[answers.OneOutcome]:
    """Cancel one entry."""
    return await _one(request, "cancel")


@routes.post(f"{ENTRY}/deliver-now")
async def deliver_now(request: web.Request) -> Answer[answers.OneOutcome]:
    """Deliver one entry now."""
    return await _one(request, "deliver-now")


@routes.post(f"{SUBSCRIPTION}/cancel")
async def cancel_some(request: web.Request) -> Answer[answers.Outcomes]:
    """Cancel the entries that the body lists."""
    return await _some(request, "cancel")


@routes.post(f"{SUBSCRIPTION}/deliver-now")
async def deliver_some_now(request: web.Request) -> Answer[answers.Outcomes]:
    """Deliver the entries now that the body lists."""
    return await _some(request, "deliver-now")


async def _one(request: web.Request, act: str) -> Answer[answers.OneOutcome]:
    position = position_from(request, request.match_info["position"])
    outcomes = await _steer(request, act, [position])
    return Answer({"outcome": outcomes[position]})


async def _some(request: web.Request, act: str) -> Answer[answers.Outcomes]:
    outcomes = await _steer(request, act, await _listed(request))
    counted = Counter(outcome.value for outcome in outcomes.values())
    entries = {str(position): outcome for position, outcome in outcomes.items()}
    return Answer({"outcomes": dict(counted), "entries": entries})


async def _steer(request: web.Request, act: str, positions: Sequence[Position]) -> dict[Position, Outcome]:
    topic = await served_topic(request)
    tenure = topic.tenure
    if tenure is None:
        raise refused(web.HTTPConflict, f"{topic.topic} is not owned by this bridge: {not_served(topic)}")
    does = Steering.cancel if act == "cancel" else Steering.deliver_now
    name = request.match_info["subscription"]
    try:
        outcomes = await does(tenure.steering, name, positions)
    except NotTracked as error:
        raise refused(web.HTTPNotFound, str(error)) from None
    except SteeringError as error:
        raise refused(web.HTTPServiceUnavailable, str(error)) from error
    counted = Counter(outcome.value for outcome in outcomes.values())
    listed = [str(position) for position in outcomes]
    await note_action(request, act, topic=topic.topic, subscription=name, positions=listed, outcomes=counted)
    return outcomes


async def _listed(request: web.Request) -> list[Position]:
    try:
        listed = (await request.json())["messageIds"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        raise refused(web.HTTPBadRequest, 'expected a body like {"messageIds": ["3:17", "3:18"]}') from None
    most = limits_of(request).steering_max
    if not isinstance(listed, list) or not 1 <= len(listed) <= most:
        raise refused(web.HTTPBadRequest, f"messageIds: expected a list of 1 to {most} positions")
    return [position_from(request, str(each)) for each in listed]


def _wanted(request: web.Request) -> Wanted:
    default = Wanted()
    due_from, due_to = time_in(request, "dueFrom"), time_in(request, "dueTo")
    text = request.query.get("messageId")
    properties = []
    for each in request.query.getall("property", []):
        name, separator, value = each.partition("=")
        if not separator:
            raise refused(web.HTTPBadRequest, f"property: not NAME=VALUE: {each!r}")
        properties.append((name, value))
    return Wanted(
        default.due_from_ms if due_from is None else due_from,
        default.due_to_ms if due_to is None else due_to,
        position_from(request, text) if text else None,
        request.query.get("key") or None,
        tuple(properties),
    )
