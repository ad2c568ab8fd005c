"""HTTP requests whose credentials go along to where a server redirects; libraries leave them out towards another."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
from yarl import URL

REDIRECTS_MAX: Final = 20
"""Followed for one question to the broker's admin interface, as for lookups."""
REDIRECTS = frozenset({301, 302, 307, 308})


class RedirectedTooOften(Exception):
    """No server answered by itself; the message says how many were asked."""


@asynccontextmanager
async def request_with_redirects(
    session: aiohttp.ClientSession, method: str, url: URL, **options: Any
) -> AsyncIterator[aiohttp.ClientResponse]:
    """The first answer that is no redirect; method, body and headers go to each server as they are.

    Raises RedirectedTooOften, ValueError for a redirect to no URL, and what aiohttp raises.
    """
    for _ in range(REDIRECTS_MAX):
        async with session.request(method, url, allow_redirects=False, **options) as response:
            if response.status not in REDIRECTS:
                yield response
                return
            url = url.join(URL(response.headers.get("Location", ""), encoded=True))
    raise RedirectedTooOften(f"redirected {REDIRECTS_MAX} times")
