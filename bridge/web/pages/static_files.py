"""Scripts, styles and pictures of the pages: read once, kept in memory, served from here and from nowhere else."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from aiohttp import web

PLOTLY_NAME: Final = "plotly-basic-4.1.1.min.js"
"""The version in the name: browsers keep it for good. Where it is from: the README beside it."""
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_KEEP_FOR_GOOD: Final = "public, max-age=31536000, immutable"
_ASK_EACH_TIME: Final = "no-cache"

routes = web.RouteTableDef()


class StaticFile(NamedTuple):
    """One file as it is sent; the script of the charts is large, so only its compressed form is kept."""

    compressed: bytes
    content_type: str
    tag: str
    cache_control: str


@cache
def own_files() -> dict[str, StaticFile]:
    """Read every file of our own; to be called off the event loop first."""
    folder = files("bridge.web") / "static"
    return {each.name: _file(each.name, each.read_bytes()) for each in folder.iterdir() if each.is_file()}


@cache
def plotly() -> StaticFile:
    """Read and compress the script that draws charts; takes a twentieth of a second, so in a thread."""
    script = (files("bridge.web") / "static" / "plotly" / PLOTLY_NAME).read_bytes()
    return _file(PLOTLY_NAME, script, _KEEP_FOR_GOOD)


def _file(name: str, content: bytes, cache_control: str = _ASK_EACH_TIME) -> StaticFile:
    return StaticFile(
        gzip.compress(content, 6, mtime=0),
        _TYPES[PurePosixPath(name).suffix],
        hashlib.sha256(content).hexdigest()[:32],
        cache_control,
    )


@routes.get("/static/{name}")
async def static_file(request: web.Request) -> web.Response:
    """Send a file, or say that the browser's copy is still good."""
    name = request.match_info["name"]
    found = await asyncio.to_thread(plotly) if name == PLOTLY_NAME else own_files().get(name)
    if found is None:
        raise web.HTTPNotFound(text=f"no file {name}")
    headers = {
        "Cache-Control": found.cache_control,
        "ETag": f'"{found.tag}"',
        "Vary": "Accept-Encoding",
        "X-Content-Type-Options": "nosniff",
    }
    if any(tag.value == found.tag for tag in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    body = found.compressed
    if "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
    else:
        body = await asyncio.to_thread(gzip.decompress, body)
    return web.Response(body=body, headers=headers, content_type=found.content_type, charset="utf-8")
