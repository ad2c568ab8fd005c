"""Who may see and who may steer, asked for every request before its handler runs.

A handler whose path names a topic (`{tenant}/{namespace}/{topic}`) need not check anything; one that answers of many
topics leaves out what `visible_topics` leaves out.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Iterable
from enum import StrEnum
from urllib.parse import quote

import structlog
from aiohttp import web
from pydantic import SecretStr

from bridge.config import Settings
from bridge.limits import WebLimits
from bridge.net.tasks import all_of
from bridge.net.trust import TrustedServers
from bridge.protocol.names import TopicName
from bridge.topics.tracked_topic import TrackedTopic
from bridge.web.access.callers import Caller, PulsarRules, Rules, TokenRules, Unrestricted
from bridge.web.access.guards import HARMLESS_METHODS, Handler
from bridge.web.access.pulsar_permissions import BrokerSilent, PulsarPermissions
from bridge.web.access.sessions import Sessions
from bridge.web.request.parameters import refused, topic_name
from bridge.web.request.served import BRIDGE

log = structlog.get_logger(__name__)

ALWAYS_OPEN = ("/healthz", "/readyz", "/status.html", "/login", "/logout", "/favicon.ico")
"""Probes ask without a token, and whoever has to log in needs the page for it; nothing here tells of topics."""
RELAYED = ("/admin/{relayed}", "/lookup/{relayed}")
"""Who may do what there is asked of the broker, with the caller's own credentials: see `bridge.web.front_door`."""
STATIC = "/static"
METRICS = "/metrics"
REST = "/admin/"
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="delay-bridge"'}
_TOKEN = re.compile(r"[\x21-\x7e]{1,7900}")
"""What fits a header."""


class Permission(StrEnum):
    """What a caller may do."""

    SEE = "see"
    STEER = "steer"


class AccessControl:
    """The rules of one bridge, and the browsers that are logged in."""

    def __init__(self, settings: Settings, limits: WebLimits, trusted: TrustedServers | None = None) -> None:
        """Nothing is asked yet. `trusted`: what brokers with TLS are checked by."""
        self.mode = settings.access
        self.sessions = Sessions(time.monotonic, limits)
        self._permissions = PulsarPermissions(settings.broker_web_url, time.monotonic, limits, trusted)
        tokens = self._tokens = TokenRules(_secret(settings.web_token), _secret(settings.web_read_token))
        self._rules: Rules = Unrestricted()
        if self.mode == "token":
            self._rules = tokens
        elif self.mode == "pulsar":
            self._rules = PulsarRules(self._permissions)
        # Metrics tell of all topics: in this mode a scraper has a token of its own, if one is set.
        self._metrics_rules = tokens if self.mode == "pulsar" and tokens.any_set else self._rules

    async def close(self) -> None:
        """Close what the broker was asked by."""
        await self._permissions.close()

    async def identify(self, token: str | None, path: str = "") -> Caller | None:
        """Return who presents a token, None for nobody. Raises HTTPServiceUnavailable when the broker does not say."""
        if token is not None and not _TOKEN.fullmatch(token):
            token = None
        rules = self._metrics_rules if path == METRICS else self._rules
        try:
            return await rules.identify(token)
        except BrokerSilent as error:
            raise refused(web.HTTPServiceUnavailable, str(error)) from None

    def is_own(self, authorization: str) -> bool:
        """Whether a header brings a token of the bridge's own, which is nobody else's business."""
        return self._tokens.holds(authorization.partition(" ")[2].strip())

    async def may(self, caller: Caller, permission: Permission, topic: TopicName | None) -> bool:
        """Whether a caller may; without a topic: see what is there at all, or steer anything.

        Raises HTTPServiceUnavailable when the broker does not say.
        """
        try:
            if permission is Permission.SEE:
                return await caller.rules.may_see(caller, topic)
            return await caller.rules.may_steer(caller, topic)
        except BrokerSilent as error:
            raise refused(web.HTTPServiceUnavailable, str(error)) from None

    def token_of(self, request: web.Request) -> str | None:
        """Return the token that a request brings, by itself or by the cookie of a session."""
        authorization = request.headers.get("Authorization")
        if authorization is not None:
            kind, _, token = authorization.partition(" ")
            return token.strip() if kind.lower() == "bearer" else ""
        session_id = request.cookies.get(cookie_name(request))
        return None if session_id is None else self.sessions.token(session_id)


