"""The web port as the broker's HTTP interface, in front of a server that stands for the broker."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from yarl import URL

from bridge.app import Bridge
from bridge.config import Settings
from bridge.web.front_door.routes import FRONT_DOOR
from bridge.web.server import build_web_app
from tests.changed_limits import changed
from tests.helpers import wait_until_async

TOKEN = "all-" + "a" * 20
LIMITS = {
    "relay_connect_s": 0.5,
    "relay_answer_s": 0.5,
    "relay_stall_s": 0.3,
    "relay_gone_look_s": 0.02,
    "relay_kept_bytes": 1000,
    "relays_at_once": 2,
    "client_relays_at_once": 3,
}
LARGE = 50_000_000
TENANTS = "/admin/v2/tenants"


class Broker:
    """Remembers what it was asked; each path has its way to answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.waiting = self.left = 0
        self.released = asyncio.Event()
        self.url = self.other_url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        if name == "early":
            return web.Response(status=401, text="no")
        body = await request.read() if name != "unread" else b""
        self.asked.append((request.method, request.raw_path, dict(request.headers), body))
        return await getattr(self, f"_{name}", self._tenants)(request)

    async def _tenants(self, request: web.Request) -> web.StreamResponse:
        answer = web.json_response(["public"], headers={"X-Of-Broker": "1", "Connection": "X-Of-Hop", "X-Of-Hop": "1"})
        answer.set_cookie("a", "b")
        return answer

    async def _waits(self, request: web.Request) -> web.StreamResponse:
        self.waiting += 1
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        finally:
            self.waiting -= 1
        return web.Response(text="released")

    async def _large(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(LARGE)})
        await response.prepare(request)
        try:
            for _ in range(LARGE // 50_000):
                await response.write(b"x" * 50_000)
        except (ConnectionError, asyncio.CancelledError):
            self.left += 1
            raise
        return response

    async def _breaks(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.abort()
        return response

    async def _hangs_up(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _elsewhere(self, request: web.Request) -> web.StreamResponse:
        if self.url.endswith(request.host):
            return web.Response(
                status=307, headers={"Location": f"{self.other_url}{request.raw_path}?authoritative=true"}
            )
        return web.Response(text=f"other {request.method} {(await request.read()).decode()}")

    async def _circle(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": f"{self.url}{request.raw_path}"})

    async def _nowhere(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": "pulsar://x"})

    async def _nothing(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=204)


Started = Callable[..., Awaitable[str]]
Client = aiohttp.ClientSession


async def listening(app: web.Application, stack: contextlib.AsyncExitStack, **options: Any) -> str:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1, lingering_time=0.1, **options)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}"


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Broker]:
    """Two servers, one of which is the other one redirects to."""
    made = Broker()
    async with contextlib.AsyncExitStack() as stack:
        for name in ("other_url", "url"):
            app = web.Application(client_max_size=LARGE)
            app.router.add_route("*", "/{path:.*}", made.answer)
            setattr(made, name, await listening(app, stack, handler_cancellation=True))
        yield made


@pytest_asyncio.fixture
async def door(broker: Broker, tmp_path: Path) -> AsyncIterator[Started]:
    """Starts the web server of a bridge that has not started; gives its URL."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(**settings: Any) -> str:
            values = {"broker_service_url": "pulsar://127.0.0.1:1", "broker_web_url": broker.url, "front_door": "all"}
            bridge = Bridge(Settings(**{**values, "data_dir": tmp_path, **settings}), changed(**LIMITS))
            app = build_web_app(bridge)
            apps.append(app)
            return await listening(app, stack)

        apps: list[web.Application] = []
        yield make
        for app in apps:
            if FRONT_DOOR in app:
                assert set(app[FRONT_DOOR].relay.under_way.values()) == {0}


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Client]:
    """Decodes nothing, keeps no cookies."""
    jar = aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(auto_decompress=False, cookie_jar=jar, requote_redirect_url=False) as session:
        yield session


async def ask(client: Client, url: str | URL, method: str = "GET", **options: Any) -> tuple[int, str, dict[str, str]]:
    async with client.request(method, url, allow_redirects=False, **options) as answer:
        return answer.status, await answer.text(), dict(answer.headers)


async def test_a_call_goes_to_the_broker_and_its_answer_back(door: Started, broker: Broker, client: Client) -> None:
    url = await door()
    sent = {"Authorization": "Bearer mine", "X-Mine": "1", "Cookie": "delay-bridge-8081=secret", "TE": "trailers"}
    query = "?a=%2Fb&c"
    asked = URL(f"{url}{TENANTS}/a%2Fb%20c{query}", encoded=True)
    status, text, headers = await ask(client, asked, "PUT", data=b"body", headers=sent)
    assert (status, json.loads(text)) == (200, ["public"])
    assert headers["X-Of-Broker"] == "1"
    assert not {"Set-Cookie", "X-Of-Hop"} & headers.keys()
    assert headers["Content-Security-Policy"].startswith("sandbox")
    method, target, got, body = broker.asked.pop()
    assert (method, target, body) == ("PUT", f"{TENANTS}/a%2Fb%20c{query}", b"body")
    assert (got["Authorization"], got["X-Mine"]) == ("Bearer mine", "1")
    assert not {"Cookie", "TE"} & got.keys()
    assert got["Host"] == broker.url.removeprefix("http://")


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "PUT", "POST", "OPTIONS", "PATCH"])
async def test_without_a_body(door: Started, broker: Broker, client: Client, method: str) -> None:
    url = await door()
    status, text, headers = await ask(client, f"{url}{TENANTS}", method)
    assert (status, text) == (200, "" if method == "HEAD" else '["public"]')
    assert headers["Content-Length"] == "10"
    assert (await ask(client, f"{url}/admin/v2/nothing", method))[0] == 204
    assert [asked[0] for asked in broker.asked] == [method] * 2


async def test_no_credentials_of_the_bridge_go_out(door: Started, broker: Broker, client: Client) -> None:
    """Neither its own at the broker, nor those of its own web server."""
    url = await door(access="token", web_token=TOKEN, broker_token="super")
    for headers in ({}, {"Authorization": f"Bearer {TOKEN}"}, {"Authorization": f"bearer  {TOKEN} "}):
        assert (await ask(client, f"{url}{TENANTS}", headers=headers))[0] == 200
    assert not [asked for asked in broker.asked if "Authorization" in asked[2]]


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("chunked", [True, False])
async def test_bodies_small_and_large(door: Started, broker: Broker, client: Client, size: int, chunked: bool) -> None:
    url, body = await door(), b"ab" * (size // 2)

    async def parts() -> AsyncIterator[bytes]:
        yield body[:3]
        yield body[3:]

    assert (await ask(client, f"{url}{TENANTS}", "POST", data=parts() if chunked else body))[0] == 200
    assert broker.asked.pop()[3] == body


async def test_a_broker_that_does_not_want_the_body(door: Started, client: Client) -> None:
    url = await door()
    assert (await ask(client, f"{url}/admin/v2/early", "POST", data=b"b" * 100_000))[:2] == (401, "no")


async def test_a_compressed_body_arrives_as_what_it_is(door: Started, broker: Broker, client: Client) -> None:
    url, body = await door(), b"ab" * 5_000
    assert (await ask(client, f"{url}{TENANTS}", "POST", data=body, compress="gzip"))[0] == 200
    assert broker.asked.pop()[3] == body


async def test_a_redirect_is_followed_with_all_there_is(door: Started, broker: Broker, client: Client) -> None:
    url = await door()
    headers = {"Authorization": "Bearer mine"}
    status, text, _ = await ask(client, f"{url}/admin/v2/elsewhere", "POST", data=b"body", headers=headers)
    assert (status, text) == (200, "other POST body")
    assert [asked[2]["Authorization"] for asked in broker.asked] == ["Bearer mine"] * 2
    assert broker.asked[1][1].endswith("?authoritative=true")


async def test_what_was_not_kept_is_not_sent_again(door: Started, broker: Broker, client: Client) -> None:
    url = await door()
    status, _, headers = await ask(client, f"{url}/admin/v2/elsewhere", "POST", data=b"b" * 5_000)
    assert (status, headers["Location"]) == (307, f"{broker.other_url}/admin/v2/elsewhere?authoritative=true")


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("hangs_up", 502, "gave no answer"),
        ("waits", 504, "did not answer within 0.5 s"),
        ("circle", 502, "redirected without end"),
        ("nowhere", 502, "redirects to what is no URL"),
    ],
)
async def test_a_broker_without_an_answer(door: Started, client: Client, name: str, status: int, reason: str) -> None:
    url = await door()
    found, text, _ = await ask(client, f"{url}/admin/v2/{name}")
    assert found == status
    assert reason in json.loads(text)["reason"]


async def test_a_broker_that_is_not_there(door: Started, client: Client) -> None:
    url = await door(broker_web_url="http://127.0.0.1:1")
    status, text, _ = await ask(client, f"{url}{TENANTS}")
    assert (status, "http://127.0.0.1:1 cannot be reached" in text) == (502, True)


async def test_an_answer_that_breaks_off_is_not_taken_for_whole(door: Started, client: Client) -> None:
    url = await door()
    with pytest.raises(aiohttp.ClientError):
        await ask(client, f"{url}/admin/v2/breaks")


async def test_a_caller_that_goes_away_ends_the_question(door: Started, broker: Broker) -> None:
    url = await door()
    async with aiohttp.ClientSession() as client:
        asking = asyncio.create_task(ask(client, f"{url}/admin/v2/waits"))
        await wait_until_async(lambda: broker.waiting == 1, "it is asked")
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
    await wait_until_async(lambda: broker.left == 1, "the broker is left", timeout=0.4)


async def test_a_caller_that_does_not_read_is_left(door: Started, broker: Broker, client: Client) -> None:
    url = await door()
    async with client.get(f"{url}/admin/v2/large") as answer:
        assert answer.status == 200
        await wait_until_async(lambda: broker.left == 1, "the broker is left", timeout=3)


async def test_a_large_answer_for_who_reads(door: Started, client: Client) -> None:
    url = await door()
    async with client.get(f"{url}/admin/v2/large") as answer:
        read = [len(chunk) async for chunk in answer.content.iter_any()]
    assert sum(read) == LARGE


async def test_a_caller_that_sends_no_body_is_told(door: Started, broker: Broker) -> None:
    url = await door()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(f"PUT {TENANTS} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\nhalf".encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
    await reader.read()  # until the server has closed
    writer.close()
    await writer.wait_closed()
    assert not broker.asked


async def test_so_many_at_once_and_no_more(door: Started, broker: Broker, client: Client) -> None:
    """What clients ask is counted apart."""
    url = await door()
    paths = [*["/admin/v2/waits"] * 3, *["/admin/v2/schemas/a/b/c/schema/waits"] * 4]
    asking = [asyncio.create_task(ask(client, url + path)) for path in paths]
    await wait_until_async(lambda: broker.waiting == 5, "as many as may")
    await wait_until_async(lambda: sum(each.done() for each in asking) == 2, "the others are refused")
    broker.released.set()
    answers = await asyncio.gather(*asking)
    assert sorted(status for status, _, _ in answers) == [200] * 5 + [503] * 2
    assert {headers["Retry-After"] for status, _, headers in answers if status == 503} == {"1"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("TRACE", TENANTS, 405),
        ("PROPFIND", TENANTS, 405),
        ("GET", "/admin/..;/metrics", 400),
        ("GET", "/admin/v2/delayed/odd", 404),
        ("POST", "/admin/v2/delayed/topics", 405),
        ("GET", "/ws/v2/consumer", 404),
        ("GET", "/metrics", 200),
    ],
)
async def test_what_the_broker_is_not_asked(
    door: Started, broker: Broker, client: Client, method: str, path: str, status: int
) -> None:
    url = await door()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n".encode())
    assert (await reader.readline()).startswith(f"HTTP/1.1 {status} ".encode())
    writer.close()
    await writer.wait_closed()
    assert not broker.asked


async def test_headers_that_are_too_large(door: Started, broker: Broker, client: Client) -> None:
    url = await door()
    assert (await ask(client, f"{url}{TENANTS}", headers={"X-Large": "x" * 100_000}))[0] == 400
    assert (await ask(client, f"{url}{TENANTS}/{'x' * 100_000}"))[0] == 400
    assert not broker.asked


async def test_pages_of_other_sites_ask_nothing(door: Started, broker: Broker, client: Client) -> None:
    url = await door()
    assert (await ask(client, f"{url}{TENANTS}", "PUT", headers={"Sec-Fetch-Site": "cross-site"}))[0] == 403
    assert (await ask(client, f"{url}{TENANTS}", headers={"Host": "rebound.example"}))[0] == 403
    assert not broker.asked


async def test_only_for_clients(door: Started, broker: Broker, client: Client) -> None:
    url = await door(front_door="clients")
    for path in ("namespaces/a/b/topics?mode=ALL", "persistent/a/b/c/partitions", "schemas/a/b/c/schema"):
        assert (await ask(client, f"{url}/admin/v2/{path}"))[0] == 200
    assert len(broker.asked) == 3
    for method, path in (("GET", "tenants"), ("PUT", "persistent/a/b/c/partitions"), ("GET", "persistent/a/b/c/stats")):
        assert (await ask(client, f"{url}/admin/v2/{path}", method))[0] == 404
    assert len(broker.asked) == 3


async def test_closed(door: Started, broker: Broker, client: Client) -> None:
    url = await door(front_door="off")
    for path in ("/admin/v2/namespaces/a/b/topics", "/lookup/v2/topic/persistent/a/b/c"):
        assert (await ask(client, url + path))[0] == 404
    assert not broker.asked


async def test_a_lookup_waits_for_the_bridge(door: Started, client: Client) -> None:
    url = await door(front_door="clients")
    status, text, _ = await ask(client, f"{url}/lookup/v2/topic/persistent/a/b/c")
    assert (status, json.loads(text)) == (503, {"reason": "the bridge is starting"})
