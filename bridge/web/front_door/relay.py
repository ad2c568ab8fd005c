"""One request from a caller to the broker and its answer back, as they are, for as long as the caller is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import aiohttp
import structlog
from aiohttp import web

from bridge.broker.connection import describe
from bridge.limits import WebLimits
from bridge.net.tasks import beside
from bridge.net.waiting import is_set_within
from bridge.web.front_door import headers
from bridge.web.front_door.bodies import Body
from bridge.web.front_door.broker import Broker, NoAnswer, Question, no_answer
from bridge.web.front_door.calls import Call, is_for_clients

T = TypeVar("T")

log = structlog.get_logger(__name__)


class TooMany(Exception):
    """No more requests at the moment; the message says of what kind."""


class TooLarge(NoAnswer):
    """An answer is larger than what is read whole."""


class Ended(Exception):
    """The caller is gone, or the bridge is about to be; the message is for a caller that is there."""


class Relay:
    """Counts what is under way."""

    def __init__(self, broker: Broker, limits: WebLimits) -> None:
        """Nothing is under way yet."""
        self.broker = broker
        self.limits = limits
        self.under_way = {True: 0, False: 0}
        """Requests that clients make by themselves, and others."""
        self.stopping = asyncio.Event()
        """Set when those under way are to end."""

    @contextmanager
    def counted(self, call: Call) -> Iterator[None]:
        """For as long as a request is under way. Raises TooMany."""
        clients = is_for_clients(call)
        most = self.limits.client_relays_at_once if clients else self.limits.relays_at_once
        if self.under_way[clients] >= most:
            raise TooMany(f"{most} {'lookups' if clients else 'requests'} to the broker are under way, try again")
        self.under_way[clients] += 1
        try:
            yield
        finally:
            self.under_way[clients] -= 1

    async def question(self, request: web.Request, *, with_credentials: bool) -> Question:
        """What the broker is asked for a caller. Raises BadBody."""
        asked = headers.asked(request.headers, with_credentials=with_credentials)
        body = await Body.read(request, self.limits)
        return Question(request.method, str(request.rel_url), asked, body)

    async def pass_on(
        self, request: web.Request, question: Question, more: Mapping[str, str] | None = None
    ) -> web.StreamResponse:
        """The broker's answer, as it comes, with `more` headers. Raises NoAnswer or BadBody before it has begun.

        Breaks the connection where the broker breaks off, and where the caller does not read.
        """
        async with self.broker.asked(question) as answer:
            told = headers.answered(answer.headers)
            told.update(more or {})
            response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=told)
            await response.prepare(request)
            is_whole = False
            try:
                async for chunk in answer.content.iter_any():
                    async with asyncio.timeout(self.limits.relay_stall_s):
                        await response.write(chunk)
                await response.write_eof()
                is_whole = True
            except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
                log.debug("an answer could not be passed on as a whole", path=request.path, reason=describe(error))
            finally:
                if not is_whole and request.transport is not None:
                    request.transport.abort()
            return response

    async def whole(self, question: Question, web_url: str | None = None) -> tuple[aiohttp.ClientResponse, bytes]:
        """An answer that is to be changed, and its body. Raises NoAnswer, TooLarge among it, and BadBody."""
        question = question._replace(headers=question.headers.copy())
        question.headers["Accept-Encoding"] = "identity"
        body = bytearray()
        async with self.broker.asked(question, web_url) as answer:
            try:
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > self.limits.relay_filled_bytes:
                        raise TooLarge(f"the answer is larger than {self.limits.relay_filled_bytes} bytes")
            except (aiohttp.ClientError, TimeoutError) as error:
                raise no_answer(answer.url, error, self.limits) from None
            return answer, bytes(body)

    async def while_there(self, request: web.Request, work: Callable[[], Awaitable[T]]) -> T:
        """Do the work unless the caller goes away meanwhile, or the bridge: then it is ended. Raises Ended."""

        async def worked() -> T:
            return await work()

        return await beside(worked(), self._until_gone(request))

    async def _until_gone(self, request: web.Request) -> None:
        while request.transport is not None and not request.transport.is_closing() and not self.stopping.is_set():
            await is_set_within(self.stopping, self.limits.relay_gone_look_s)
        raise Ended("the bridge is stopping")
