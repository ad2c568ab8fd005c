"""Errors that nobody thought of: each is told in the log, with all that is known of it, and counted."""

import asyncio
from collections import Counter
from enum import StrEnum
from typing import Any

import structlog

log = structlog.get_logger(__name__)


class Part(StrEnum):
    """Where an error happened, and so what was begun anew because of it."""

    topic = "topic"
    client = "client"
    storage = "storage"
    admission = "admission"
    marks = "marks"
    readiness = "readiness"
    web = "web"
    elsewhere = "elsewhere"


class Failures:
    """Of one bridge, by part."""

    def __init__(self) -> None:
        """None so far."""
        self.counts: Counter[Part] = Counter()

    def note(self, part: Part, event: str, error: BaseException, **values: Any) -> None:
        """Tell and count one; `values` say what it was about."""
        self.counts[part] += 1
        log.critical(event, exc_info=error, **values)

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """For `set_exception_handler`: what nobody else has caught. The loop has closed what it happened in."""
        self.counts[Part.elsewhere] += 1
        known = {key: repr(value) for key, value in context.items() if key not in ("message", "exception")}
        log.critical("unexpected error", reason=context.get("message"), exc_info=context.get("exception"), **known)
