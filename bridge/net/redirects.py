"""HTTP requests whose credentials go along to where a server redirects; libraries leave them out towards another."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
from yarl import URL

from bridge.net.trust import TrustedServers

REDIRECTS_MAX: Final = 20
"""Followed for one question to the broker's admin interface, as for lookups."""
REDIRECTS = frozenset({301, 302, 307, 308})


class RedirectError(Exception):
    """A redirect that is not followed; the message says why."""


class RedirectedTooOften(RedirectError):
    """No server answered by itself; the message says how many were asked."""


class RedirectedFromTls(RedirectError):
    """A server asked by TLS leads to one without: credentials could be read on the way there."""


@asynccontextmanager
async def request_with_redirects(
    session: aiohttp.ClientSession, method: str, url: URL, *, trusted: TrustedServers | None = None, **options: Any
) -> AsyncIterator[aiohttp.ClientResponse]:
    """The first answer that is no redirect; method, body and headers go to each server as they are.

    `trusted`: what servers with TLS are checked by, by default the system's authorities. Raises CertificateError,
    RedirectError, and what aiohttp raises.
    """
    for _ in range(REDIRECTS_MAX):
        checked = True if trusted is None or url.scheme != "https" else trusted.context
        async with session.request(method, url, allow_redirects=False, ssl=checked, **options) as response:
            if response.status not in REDIRECTS:
                yield response
                return
            url = following(url, response)
    raise RedirectedTooOften(f"redirected {REDIRECTS_MAX} times")


def following(url: URL, answer: aiohttp.ClientResponse) -> URL:
    """Where `answer`, got from `url`, redirects to. Raises RedirectError."""
    try:
        target = url.join(URL(answer.headers.get("Location", ""), encoded=True))
        usable = bool(target.host) and target.scheme in ("http", "https")
    except ValueError:
        usable = False
    if not usable:
        raise RedirectError(f"{url.origin()} redirects to what is no URL")
    if url.scheme == "https" and target.scheme != "https":
        raise RedirectedFromTls(
            f"{url.origin()} redirects to {target.origin()}, which is without TLS: not followed with credentials"
        )
    return target
