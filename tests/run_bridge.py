"""One bridge as a process of its own: `python -m tests.run_bridge JSON`, with settings and changed limits.

Says `ready PORT WEB_PORT` on standard output. Ends with SIGTERM, or when its standard input does: it never outlives
the test run that started it.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import threading
from typing import Any

import structlog
import uvloop

from bridge.app import Bridge
from bridge.config import Settings
from tests.changed_limits import changed
from tracker.store.private_files import UMASK


async def serve(settings: dict[str, Any], limits: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    threading.Thread(target=_watch_parent, args=(loop, ended), daemon=True).start()
    bridge = Bridge(Settings(**settings), changed(**limits))
    await bridge.start()
    print(f"ready {bridge.port} {bridge.web_port}", flush=True)
    await ended.wait()
    await bridge.stop()


def _watch_parent(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    # Not by sys.stdin: Python cannot end while a thread waits with its lock.
    while os.read(0, 4096):
        pass
    with contextlib.suppress(RuntimeError):  # it has ended meanwhile
        loop.call_soon_threadsafe(ended.set)


def main() -> None:
    os.umask(UMASK)
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    uvloop.run(serve(arguments["settings"], arguments["limits"]))


if __name__ == "__main__":
    main()
