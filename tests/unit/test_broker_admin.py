"""The bridge's calls of the admin interface in a cluster of several brokers that ask for a token."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from bridge.broker.admin import AdminClient, AdminError
from bridge.limits import ConnectionLimits

TOPIC = "persistent://acme/orders/a b"
PATH = "/admin/v2/persistent/acme/orders/a%20b/stats?subscriptionBacklogSize=true"


@pytest_asyncio.fixture
async def urls() -> AsyncIterator[list[str]]:
    """A broker that sends to the owner, and the owner, which wants the token."""
    servers: list[TestServer] = []

    async def serve(request: web.Request) -> web.Response:
        assert request.raw_path == PATH
        if request.headers.get("Authorization") != "Bearer secret":
            return web.json_response({"reason": "who are you"}, status=401)
        if len(servers) > 1 and request.url.port == servers[0].port:
            raise web.HTTPTemporaryRedirect(str(servers[1].make_url("")).rstrip("/") + request.raw_path)
        return web.json_response({"publishers": [], "subscriptions": {"s": {"consumers": []}}})

    for _ in range(2):
        app = web.Application()
        app.router.add_get("/{path:.*}", serve)
        server = TestServer(app)
        await server.start_server()
        servers.append(server)
    yield [str(server.make_url("")).rstrip("/") for server in servers]
    for server in servers:
        await server.close()


async def test_the_token_goes_along_to_the_owner(urls: list[str]) -> None:
    for url in urls:
        client = AdminClient(url, ConnectionLimits(), "secret")
        assert (await client.topic_stats(TOPIC)).consumers.keys() == {"s"}
        await client.close()


async def test_what_the_owner_says_is_told_without_the_token(urls: list[str]) -> None:
    client = AdminClient(urls[0], ConnectionLimits(), "another-secret")
    with pytest.raises(AdminError, match=r"401 .*who are you") as caught:
        await client.topic_stats(TOPIC)
    await client.close()
    assert caught.value.status == 401
    assert "another-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (200, "4.0.8", None),
        (403, "not for you", None),
        (401, "who are you", "cannot be used: GET /admin/v2/brokers/version: 401 who are you"),
        (404, "Not Found", "cannot be used: .*404 Not Found"),
        (200, "<html>a page</html>", "is not a broker's: .*<html>a page"),
    ],
)
async def test_what_is_no_admin_interface_is_told(status: int, text: str, said: str | None) -> None:
    async def serve(request: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_get("/admin/v2/brokers/version", serve)
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        client = AdminClient(url, ConnectionLimits(), "secret")
        try:
            if said is None:
                await client.check()
            else:
                with pytest.raises(AdminError, match=f"broker_web_url {url} {said}"):
                    await client.check()
        finally:
            await client.close()
