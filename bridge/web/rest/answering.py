"""How routes answer: as JSON, and of which type, which is held against the description by a test."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from aiohttp import web

T = TypeVar("T")


@dataclass(frozen=True)
class Written(Generic[T]):
    """An answer of type T that is JSON already."""

    text: str


class Answer(web.Response, Generic[T]):
    """What a call answers when it is done."""

    def __init__(self, body: T | Written[T], *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Write it as JSON where it is not."""
        text = body.text if isinstance(body, Written) else json.dumps(body)
        super().__init__(text=text, status=status, headers=headers, content_type="application/json")
