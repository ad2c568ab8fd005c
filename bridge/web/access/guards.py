"""What holds for every request, whoever makes it: no other site may act in a browser's name, nor read answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import structlog
from aiohttp import web

from bridge.config import LOOPBACK
from bridge.net.failures import Part
from bridge.web.request.parameters import refused
from bridge.web.request.served import BRIDGE

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HARMLESS_METHODS = ("GET", "HEAD")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """On every answer, errors too; what may be kept says so itself."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-store")


@web.middleware
async def tell_failures(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer with 500, tell and count what nobody thought of."""
    try:
        return await handler(request)
    except (web.HTTPException, ConnectionError):  # the latter: whoever asked is gone
        raise
    except Exception as error:
        failures = request.app[BRIDGE].failures
        failures.note(Part.web, "a request failed", error, method=request.method, path=request.path)
        raise refused(web.HTTPInternalServerError, "internal error, see the log") from error


@web.middleware
async def refuse_other_sites(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse with 403 what a page of another site has a browser ask."""
    reason = _foreign_host(request) or _foreign_origin(request)
    if reason is not None:
        log.warning("request refused", peer=request.remote, method=request.method, path=request.path, reason=reason)
        raise refused(web.HTTPForbidden, reason)
    return await handler(request)


def _foreign_host(request: web.Request) -> str | None:
    """Where nobody is asked for a token, a name that leads here by another's DNS must not lead in."""
    settings = request.app[BRIDGE].settings
    if settings.access != "off" or settings.web_host not in LOOPBACK:
        return None
    host = host_name(request.host)
    if host in {*LOOPBACK, settings.web_host.lower(), settings.advertised_address.lower()}:
        return None
    return f"not served under the host name {host[:100]!r}"


def _foreign_origin(request: web.Request) -> str | None:
    if request.method in HARMLESS_METHODS:
        return None
    site = request.headers.get("Sec-Fetch-Site")
    if site not in (None, "same-origin", "none"):
        return "another site must not act here"
    origin = request.headers.get("Origin")
    if origin is not None and _authority(origin) != request.host.lower():
        return "another site must not act here: Origin is not the Host asked"
    return None


def _authority(origin: str) -> str | None:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc.lower() if parts.scheme in ("http", "https") else None


def host_name(authority: str) -> str:
    """Return the host of `host`, `host:port` or `[v6]:port`, in lower case."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0].lower()
    return authority.rpartition(":")[0].lower() if authority.count(":") == 1 else authority.lower()
