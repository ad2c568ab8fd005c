"""Who is let in to the web server, and what other sites cannot do: without a broker."""

from collections.abc import AsyncIterator, Awaitable, Callable
from http.cookies import Morsel
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from structlog.testing import capture_logs
from yarl import URL

from bridge.app import Bridge
from bridge.config import Settings
from bridge.limits import Limits, WebLimits
from bridge.net.failures import Part
from bridge.web.access.callers import role_in
from bridge.web.access.control import ALWAYS_OPEN, actor_of
from bridge.web.access.guards import HEADERS, host_name
from bridge.web.access.sessions import Sessions
from bridge.web.request.served import BRIDGE
from bridge.web.server import build_web_app
from tests.secured import token_of

ROOT = "/admin/v2/delayed"
TOPIC = f"{ROOT}/persistent/acme/orders/t"
TOKEN, READ_TOKEN = "all-" + "a" * 20, "read-" + "b" * 20
Client = TestClient[web.Request, web.Application]
Connect = Callable[..., Awaitable[Client]]


@pytest_asyncio.fixture
async def connect(tmp_path: Path) -> AsyncIterator[Connect]:
    """Starts the web server of a bridge that has not started, and connects to it."""
    clients: list[Client] = []

    async def make(**settings: Any) -> Client:
        values = {"broker_service_url": "pulsar://127.0.0.1:1", "broker_web_url": "http://127.0.0.1:1"}
        bridge = Bridge(Settings(**{**values, "data_dir": tmp_path, **settings}), Limits())
        app = build_web_app(bridge)
        app.router.add_get("/who", _who)
        client: Client = TestClient(TestServer(app))
        await client.start_server()
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.close()


async def _who(request: web.Request) -> web.Response:
    return web.Response(text=actor_of(request))


async def who(client: Client, **headers: str) -> str:
    async with client.get("/who", headers=headers) as answer:
        return await answer.text()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def status_of(client: Client, method: str, path: str, **headers: str) -> int:
    async with client.request(method, path, headers=headers, allow_redirects=False) as answer:
        return answer.status


@pytest.mark.parametrize(
    ("token", "seen", "steered"),
    [(TOKEN, 200, 404), (READ_TOKEN, 200, 403), (TOKEN[:-1], 401, 401), ("", 401, 401), ("é" * 20, 401, 401)],
)
async def test_tokens(connect: Connect, token: str, seen: int, steered: int) -> None:
    """404: allowed, but there is no such topic."""
    client = await connect(access="token", web_token=TOKEN, web_read_token=READ_TOKEN)
    for path in (f"{ROOT}/topics", "/metrics"):
        assert await status_of(client, "GET", path, **bearer(token)) == seen
    for method, path in (("PUT", f"{TOPIC}/rebuild"), ("DELETE", f"{TOPIC}/rebuild"), ("PUT", f"{TOPIC}/audit")):
        assert await status_of(client, method, path, **bearer(token)) == steered


async def test_what_is_said_to_who_is_not_let_in(connect: Connect) -> None:
    client = await connect(access="token", web_token=TOKEN, web_read_token=READ_TOKEN)
    async with client.get(f"{ROOT}/topics") as answer:
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert (await answer.json())["reason"].startswith("a valid token is needed")
    async with client.put(f"{TOPIC}/rebuild", headers=bearer(READ_TOKEN)) as answer:
        assert (await answer.json())[
            "reason"
        ] == "read-token may not steer: that needs web_token, this is web_read_token"
    for headers in (bearer(READ_TOKEN), {"Authorization": f"Basic {READ_TOKEN}"}):
        expected = 403 if headers == bearer(READ_TOKEN) else 401
        assert await status_of(client, "GET", f"{ROOT}/actions", **headers) == expected
    # Not known to who is not let in: which paths there are.
    assert await status_of(client, "GET", f"{ROOT}/nonsense") == 401
    assert await status_of(client, "OPTIONS", f"{ROOT}/topics", **bearer(READ_TOKEN)) == 403


@pytest.mark.parametrize("mode", ["token", "pulsar"])
async def test_probes_need_no_token(connect: Connect, mode: str) -> None:
    client = await connect(access=mode, web_token=TOKEN)
    for path in ("/healthz", "/readyz", "/status.html", "/login"):
        assert path in ALWAYS_OPEN
        async with client.get(path) as answer:
            assert answer.status in (200, 503)
            assert "pulsar://" not in await answer.text(), "where the broker is"
    assert "pulsar://" in await (await (await connect()).get("/status.html")).text()
    assert await status_of(client, "GET", "/metrics") == 401
    assert await status_of(client, "GET", "/metrics", **bearer(TOKEN)) == 200


