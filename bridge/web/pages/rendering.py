"""Pages are rendered here from the templates beside this file; what a page shows is escaped."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from bridge.web.pages.display import FILTERS

ENVIRONMENT = Environment(
    loader=PackageLoader("bridge.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
"""Templates are read and compiled once."""

ENVIRONMENT.filters.update(FILTERS)

RENDER_SLICE: Final = 200
"""Parts of a page rendered before others get their turn: about a millisecond."""


def load_templates() -> None:
    """Read and compile every template: files are not touched on the event loop later."""
    for name in ENVIRONMENT.list_templates():
        ENVIRONMENT.get_template(name)


async def large_page(template: str, status: int = 200, **values: Any) -> web.Response:
    """Return a rendered page whose length depends on what it shows; others get their turn in between."""
    parts: list[str] = []
    for part in ENVIRONMENT.get_template(template).generate(**values):
        parts.append(part)
        if len(parts) % RENDER_SLICE == 0:
            await asyncio.sleep(0)
    return web.Response(text="".join(parts), status=status, content_type="text/html")


def page(template: str, status: int = 200, **values: Any) -> web.Response:
    """Return a rendered page."""
    text = ENVIRONMENT.get_template(template).render(**values)
    return web.Response(text=text, status=status, content_type="text/html")
