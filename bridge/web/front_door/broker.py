"""Asks the broker in a caller's name: with the caller's credentials, which go along to where a broker redirects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from bridge.broker.connection import describe
from bridge.limits import WebLimits
from bridge.net.redirects import REDIRECTS, REDIRECTS_MAX, RedirectError, following
from bridge.net.trust import TrustedServers
from bridge.web.front_door.bodies import Body


class NoAnswer(Exception):
    """The broker did not answer; `status` is what a proxy says then, 502 or 504, the message says why."""

    def __init__(self, message: str, status: int = 502) -> None:
        """`message` names the broker and the reason."""
        super().__init__(message)
        self.status = status


class Question(NamedTuple):
    """What the broker is asked; `target`: path and query, escaped."""

    method: str
    target: str
    headers: CIMultiDict[str]
    body: Body | None = None


class Broker:
    """Connections are shared: HTTP knows callers by their headers, with each request anew."""

    def __init__(self, web_url: str, limits: WebLimits, trusted: TrustedServers) -> None:
        """Nothing is opened before the first question. `trusted`: what servers with TLS are checked by."""
        self._trusted = trusted
        self._web_url = web_url.rstrip("/")
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def asked(self, question: Question, web_url: str | None = None) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer, as it begins: its body is read, undecoded, while the context is open. Raises NoAnswer, BadBody.

        `web_url`: another server than the first broker. Redirects are followed, unless a body would have to be sent
        again that is not kept, or they lead from TLS to none.
        """
        base = self._web_url if web_url is None else web_url.rstrip("/")
        url = URL(base + question.target, encoded=True)
        for _ in range(REDIRECTS_MAX):
            async with self._answer_of(url, question) as answer:
                again = question.body is None or question.body.can_be_sent_again
                if answer.status not in REDIRECTS or not again:
                    yield answer
                    return
                try:
                    url = following(url, answer)
                except RedirectError as error:
                    raise NoAnswer(str(error)) from None
        raise NoAnswer(f"{question.method} {URL(question.target, encoded=True).raw_path}: redirected without end")

    @asynccontextmanager
    async def _answer_of(self, url: URL, question: Question) -> AsyncIterator[aiohttp.ClientResponse]:
        """Raises NoAnswer, BadBody."""
        body = question.body
        headers = question.headers.copy()
        if body is not None and body.length is not None:
            headers["Content-Length"] = str(body.length)
        asking = self._opened().request(
            question.method,
            url,
            headers=headers,
            data=None if body is None else body.data(),
            allow_redirects=False,
            ssl=self._trusted.context if url.scheme == "https" else True,
        )
        try:
            answer = await asking
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            if body is not None and body.failure is not None:
                raise body.failure from None
            raise no_answer(url, error, self._limits) from None
        async with answer:
            yield answer

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            limits = self._limits
            self._session = aiohttp.ClientSession(
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                connector=aiohttp.TCPConnector(limit=0),  # requests are counted before they come here
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=limits.relay_connect_s, sock_read=limits.relay_answer_s
                ),
                read_bufsize=limits.relay_buffer_bytes,
                max_field_size=limits.relay_header_bytes,
                max_line_size=limits.relay_header_bytes,
            )
        return self._session


def no_answer(url: URL, error: Exception, limits: WebLimits) -> NoAnswer:
    """Why a broker did not answer, in words that hold nothing of the caller's request but where it went."""
    broker = str(url.origin())
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return NoAnswer(f"the broker at {broker} cannot be reached within {limits.relay_connect_s:g} s", 504)
    if isinstance(error, TimeoutError):
        return NoAnswer(f"the broker at {broker} did not answer within {limits.relay_answer_s:g} s", 504)
    if isinstance(error, aiohttp.ClientConnectorError):
        return NoAnswer(f"the broker at {broker} cannot be reached: {error.os_error.strerror or error.os_error}")
    if isinstance(error, aiohttp.ClientConnectionError):
        return NoAnswer(f"the broker at {broker} gave no answer: {describe(error)}")
    return NoAnswer(f"the broker at {broker} could not be asked: {type(error).__name__}")