async def test_a_broker_that_is_silent_allows_nothing(connect: Connect) -> None:
    client = await connect(access="pulsar")
    for method, path in (("GET", f"{ROOT}/topics"), ("GET", "/metrics"), ("PUT", f"{TOPIC}/audit")):
        async with client.request(method, path, headers=bearer(token_of("admin"))) as answer:
            assert answer.status == 503
            assert "cannot ask the broker" in (await answer.json())["reason"]
    async with client.post("/login", data={"token": token_of("admin")}) as answer:
        assert answer.status == 503
        assert not answer.cookies


def cookie(morsels: Any) -> Morsel[str]:
    [morsel] = morsels.values()
    assert isinstance(morsel, Morsel)
    return morsel


async def test_log_in_and_out(connect: Connect) -> None:
    client = await connect(access="token", web_token=TOKEN, web_read_token=READ_TOKEN)
    page = f"{ROOT}/topics"
    async with client.post("/login", data={"token": "wrong" * 5, "next": page}) as answer:
        assert answer.status == 401
        text = await answer.text()
        assert "This token is not valid." in text
        assert "wrongwrong" not in text
        assert not answer.cookies
    async with client.post("/login", data={"token": f" {READ_TOKEN}\n", "next": page}, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, page)
        given = cookie(answer.cookies)
    assert (given["httponly"], given["samesite"], given["path"], given["secure"]) == (True, "Strict", "/", "")
    assert READ_TOKEN not in given.OutputString()
    assert await status_of(client, "GET", page) == 200
    assert await status_of(client, "PUT", f"{TOPIC}/audit") == 403
    assert await status_of(client, "GET", page, **bearer("another" * 4)) == 401, "what is presented counts"
    async with client.post("/logout", allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "/login")
    assert await status_of(client, "GET", page) == 401
    # Who kept the cookie is not let in with it.
    assert await status_of(client, "GET", page, Cookie=f"{given.key}={given.value}") == 401


async def test_handlers_know_who_asks(connect: Connect) -> None:
    client = await connect(access="token", web_token=TOKEN, web_read_token=READ_TOKEN)
    assert await who(client, **bearer(TOKEN)) == "token from 127.0.0.1"
    assert await who(client, **bearer(READ_TOKEN)) == "read-token from 127.0.0.1"
    async with client.post("/login", data={"token": READ_TOKEN}, allow_redirects=False):
        assert await who(client) == "read-token from 127.0.0.1"
    assert await who(await connect()) == "local from 127.0.0.1"


async def test_the_cookie_is_for_https_where_that_is_spoken(connect: Connect) -> None:
    client = await connect(access="token", web_token=TOKEN)
    headers = {"X-Forwarded-Proto": "https"}
    async with client.post("/login", data={"token": TOKEN}, headers=headers, allow_redirects=False) as answer:
        assert cookie(answer.cookies)["secure"] is True


async def test_a_browser_is_led_to_the_login_page_and_back(connect: Connect) -> None:
    client = await connect(access="token", web_token=TOKEN)
    html = {"Accept": "text/html,*/*;q=0.8"}
    async with client.get("/topic/acme/orders/t?from=1&to=2", headers=html, allow_redirects=False) as answer:
        assert answer.status == 303
        leads = answer.headers["Location"]
    assert URL(leads).path == "/login"
    assert dict(URL(leads).query) == {"next": "/topic/acme/orders/t?from=1&to=2"}
    async with client.get(leads) as answer:
        assert 'value="/topic/acme/orders/t?from=1&amp;to=2"' in await answer.text()
    assert await status_of(client, "GET", f"{ROOT}/topics", **html) == 401, "programs are told so"


@pytest.mark.parametrize(
    "elsewhere",
    ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:alert(1)", "/a\r\nX: y", ""],
)
async def test_the_login_page_leads_to_this_server_only(connect: Connect, elsewhere: str) -> None:
    client = await connect(access="token", web_token=TOKEN)
    async with client.post("/login", data={"token": TOKEN, "next": elsewhere}, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "/")


async def test_what_the_login_page_is_given_is_escaped(connect: Connect) -> None:
    client = await connect(access="token", web_token=TOKEN)
    async with client.get("/login", params={"next": '/"><script>alert(1)</script>'}) as answer:
        assert "<script>" not in await answer.text()


