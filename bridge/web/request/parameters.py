"""What the handlers of all routes share: the topic a request names, its values, and refusals as JSON."""

from __future__ import annotations

import json

from aiohttp import web

from bridge import answers
from bridge.notation.message_ids import MessageId
from bridge.notation.numbers import whole_number
from bridge.notation.quantities import DURATION_MAX_MS, parse_duration_ms
from bridge.notation.times import parse_time_ms
from bridge.protocol.names import TopicName
from bridge.topics.tracked_topic import TrackedTopic
from bridge.web.request.served import BRIDGE, Served
from bridge.web.request.shown import index_shown
from tracker import Position, SubscriptionView, TopicIndex

ROOT = "/admin/v2/delayed"
TOPIC = f"{ROOT}/persistent/{{tenant}}/{{namespace}}/{{topic}}"


def refused(kind: type[web.HTTPError], reason: str) -> web.HTTPError:
    """Return an error to raise, its reason as JSON."""
    error: answers.Error = {"reason": reason}
    return kind(text=json.dumps(error), content_type="application/json")


def topic_name(request: web.Request) -> TopicName:
    """Return the topic that the path of a request names; the path has to name one."""
    match = request.match_info
    return TopicName("persistent", match["tenant"], match["namespace"], match["topic"])


def known_topic(request: web.Request) -> TrackedTopic:
    """Return the topic partition that a request names, whoever owns it.

    Raises HTTPNotFound when it is not tracked here, HTTPTemporaryRedirect if another bridge is known to own it.
    """
    name, bridge = str(topic_name(request)), request.app[BRIDGE]
    topic = None if bridge.topics is None else bridge.topics.get(name)
    if topic is None:
        if (web_url := web_url_elsewhere(bridge, name, topic)) is not None:
            raise web.HTTPTemporaryRedirect(f"{web_url}{request.rel_url}")
        raise refused(web.HTTPNotFound, f"{name} is not tracked by this bridge")
    return topic


def tracked_topic(request: web.Request) -> TrackedTopic:
    """Return the topic partition that a request names.

    Raises HTTPNotFound when this bridge does not track it, HTTPTemporaryRedirect to its owner if that is another one.
    """
    topic = known_topic(request)
    if (web_url := web_url_elsewhere(request.app[BRIDGE], topic.topic, topic)) is not None:
        raise web.HTTPTemporaryRedirect(f"{web_url}{request.rel_url}")
    return topic


def web_url_elsewhere(bridge: Served, name: str, topic: TrackedTopic | None) -> str | None:
    """Return REST of the other bridge that owns a topic partition; `topic`: as it is tracked here, if it is."""
    if topic is not None:
        return None if topic.role == "owner" else topic.owner_web_url
    owner = None if bridge.balance is None else bridge.balance.owner_of(name)
    return None if owner is None or owner.url == bridge.advertised_url else owner.web_url


async def served_topic(request: web.Request) -> TrackedTopic:
    """As `tracked_topic`, for what takes an owner: a topic partition that was let go of is served first."""
    await tracked_topic(request).presence.serve()
    return tracked_topic(request)


def index_of(topic: TrackedTopic) -> TopicIndex:
    """Return the index of a topic partition. Raises HTTPConflict while it has none."""
    index = index_shown(topic)
    if index is None:
        raise refused(web.HTTPConflict, f"{topic.topic} has no index here: {not_served(topic)}")
    return index


def view_of(index: TopicIndex, name: str) -> SubscriptionView:
    """Return what an index knows of a subscription. Raises HTTPNotFound naming it."""
    view = index.views().get(name)
    if view is None:
        raise refused(web.HTTPNotFound, f"{index.topic} has no tracked subscription {name!r}")
    return view


def number_in(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    """Return a whole number of the query. Raises HTTPBadRequest naming the value."""
    text = request.query.get(name)
    if text is None:
        return default
    try:
        return whole_number(text, low, high)
    except ValueError as error:
        raise refused(web.HTTPBadRequest, f"{name}: {error}") from None


def time_in(request: web.Request, name: str) -> int | None:
    """Return a time of the query, in epoch ms. Raises HTTPBadRequest naming the value."""
    text = request.query.get(name)
    if not text:
        return None
    try:
        return parse_time_ms(text)
    except ValueError as error:
        raise refused(web.HTTPBadRequest, f"{name}: {error}") from None


def duration_in(request: web.Request, name: str, default_ms: int, low_ms: int) -> int:
    """Return a duration of the query in ms, `30s` or a number of ms. Raises HTTPBadRequest naming the value."""
    text = request.query.get(name)
    if not text:
        return default_ms
    try:
        if text.isdecimal():
            return whole_number(text, low_ms, DURATION_MAX_MS, "duration in ms")
        return parse_duration_ms(text, least_ms=low_ms)
    except ValueError as error:
        raise refused(web.HTTPBadRequest, f"{name}: {error}") from None


def position_from(request: web.Request, text: str) -> Position:
    """Return the entry that a message id names, of the topic that a request names.

    Raises HTTPBadRequest naming the value.
    """
    try:
        return MessageId.parse(text).entry_on(str(topic_name(request)))
    except ValueError as error:
        raise refused(web.HTTPBadRequest, str(error)) from None


def flag_in(request: web.Request, name: str) -> bool:
    """Return a yes or no of the query. Raises HTTPBadRequest naming the value."""
    text = request.query.get(name, "false").lower()
    if text not in ("true", "false"):
        raise refused(web.HTTPBadRequest, f"{name}: neither true nor false: {text!r}")
    return text == "true"


def not_served(topic: TrackedTopic) -> str:
    """Say why a topic is not served here."""
    return f"its role is {topic.role}" + ("" if topic.reason is None else f", {topic.reason}")