ACCESS: web.AppKey[AccessControl] = web.AppKey("access", AccessControl)
CALLER: web.RequestKey[Caller] = web.RequestKey("caller", Caller)


async def access_context(app: web.Application) -> AsyncIterator[None]:
    """For `cleanup_ctx` of an application."""
    yield
    await app[ACCESS].close()


@web.middleware
async def check_access(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let in who may do what a request wants: 401 for who is not known, 403 for who may not."""
    path = _route(request)
    if path in ALWAYS_OPEN or path in RELAYED or path == STATIC or path.startswith(f"{STATIC}/"):
        return await handler(request)
    access = request.app[ACCESS]
    caller = await access.identify(access.token_of(request), path)
    if caller is None:
        raise _log_in(request)
    request[CALLER] = caller
    permission = Permission.SEE if request.method in HARMLESS_METHODS else Permission.STEER
    await require(request, permission, named_topic(request))
    return await handler(request)


async def require(request: web.Request, permission: Permission, topic: TopicName | None = None) -> None:
    """Raise HTTPForbidden unless the caller may."""
    caller = request[CALLER]
    if not await request.app[ACCESS].may(caller, permission, topic):
        reason = caller.rules.reason(caller, permission.value, topic)
        log.warning("request refused", actor=actor_of(request), method=request.method, path=request.path, reason=reason)
        raise refused(web.HTTPForbidden, reason)


async def may(request: web.Request, permission: Permission, topic: str) -> bool:
    """Whether the caller may see or steer a topic; for pages that show only what can be done."""
    return await request.app[ACCESS].may(request[CALLER], permission, TopicName.parse(topic))


async def visible_topics(request: web.Request) -> list[TrackedTopic]:
    """Return the tracked topics that the caller may see, in their order."""
    known = request.app[BRIDGE].topics
    topics = [] if known is None else known.all()
    allowed = await visible_names(request, [topic.topic for topic in topics])
    return [topic for topic in topics if topic.topic in allowed]


async def visible_names(
    request: web.Request, names: Iterable[str], permission: Permission = Permission.SEE
) -> set[str]:
    """Return those names of topics that the caller may see, or steer."""
    access, caller = request.app[ACCESS], request[CALLER]
    wanted = set(names)
    see = permission is Permission.SEE
    if (see and caller.rules.sees_all) or await access.may(caller, Permission.STEER, None):
        return wanted
    known = {name: caller.rules.remembers_seeing(caller, name) if see else None for name in wanted}
    unknown = [name for name, answer in known.items() if answer is None]
    answers = await all_of(access.may(caller, permission, TopicName.parse(name)) for name in unknown)
    known.update(zip(unknown, answers, strict=True))
    return {name for name, answer in known.items() if answer}


def actor_of(request: web.Request) -> str:
    """Return who acts, and from where: the Pulsar role, else `token`, `read-token` or `local`."""
    caller = request.get(CALLER)
    name = "nobody" if caller is None else caller.name
    return f"{name} from {request.remote or 'this machine'}"


def named_topic(request: web.Request) -> TopicName | None:
    """Return the topic that the path of a request names."""
    return topic_name(request) if {"tenant", "namespace", "topic"} <= request.match_info.keys() else None


def cookie_name(request: web.Request) -> str:
    """Of several bridges on one host, each has a cookie of its own: cookies do not know of ports."""
    return f"delay-bridge-{request.app[BRIDGE].web_port}"


def _log_in(request: web.Request) -> web.HTTPException:
    wants_page = request.method in HARMLESS_METHODS and "text/html" in request.headers.get("Accept", "")
    if wants_page and not request.path.startswith(REST) and request.path != METRICS:
        return web.HTTPSeeOther(f"/login?next={quote(request.path_qs, safe='')}")
    error = refused(web.HTTPUnauthorized, "a valid token is needed: Authorization: Bearer ...")
    error.headers.update(CHALLENGE)
    return error


def _route(request: web.Request) -> str:
    """Return the pattern of the path that was matched, empty without one."""
    resource = request.match_info.route.resource
    return "" if resource is None else resource.canonical


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()