@pytest.mark.parametrize("settings", [{}, {"access": "token", "web_token": TOKEN}], ids=["off", "token"])
@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, True),
        ({"Sec-Fetch-Site": "same-site"}, True),
        ({"Origin": "http://evil.example"}, True),
        ({"Origin": "null"}, True),
        ({"Origin": "http://127.0.0.1:1"}, True),
        ({"Origin": "http://[half"}, True),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.example"}, True),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://HOST"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Origin": "http://HOST"}, False),
        ({}, False),
    ],
)
async def test_other_sites_cannot_act(
    connect: Connect, settings: dict[str, str], headers: dict[str, str], refused: bool
) -> None:
    client = await connect(**settings)
    headers = {name: value.replace("HOST", f"127.0.0.1:{client.port}") for name, value in headers.items()}
    calls = {("PUT", f"{TOPIC}/rebuild"): 404, ("DELETE", f"{TOPIC}/rebuild"): 404, ("POST", "/logout"): 303}
    calls["POST", "/login"] = 401 if settings else 303
    for (method, path), allowed in calls.items():
        expected = 403 if refused else allowed
        assert await status_of(client, method, path, **headers, **bearer(TOKEN)) == expected, path
    assert await status_of(client, "GET", f"{ROOT}/topics", **headers, **bearer(TOKEN)) == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8081", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8081", 200),
        ("bridge.example:8081", 200),
        ("evil.example", 403),
        ("evil.example:8081", 403),
        ("localhost.evil.example", 403),
        ("", 403),
    ],
)
async def test_names_of_others_lead_nowhere_while_nobody_is_asked_for_a_token(
    connect: Connect, host: str, status: int
) -> None:
    client = await connect(advertised_address="bridge.example")
    assert await status_of(client, "GET", f"{ROOT}/topics", Host=host) == status
    asking = await connect(access="token", web_token=TOKEN)
    assert await status_of(asking, "GET", f"{ROOT}/topics", Host=host, **bearer(TOKEN)) == 200


async def test_headers_of_every_answer(connect: Connect) -> None:
    client = await connect(access="token", web_token=TOKEN)
    paths = ("/healthz", "/login", "/nonsense", f"{ROOT}/topics", f"{TOPIC}/stats", "/metrics")
    for path in paths:
        for headers in ({}, bearer(TOKEN), {"Sec-Fetch-Site": "cross-site"}):
            async with client.get(path, headers=headers) as answer:
                assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS, path
                assert answer.headers["Cache-Control"] == "no-store"
    policy = HEADERS["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy


async def test_acts_are_told_page_by_page(connect: Connect) -> None:
    client = await connect()
    for wrong in ("limit=0", "limit=1001", "limit=x", "before=-1", f"before={'9' * 5_000}"):
        assert await status_of(client, "GET", f"{ROOT}/actions?{wrong}") == 400
    async with client.get(f"{ROOT}/actions", params={"limit": 5}) as answer:
        assert await answer.json() == []


def test_sessions_end_and_are_not_more_than_so_many() -> None:
    limits, now = WebLimits(web_sessions_max=3), 0.0
    sessions = Sessions(lambda: now, limits)
    ids = [sessions.open(f"token {number}") for number in range(4)]
    assert len(set(ids)) == 4
    assert [sessions.token(one) for one in ids] == [None, "token 1", "token 2", "token 3"]
    sessions.close(ids[1])
    assert sessions.token(ids[1]) is None
    now = limits.web_session_lasts_s
    assert sessions.token(ids[3]) is None
    sessions.open("later")
    assert len(sessions) == 1


def test_the_role_is_the_subject_of_the_token() -> None:
    assert role_in(token_of("tenant-admin")) == "tenant-admin"
    assert role_in(token_of("line\nbreak")) is None
    assert role_in(token_of("r" * 999)) == "r" * 200
    for text in ("", "a.b", "a.b.c", "a.!.c", "..", "a.W10.c", "a.eyJzdWIiOjF9.c", token_of("")):
        assert role_in(text) is None, text


def test_the_host_of_an_authority() -> None:
    assert [host_name(text) for text in ("A:1", "a", "[::1]:80", "[::1]", "::1", "")] == [
        "a",
        "a",
        "::1",
        "::1",
        "::1",
        "",
    ]


async def test_a_request_that_fails_is_answered_told_and_counted(connect: Connect, tmp_path: Path) -> None:
    """Metrics tell how full the disk is, and there is none."""
    client = await connect(data_dir=tmp_path / "gone")
    with capture_logs() as logged:
        async with client.get("/metrics") as answer:
            assert (answer.status, await answer.json()) == (500, {"reason": "internal error, see the log"})
    bridge = client.app[BRIDGE]
    assert bridge.failures.counts == {Part.web: 1}
    (line,) = logged
    assert (line["log_level"], line["path"], type(line["exc_info"])) == ("critical", "/metrics", FileNotFoundError)
    assert await status_of(client, "GET", "/nowhere") == 404
    assert bridge.failures.counts == {Part.web: 1}
