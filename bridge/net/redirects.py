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
    RedirectError, ValueError for a redirect to no URL, and what aiohttp raises.
    """
    for _ in range(REDIRECTS_MAX):
        checked = True if trusted is None or url.scheme != "https" else trusted.context
        async with session.request(method, url, allow_redirects=False, ssl=checked, **options) as response:
            if response.status not in REDIRECTS:
                yield response
                return
            following = url.join(URL(response.headers.get("Location", ""), encoded=True))
            if url.scheme == "https" and following.scheme == "http":
                raise RedirectedFromTls(f"redirected from {url.origin()} to {following.origin()}, which is without TLS")
            url = following
    raise RedirectedTooOften(f"redirected {REDIRECTS_MAX} times")
