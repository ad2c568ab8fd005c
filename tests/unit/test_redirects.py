"""Redirects that are followed with all that was sent."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from bridge.net.redirects import REDIRECTS_MAX, RedirectedTooOften, request_with_redirects

Seen = list[tuple[str, str, str, str]]


@pytest_asyncio.fixture
async def seen() -> Seen:
    return []


@pytest_asyncio.fixture
async def server(seen: Seen) -> AsyncIterator[TestServer]:
    async def serve(request: web.Request) -> web.Response:
        seen.append((request.method, request.raw_path, request.headers.get("Authorization", ""), await request.text()))
        kind, _, rest = request.raw_path.removeprefix("/").partition("/")
        if not kind.isdigit():
            return web.Response(text=kind)
        return web.Response(status=int(kind), headers={"Location": f"/{rest}"} if rest else {})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", serve)
    started = TestServer(app)
    async with started:
        yield started


async def ask(server: TestServer, path: str, method: str = "GET", **options: Any) -> int:
    url = URL(str(server.make_url("")).rstrip("/") + path, encoded=True)
    async with (
        aiohttp.ClientSession(headers={"Authorization": "Bearer t"}) as session,
        request_with_redirects(session, method, url, **options) as response,
    ):
        return response.status


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_method_body_token_and_spelling_go_along(server: TestServer, seen: Seen, status: int) -> None:
    assert await ask(server, f"/{status}/{status}/a%20b%2Fc?d=e", "PUT", json={"n": 1}) == 200
    assert seen[-1] == ("PUT", "/a%20b%2Fc?d=e", "Bearer t", '{"n": 1}')
    assert len(seen) == 3


@pytest.mark.parametrize("status", [200, 204, 300, 303, 304, 404, 500])
async def test_anything_else_is_the_answer(server: TestServer, seen: Seen, status: int) -> None:
    assert await ask(server, f"/{status}/more") == status
    assert len(seen) == 1


async def test_it_ends_somewhere(server: TestServer, seen: Seen) -> None:
    last = "/307" * (REDIRECTS_MAX - 1)
    assert await ask(server, f"{last}/end") == 200
    seen.clear()
    with pytest.raises(RedirectedTooOften, match=f"redirected {REDIRECTS_MAX} times"):
        await ask(server, f"{last}/307/end")
    assert len(seen) == REDIRECTS_MAX
