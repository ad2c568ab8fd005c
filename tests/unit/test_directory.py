"""Asking other bridges what they own."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import SecretStr

from bridge.config import Settings
from bridge.limits import MemberLimits
from bridge.members.directory import PATH, Directory, SilentError, owned_in
from bridge.members.membership import Member
from bridge.members.plan import Owned
from bridge.net.trust import TrustedServers

BROKER: dict[str, Any] = {"broker_service_url": "pulsar://b:1", "broker_web_url": "http://b:1"}
LOOK, STEER, OWN = ("a-token-that-may-look", "a-token-that-may-steer", "the-token-of-this-bridge")
NOW = 1_800_000_000_000
OWNED = [
    {"topic": "persistent://public/default/t", "load": 1.5},
    {"topic": "persistent://public/default/idle", "load": 0},
]


class Other:
    """Another bridge, as far as it is asked."""

    def __init__(self) -> None:
        self.answer: web.StreamResponse | Exception = web.json_response({"draining": False, "topics": OWNED})
        self.asked: list[str | None] = []
        self.member = Member("pulsar://other:6650")

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.headers.get("Authorization"))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest_asyncio.fixture
async def other() -> AsyncIterator[Other]:
    made = Other()
    app = web.Application()
    app.router.add_get(PATH, made.serve)
    async with TestServer(app) as server:
        made.member = Member("pulsar://other:6650", str(server.make_url("")).rstrip("/"), is_certain=True)
        yield made


async def asked(other: Other, **settings: Any) -> Any:
    limits = replace(MemberLimits(), answer_s=1.0, answer_bytes=100_000)
    directory = Directory(Settings(**BROKER, **settings), TrustedServers(), limits)
    try:
        return await directory.ask(other.member)
    finally:
        await directory.close()


async def test_what_it_owns(other: Other) -> None:
    loads = {"persistent://public/default/t": 1.5, "persistent://public/default/idle": 0.0}
    assert await asked(other) == Owned(loads, draining=False)
    assert other.asked == [None]


@pytest.mark.parametrize(
    ("settings", "token"),
    [
        ({"access": "token", "web_token": STEER, "web_read_token": LOOK}, LOOK),
        ({"access": "token", "web_token": STEER}, STEER),
        ({"access": "pulsar", "broker_token": OWN, "web_read_token": LOOK}, OWN),
        ({"access": "off", "broker_token": OWN}, None),
    ],
)
async def test_asked_as_somebody_who_may_see_here(other: Other, settings: dict[str, str], token: str | None) -> None:
    secrets = {name: value if name == "access" else SecretStr(value) for name, value in settings.items()}
    await asked(other, **secrets)
    assert other.asked == [None if token is None else f"Bearer {token}"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (web.json_response({"reason": "a valid token is needed"}, status=401), "401 .*a valid token is needed"),
        (web.Response(text="<html>"), "owned: "),
        (web.json_response({"topics": []}), "not a list of topics"),
        (web.json_response({"draining": False, "topics": [{"topic": "t"}]}), "not a list of topics"),
        (web.json_response({"draining": False, "topics": [{"topic": "t", "load": -1}]}), "no number that can be"),
        (web.HTTPTemporaryRedirect("http://elsewhere.invalid/"), "307"),
    ],
)
async def test_what_is_no_answer_says_so(other: Other, answer: Any, reason: str) -> None:
    """A redirect is not followed: the token is for this bridge."""
    other.answer = answer
    with pytest.raises(SilentError, match=reason):
        await asked(other)


async def test_who_only_says_that_it_is_a_bridge_gets_no_token(other: Other) -> None:
    other.member = other.member._replace(is_certain=False)
    settings = {"access": "token", "web_token": SecretStr(STEER)}
    await asked(other, **settings)
    assert other.asked == [None]
    other.answer = web.json_response({"reason": "a valid token is needed"}, status=401)
    with pytest.raises(SilentError, match="asked without a token: set cluster_secret"):
        await asked(other, **settings)


async def test_an_answer_that_never_ends_is_not_read(other: Other) -> None:
    other.answer = web.Response(text="[" + " " * 200_000)
    with pytest.raises(SilentError, match="more than 100,000 bytes"):
        await asked(other)


async def test_who_is_not_there(other: Other) -> None:
    other.member = Member("pulsar://other:6650", "http://127.0.0.1:1")
    with pytest.raises(SilentError, match=r"127\.0\.0\.1:1"):
        await asked(other)
    other.member = Member("pulsar://other:6650")
    with pytest.raises(SilentError, match="does not say where its REST is"):
        await asked(other)


def test_loads_are_read_as_numbers() -> None:
    told = '{"draining": true, "topics": [{"topic": "t", "load": 3, "more": 1}], "more": 1}'
    assert owned_in(told, NOW, NOW) == Owned({"t": 3.0}, draining=True)


@pytest.mark.parametrize(("told_ms", "offset_ms"), [(NOW + 10, 0), (NOW + 1_500, 1_480), (NOW - 1_500, -1_500)])
def test_how_far_clocks_differ_at_least(told_ms: int, offset_ms: float) -> None:
    told = f'{{"draining": false, "nowMs": {told_ms}, "topics": []}}'
    assert owned_in(told, NOW, NOW + 20).clock_offset_ms == offset_ms
