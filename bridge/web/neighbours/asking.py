"""Asks the other workers of this host on a caller's behalf, and brings back what they say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

import aiohttp
from aiohttp import web
from yarl import URL

from bridge.limits import WorkerLimits
from bridge.net.tasks import all_of
from bridge.topics.tracked_topic import TrackedTopic
from bridge.web.access.control import ACCESS
from bridge.web.access.guards import Handler
from bridge.web.request.parameters import refused, web_url_elsewhere
from bridge.web.request.served import BRIDGE

_LED_MOST = 5
"""A topic that moves leads from one worker to the next; not for ever."""
_PASSED_ON = ("Accept", "Content-Type")
_BROUGHT_BACK = ("Content-Type", "X-Total-Count", "Location", "Retry-After")


class Told(NamedTuple):
    """What a worker said; `trouble` is why it said nothing that is of use."""

    web_url: str
    text: str = ""
    trouble: str | None = None


class Neighbours:
    """Of the first worker; others have none."""

    def __init__(self, urls: Mapping[str, str], limits: WorkerLimits) -> None:
        """Nothing is opened yet. `urls`: by those that others know them by, where they are for this process."""
        self._urls = urls
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._urls)

    def leads_to(self, url: str) -> URL | None:
        """Where a redirect leads, for this process; None when that is nobody of them."""
        target = URL(url)
        local = self._urls.get(str(target.origin())) if target.is_absolute() else None
        return None if local is None else URL(local).join(target.relative())

    async def ask_all(self, request: web.Request, target: str, method: str = "GET") -> list[Told]:
        """What each of them answers, with the caller's credentials."""
        return await all_of(self._ask(request, method, url, target) for url in self._urls.values())

    async def _ask(self, request: web.Request, method: str, web_url: str, target: str) -> Told:
        timeout = aiohttp.ClientTimeout(total=self._limits.worker_answer_s)
        url = URL(web_url + target, encoded=True)
        try:
            asking = self._opened().request(
                method, url, headers=_credentials(request), timeout=timeout, allow_redirects=False
            )
            async with asking as answer:
                text = await answer.text()
                if answer.ok:
                    return Told(web_url, text)
                return Told(web_url, trouble=f"{answer.status} {text[:200]}")
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            return Told(web_url, trouble=_why(error))

    async def relayed(self, request: web.Request, url: URL) -> web.Response:
        """The answer to a request that is for one of them. Raises HTTPBadGateway when it gives none."""
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        headers.update(_credentials(request))
        body = await request.read()
        timeout = aiohttp.ClientTimeout(total=self._limits.worker_relayed_s)
        asking = self._opened().request(
            request.method, url, headers=headers, data=body or None, timeout=timeout, allow_redirects=False
        )
        try:
            async with asking as answer:
                told = {name: answer.headers[name] for name in _BROUGHT_BACK if name in answer.headers}
                return web.Response(status=answer.status, body=await answer.read(), headers=told)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = f"the worker at {url.origin()} that has this topic did not answer: {_why(error)}"
            raise refused(web.HTTPBadGateway, reason) from None

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        return self._session


NEIGHBOURS: web.AppKey[Neighbours] = web.AppKey("neighbours", Neighbours)


async def neighbours_context(app: web.Application) -> AsyncIterator[None]:
    """For `cleanup_ctx` of an application."""
    yield
    await app[NEIGHBOURS].close()


@web.middleware
async def ask_whom_it_is_for(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What would lead the caller to another worker is asked there, and answered from here: one port for all."""
    neighbours = request.app[NEIGHBOURS]
    try:
        return await handler(request)
    except web.HTTPTemporaryRedirect as redirect:
        url = neighbours.leads_to(str(redirect.location))
        if url is None:
            raise
    for _ in range(_LED_MOST):
        answer = await neighbours.relayed(request, url)
        following = answer.headers.get("Location") if answer.status == web.HTTPTemporaryRedirect.status_code else None
        if following is None or (next_url := neighbours.leads_to(following)) is None:
            return answer
        url = next_url
    raise refused(web.HTTPServiceUnavailable, f"{request.path}: the topic moves between workers, ask again")


def lead_to_worker(request: web.Request, name: str, topic: TrackedTopic | None) -> None:
    """Raise HTTPTemporaryRedirect where another worker owns a topic partition, for `ask_whom_it_is_for`."""
    web_url = web_url_elsewhere(request.app[BRIDGE], name, topic)
    if web_url is not None and request.app[NEIGHBOURS].leads_to(web_url) is not None:
        raise web.HTTPTemporaryRedirect(f"{web_url}{request.rel_url}")


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__


def _credentials(request: web.Request) -> dict[str, str]:
    token = request.app[ACCESS].token_of(request)
    return {"Authorization": f"Bearer {token}"} if token else {}
