"""Which headers of a request go on to the broker, and which of its answer come back. Pure.

Hop-by-hop headers are those of RFC 9110, 7.6.1, and those of before that proxies know.
"""

import re
from collections.abc import Iterable
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

Headers = CIMultiDict[str] | CIMultiDictProxy[str]

_HOP_BY_HOP: Final = frozenset(
    (
        *("connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization"),
        *("te", "trailer", "trailers", "transfer-encoding", "upgrade", "http2-settings"),
    )
)
_NOT_ASKED: Final = frozenset(("host", "content-length", "expect", "cookie", "content-encoding"))
"""Written anew, or not for the broker: cookies are the bridge's own, and the body is decoded by then."""
_NOT_ANSWERED: Final = frozenset(("set-cookie", "server", "date", "content-security-policy"))
"""The bridge's are in their place; a cookie of the broker's would be taken for one of the bridge's pages."""
SANDBOX: Final = {"Content-Security-Policy": "sandbox; default-src 'none'"}
"""What the broker keeps for others, packages say, must not act as a page of the bridge."""


def asked(headers: Headers, *, with_credentials: bool = True) -> CIMultiDict[str]:
    """What the broker is told of a request, the caller's credentials among it."""
    dropped = {*_NOT_ASKED, *([] if with_credentials else ["authorization"])}
    return _without(headers, dropped)


def answered(headers: Headers) -> CIMultiDict[str]:
    """What the caller is told of an answer that comes as the broker sent it."""
    return _sandboxed(_without(headers, _NOT_ANSWERED))


def answered_anew(headers: Headers) -> CIMultiDict[str]:
    """The same for an answer with another body."""
    changed = ("content-length", "content-encoding", "content-type", "etag", "content-md5", "digest")
    return _sandboxed(_without(headers, {*_NOT_ANSWERED, *changed}))


def one_line(value: str) -> str:
    """A text that a header can hold."""
    return re.sub(r"[^\x20-\x7e]", "?", value)[:1_000]


def _sandboxed(headers: CIMultiDict[str]) -> CIMultiDict[str]:
    headers.update(SANDBOX)
    return headers


def _without(headers: Headers, names: Iterable[str]) -> CIMultiDict[str]:
    dropped = {*_HOP_BY_HOP, *names}
    for listed in headers.getall("Connection", []):
        dropped.update(each.strip().lower() for each in listed.split(","))
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)
