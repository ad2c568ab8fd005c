"""Structured logs on stderr: for people or as JSON, the libraries' own included, secrets never."""

import logging
import re
import sys
from typing import Any, Literal

import structlog

_SECRET = re.compile(r"token|password|passwd|secret|authorization|credential|auth_data|auth_params", re.IGNORECASE)
_HIDDEN = "***"


def configure_logs(level: str = "info", log_format: Literal["console", "json"] = "console") -> None:
    """Set up structlog and standard logging, once, before the first line is logged."""
    common: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        hide_secrets,
    ]
    structlog.configure(
        processors=[*common, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*common, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(log_format)],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())


def hide_secrets(logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """A processor: values under names that sound secret are not shown."""
    for name in event:
        if _SECRET.search(name):
            event[name] = _HIDDEN
    return event


def _rendering(log_format: str) -> list[structlog.typing.Processor]:
    # Tracebacks without local variables: those may hold a client's credentials or payloads.
    if log_format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    return [
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
        )
    ]
