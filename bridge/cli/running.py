"""One bridge as the work of this process, from its start to a signal."""

import asyncio
import os
import signal
from collections.abc import Callable
from functools import partial

import structlog

from bridge.app import Bridge
from bridge.cli.garbage import collect_when_quiet
from bridge.config import Settings
from bridge.limits import Limits
from bridge.net.failures import Part
from bridge.net.tasks import Tasks
from tracker.store.private_files import UMASK

try:
    import uvloop
except ImportError:  # not made for this platform
    _new_event_loop = None
else:
    _new_event_loop = uvloop.new_event_loop

log = structlog.get_logger(__name__)


def run_bridge(settings: Settings, on_up: Callable[[Bridge], None] | None = None) -> None:
    """Until SIGTERM or SIGINT, which stop it in stages; a second signal ends the process at once, with 1.

    `on_up` is called when it accepts clients. Raises bridge.app.StartError and tracker.StoreError.
    """
    os.umask(UMASK)
    with asyncio.Runner(loop_factory=_new_event_loop) as runner:
        runner.run(_run(settings, on_up))


async def _run(settings: Settings, on_up: Callable[[Bridge], None] | None) -> None:
    asked = _stop_on_signals()
    bridge = Bridge(settings, Limits())
    starting = asyncio.create_task(bridge.start())
    waiting = asyncio.create_task(asked.wait())
    try:
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()  # it takes back what it had started
            await asyncio.gather(starting, return_exceptions=True)
            return
        await starting
        beside = Tasks(partial(bridge.failures.note, Part.elsewhere, "the interpreter collects garbage as it likes"))
        beside.spawn(collect_when_quiet(bridge.delivered, bridge.limits.memory))
        if on_up is not None:
            on_up(bridge)
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGHUP, lambda: beside.spawn(bridge.look_at_certificates())
        )
        await waiting
        await beside.end()
        await bridge.stop()
    finally:
        waiting.cancel()


def _stop_on_signals() -> asyncio.Event:
    asked = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if asked.is_set():
            log.warning("not waiting any longer", signal=number.name)
            os._exit(1)
        log.info("stopping", signal=number.name)
        asked.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return asked
