"""Stands in front of a broker's admin interface, and spoils the answers of one call in one way."""

import asyncio
import json
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

CALLS: dict[str, Callable[[str, str], bool]] = {
    "internalStats": lambda method, path: path.endswith("/internalStats"),
    "candidates and consumers": lambda method, path: path.endswith("/stats"),
    "statistics": lambda method, path: "/stats?" in path,
    "lastMessageId": lambda method, path: path.endswith("/lastMessageId"),
    "policies": lambda method, path: any(
        each in path for each in ("messageTTL", "backlogQuotaMap", "delayedDelivery", "/namespaces/")
    ),
    "version": lambda method, path: path.endswith("/brokers/version"),
    "everything": lambda method, path: True,
}
NEEDED = {"subscriptions", "cursors", "ledgers", "lastConfirmedEntry", "ledgerId", "limitSize", "active", "consumers"}


def without_needed(text: str) -> str:
    """The answer without the fields that matter, wherever they stand."""

    def spoiled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spoiled(each) for key, each in value.items() if key not in NEEDED}
        return [spoiled(each) for each in value] if isinstance(value, list) else value

    return _changed(text, spoiled)


def of_other_types(text: str) -> str:
    """The answer with texts in place of lists and objects inside it, and lists in place of texts and numbers."""

    def spoiled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: "odd" if isinstance(each, dict | list) else [each] for key, each in value.items()}
        return {"odd": value}

    return _changed(text, spoiled)


def _changed(text: str, change: Callable[[Any], Any]) -> str:
    try:
        return json.dumps(change(json.loads(text)))
    except ValueError:
        return "[]"


KINDS: dict[str, Callable[[str], str]] = {
    "a field is missing": without_needed,
    "a field is of another type": of_other_types,
    "empty": lambda text: "",
    "a page of a proxy": lambda text: "<html><body><h1>Sign in</h1></body></html>",
    "cut off": lambda text: text[: len(text) // 2],
}
"""With status 200."""


class AdminProxy:
    """`async with`; then `spoil` and `heal`. Asked for, `spoiled` says how many answers were."""

    def __init__(self, web_url: str) -> None:
        self.url = ""
        self.spoiled = 0
        self.ahead_s = 0.0
        """What it dates its answers by is so far ahead of this machine's clock."""
        self._behind = web_url.rstrip("/")
        self._matches: Callable[[str, str], bool] = lambda method, path: False
        self._change: Callable[[str], str] | None = None

    def spoil(self, call: str, kind: str) -> None:
        """From now on: a call of CALLS, in a way of KINDS, or `hangs up`, or `502`."""
        self.spoiled = 0
        self._matches = CALLS[call]
        self._kind = kind
        self._change = KINDS.get(kind)

    def heal(self) -> None:
        """Pass on what is answered."""
        self._matches = lambda method, path: False

    async def __aenter__(self) -> "AdminProxy":
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._session = aiohttp.ClientSession()
        self._server = TestServer(app)
        await self._server.start_server()
        self.url = str(self._server.make_url("")).rstrip("/")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()
        await self._session.close()
        await asyncio.sleep(0)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        url = self._behind + request.raw_path
        body = await request.read()
        headers = {"Content-Type": "application/json"} if body else {}
        async with self._session.request(
            request.method, url, data=body, headers=headers, allow_redirects=False
        ) as answer:
            text, status = await answer.text(), answer.status
            kind = answer.headers.get("Content-Type", "application/json").partition(";")[0]
        if not self._matches(request.method, request.raw_path):
            dated = {"Date": formatdate(time.time() + self.ahead_s, usegmt=True)}
            return web.Response(status=status, text=text if status != 204 else None, content_type=kind, headers=dated)
        self.spoiled += 1
        if self._kind == "hangs up":
            assert request.transport is not None
            request.transport.close()
        elif self._kind == "502":
            return web.Response(status=502, text="Bad Gateway")
        return web.Response(text=text if self._change is None else self._change(text), content_type=kind)
