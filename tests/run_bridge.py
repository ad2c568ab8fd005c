"""One bridge in a process forked for it, with settings and changed limits.

Tells its ports when it listens. Ends with SIGTERM, or when nobody has the other end of its line any more: it never
outlives the test run that started it.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog
import uvloop

from bridge.app import Bridge
from bridge.config import Settings
from tests.changed_limits import changed
from tests.stepped_clock import VARIABLE, SteppedClock
from tracker.store.private_files import UMASK

ROOT = Path(__file__).parent.parent


async def _serve(settings: dict[str, Any], limits: dict[str, Any], line: "Connection[Any, Any]") -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    threading.Thread(target=_watch_parent, args=(loop, ended, line), daemon=True).start()
    bridge = Bridge(Settings(**settings), changed(**limits))
    await bridge.start()
    line.send((bridge.port, bridge.web_port))
    await ended.wait()
    await bridge.stop()


def _watch_parent(loop: asyncio.AbstractEventLoop, ended: asyncio.Event, line: "Connection[Any, Any]") -> None:
    with contextlib.suppress(EOFError, OSError):
        line.recv()
    with contextlib.suppress(RuntimeError):  # it has ended meanwhile
        loop.call_soon_threadsafe(ended.set)


def run_child(
    settings: dict[str, Any],
    limits: dict[str, Any],
    environment: Mapping[str, str],
    log_file: Path,
    line: "Connection[Any, Any]",
) -> None:
    """The whole life of a child: what it was forked from may have been started long ago, and elsewhere."""
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    os.umask(UMASK)
    with log_file.open("ab", buffering=0) as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.StackInfoRenderer(),
            structlog.dev.set_exc_info,
            structlog.processors.TimeStamper("%Y-%m-%d %H:%M:%S.%f", utc=False),
            structlog.dev.ConsoleRenderer(colors=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    if clock := os.environ.get(VARIABLE):
        SteppedClock(Path(clock)).install()
    uvloop.run(_serve(settings, limits, line))
