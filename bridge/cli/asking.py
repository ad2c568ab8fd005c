"""Asking a running bridge, by its REST interface."""

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from bridge.cli.common import CommandFailed, token_from
from bridge.protocol.names import TopicName

_TIMEOUT_S = 30.0
_ROOT = "/admin/v2/delayed"


class _Follow(urllib.request.HTTPRedirectHandler):
    """To the bridge that owns the topic, with whatever was asked: the library follows with GET alone."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if code != 307:
            return super().redirect_request(req, fp, code, msg, headers, newurl)
        return urllib.request.Request(newurl, req.data, dict(req.headers), method=req.get_method())


_OPENER = urllib.request.build_opener(_Follow)


def ask(admin_url: str, path: str, method: str = "GET", auth_params: str | None = None, body: object = None) -> Any:
    """The JSON that the bridge answers, or the one that owns the topic. Raises CommandFailed naming the URL."""
    token = token_from(auth_params)
    if not _is_web_url(admin_url):
        raise CommandFailed(f"not a web URL: {admin_url!r} (expected http://host:port)")
    url = f"{admin_url.rstrip('/')}{_ROOT}{path}"
    request = urllib.request.Request(url, method=method)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    try:
        with _OPENER.open(request, timeout=_TIMEOUT_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            raise CommandFailed(f"{method} {url}: {error.code} {_reason_in(error)}") from None
    except urllib.error.URLError as error:
        raise CommandFailed(f"cannot reach the bridge at {admin_url}: {_reason(error)}") from None
    except ValueError:
        raise CommandFailed(f"{method} {url}: the answer is not JSON") from None
    except (OSError, HTTPException) as error:
        raise CommandFailed(f"{method} {url}: {error}") from None


def topic_path(topic: str) -> str:
    """The path of a topic below the root of REST. Raises CommandFailed naming the value."""
    try:
        name = TopicName.parse(topic)
    except ValueError as error:
        raise CommandFailed(str(error)) from None
    if not name.persistent:
        raise CommandFailed(f"not a persistent topic: {topic!r}")
    return f"/{name.rest_path}"


def _reason_in(error: urllib.error.HTTPError) -> str:
    """What the bridge says of it, else what the status is called."""
    try:
        return str(json.load(error)["reason"])
    except (ValueError, KeyError, TypeError):
        return error.reason


def _is_web_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _reason(error: urllib.error.URLError) -> str:
    return getattr(error.reason, "strerror", None) or str(error.reason)
