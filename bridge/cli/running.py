"""One bridge as the work of this process, from its start to a signal."""

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import structlog

from bridge.app import Bridge, Neighbourhood
from bridge.cli.garbage import collect_when_quiet
from bridge.config import Settings
from bridge.limits import Limits
from bridge.net.failures import Part
from bridge.net.tasks import Tasks
from bridge.workers.division import settings_of, web_ports_of_others
from bridge.workers.place import BEAT, UP, Place
from bridge.workers.supervisor import Supervisor, own_command
from tracker import Store
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

    `on_up` is called when it accepts clients. Raises StartError and tracker.StoreError.
    """
    _run_to_the_end(_run(lambda: Bridge(settings, Limits()), on_up))


def run_worker(settings: Settings, place: Place) -> None:
    """One of several of this host; it ends as well when whoever looks after them is gone. Raises as `run_bridge`."""
    structlog.contextvars.bind_contextvars(worker=place.number)
    line = socket.socket(fileno=place.line)
    shared, shared_tls = (
        None if each is None else socket.socket(fileno=each) for each in (place.shared, place.shared_tls)
    )
    neighbourhood = Neighbourhood(shared, shared_tls, web_ports_of_others(place))
    threading.Thread(target=_end_with, args=(line,), daemon=True).start()
    own = settings_of(settings, place)
    _run_to_the_end(_run(lambda: Bridge(own, Limits(), neighbourhood), lambda bridge: _tell(line, bridge)))


def _tell(line: socket.socket, bridge: Bridge) -> None:
    """That clients are accepted, and from then on that the event loop turns."""
    loop = asyncio.get_running_loop()

    def beat() -> None:
        with contextlib.suppress(OSError):  # who listened is gone: the end of the line ends this process
            line.send(BEAT, socket.MSG_DONTWAIT)
        loop.call_later(bridge.limits.workers.worker_beat_s, beat)

    line.sendall(UP)
    beat()


def _end_with(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


def run_workers(settings: Settings) -> None:
    """All of them, in processes of their own, until a signal, as `run_bridge`. Raises StartError and StoreError."""
    os.umask(UMASK)
    Store.claim(settings.data_dir)  # before one of them makes a folder in it
    _run_to_the_end(Supervisor(settings, Limits(), own_command()).run())


def _run_to_the_end(work: Coroutine[Any, Any, None]) -> None:
    os.umask(UMASK)
    with asyncio.Runner(loop_factory=_new_event_loop) as runner:
        runner.run(work)


async def _run(make: Callable[[], Bridge], on_up: Callable[[Bridge], None] | None) -> None:
    asked = _stop_on_signals()
    bridge = make()
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
            signal.SIGUSR1, lambda: beside.spawn(_drain_and_stop(bridge, asked))
        )
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGHUP, lambda: beside.spawn(bridge.look_at_certificates())
        )
        await waiting
        await beside.end()
        await bridge.stop()
    finally:
        waiting.cancel()


async def _drain_and_stop(bridge: Bridge, asked: asyncio.Event) -> None:
    """End as by SIGTERM, once others have taken over what is owned here, or some time has passed."""
    log.info("stopping when others have taken over what is owned here", signal="SIGUSR1")
    left = await bridge.drained()
    if left:
        log.warning("stopping all the same: topic partitions are owned still", topics=left)
    asked.set()


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
