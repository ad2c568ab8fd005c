"""Logging in with a browser: the token is given once, and stays in the bridge's memory."""

from __future__ import annotations

from aiohttp import web

from bridge.web.access.control import ACCESS, CHALLENGE, cookie_name
from bridge.web.pages.rendering import page

routes = web.RouteTableDef()

_HOME = "/"


@routes.get("/login")
async def login_page(request: web.Request) -> web.Response:
    """Ask for the token."""
    after = _own_path(request.query.get("next", _HOME))
    if request.app[ACCESS].mode == "off":
        raise web.HTTPSeeOther(after)
    return _form(request, after)


@routes.post("/login")
async def log_in(request: web.Request) -> web.Response:
    """Check the token, and remember the browser."""
    access = request.app[ACCESS]
    form = await request.post()
    after, given = _own_path(str(form.get("next", _HOME))), form.get("token")
    token = given.strip() if isinstance(given, str) else ""
    try:
        caller = await access.identify(token)
    except web.HTTPServiceUnavailable:
        return _form(request, after, 503, "The broker could not be asked whether this token is valid. Try again.")
    if caller is None:
        answer = _form(request, after, 401, "This token is not valid.")
        answer.headers.update(CHALLENGE)
        return answer
    known = request.cookies.get(cookie_name(request))
    if known is not None:
        access.sessions.close(known)
    done = web.HTTPSeeOther(after)
    if access.mode != "off":
        done.set_cookie(
            cookie_name(request),
            access.sessions.open(token),
            max_age=round(access.sessions.last_s),
            httponly=True,
            samesite="Strict",
            secure=_is_https(request),
        )
    raise done


@routes.post("/logout")
async def log_out(request: web.Request) -> web.Response:
    """Forget the browser."""
    known = request.cookies.get(cookie_name(request))
    if known is not None:
        request.app[ACCESS].sessions.close(known)
    done = web.HTTPSeeOther("/login")
    done.del_cookie(cookie_name(request), httponly=True, samesite="Strict", secure=_is_https(request))
    raise done


def _form(request: web.Request, after: str, status: int = 200, problem: str | None = None) -> web.Response:
    return page("login.html", status, after=after, problem=problem, mode=request.app[ACCESS].mode)


def _own_path(path: str) -> str:
    """Return a path of this server, so that a link to the login page leads nowhere else afterwards."""
    if not path.startswith("/") or path.startswith(("//", "/\\")) or not path.isprintable():
        return _HOME
    return path


def _is_https(request: web.Request) -> bool:
    # What a proxy in front says of itself: if it lies, the browser only keeps the cookie to itself.
    return request.secure or request.headers.get("X-Forwarded-Proto", "").lower() == "https"
