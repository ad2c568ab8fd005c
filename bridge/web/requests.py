"""What the handlers of all routes share: the topic a request names, its values, and refusals as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aiohttp import web

from bridge.protocol.topic_name import TopicName
from bridge.tracked_topic import TrackedTopic

if TYPE_CHECKING:
    from bridge.app import Bridge

ROOT = "/admin/v2/delayed"
TOPIC = f"{ROOT}/persistent/{{tenant}}/{{namespace}}/{{topic}}"
BRIDGE: web.AppKey[Bridge] = web.AppKey("bridge")
"""The running bridge, in every application of its web server."""


def refused(kind: type[web.HTTPError], reason: str) -> web.HTTPError:
    """Return an error to raise, its reason as JSON."""
    return kind(text=json.dumps({"reason": reason}), content_type="application/json")


def tracked_topic(request: web.Request) -> TrackedTopic:
    """Return the topic partition that a request names. Raises HTTPNotFound when this bridge does not track it."""
    match = request.match_info
    name = str(TopicName("persistent", match["tenant"], match["namespace"], match["topic"]))
    topics = request.app[BRIDGE].topics
    topic = None if topics is None else topics.get(name)
    if topic is None:
        raise refused(web.HTTPNotFound, f"{name} is not tracked by this bridge")
    return topic
