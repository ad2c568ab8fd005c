"""Starts the workers, starts those anew that end, and has all of them end together."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

import structlog

from bridge.clock import RandBits, system_randbits
from bridge.config import Settings
from bridge.limits import Limits
from bridge.net.backoff import Backoff
from bridge.net.listening import StartError, bound
from bridge.net.waiting import is_set_within
from bridge.workers.division import ports_of
from bridge.workers.place import UP, Place, Ports

log = structlog.get_logger(__name__)


_LOOK_S = 0.1


class Worker:
    """One child process, from its start to its end."""

    def __init__(self, process: asyncio.subprocess.Process, line: socket.socket) -> None:
        """`line`: the worker has the other end; what it says comes here, and it ends when this is closed."""
        self.process = process
        self.up = asyncio.Event()
        self.replaced = False
        """Whether it is to end, for another one in its place."""
        self.heard_s = 0.0
        """When it said something last, by the event loop's clock; once it is up."""
        self._line = line
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while said := await loop.sock_recv(self._line, 64):
                self.heard_s = loop.time()
                if UP in said:
                    self.up.set()

    async def ended(self) -> int:
        """Wait for its end; returns the exit code, below 0 the signal that ended it."""
        code = await self.process.wait()
        await asyncio.wait({self._listening})  # the line has ended as well
        self._line.close()
        return code

    def send(self, sign: signal.Signals) -> None:
        """Unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(sign)


class Supervisor:
    """`run` until a signal, or until a worker cannot be started."""

    def __init__(
        self,
        settings: Settings,
        limits: Limits,
        command: Sequence[str],
        environment: Mapping[str, str] = os.environ,
        randbits: RandBits = system_randbits,
    ) -> None:
        """`command`: what a worker is started with; it finds its place in the environment."""
        self._settings = settings
        self._limits = limits
        self._command = command
        self._environment = environment
        self._randbits = randbits
        self._ports: tuple[Ports, ...] = ()
        self._shared: tuple[socket.socket | None, socket.socket | None] = (None, None)
        self._workers: dict[int, Worker] = {}
        self._stopping = asyncio.Event()
        self._killing: asyncio.TimerHandle | None = None
        self._restarting: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Raises StartError when a port is not to be had, or a worker does not come up the first time."""
        settings = self._settings
        self._ports = ports_of(settings)
        with contextlib.ExitStack() as held:
            plain = None if settings.tls_only else held.enter_context(bound(settings.host, settings.port))
            tls = held.enter_context(bound(settings.host, settings.tls_port)) if settings.tls_port else None
            self._shared = plain, tls
            self._obey_signals()
            watching: asyncio.Task[None] | None = None
            try:
                async with asyncio.TaskGroup() as group:
                    for number in range(settings.workers):
                        group.create_task(self._keep(number))
                    watching = asyncio.create_task(self._kill_those_that_hang())
                    log.info("workers are started", workers=settings.workers, **self._told())
            except* StartError as errors:
                raise errors.exceptions[0] from None
            finally:
                if watching is not None:
                    watching.cancel()
                if self._restarting is not None:
                    self._restarting.cancel()
                self._stop_the_rest()
                for worker in list(self._workers.values()):
                    await worker.ended()
                self._workers.clear()
                if self._killing is not None:
                    self._killing.cancel()
        log.info("all workers are down")

    def _told(self) -> dict[str, int]:
        """The ports that clients and callers use."""
        shared = zip(("port", "tls_port"), self._shared, strict=True)
        ports = {name: each.getsockname()[1] for name, each in shared if each is not None}
        return {**ports, "web_port": self._ports[0].web}

    def _obey_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._send_all, signal.SIGHUP)
        loop.add_signal_handler(signal.SIGUSR1, self._restart_soon)

    async def _kill_those_that_hang(self) -> None:
        """Whose event loop does not turn serves nobody, and its clients wait for it."""
        limits, loop = self._limits.workers, asyncio.get_running_loop()
        looked_s = loop.time()
        while True:
            await asyncio.sleep(limits.worker_beat_s)
            slept_s, looked_s = loop.time() - looked_s, loop.time()
            for number, worker in self._workers.items():
                if slept_s > 2 * limits.worker_beat_s:  # this process was held up itself, and has not listened
                    worker.heard_s = looked_s
                elif worker.up.is_set() and looked_s - worker.heard_s > limits.worker_silent_s:
                    log.error("a worker hangs, it is killed", worker=number, seconds=round(looked_s - worker.heard_s))
                    worker.send(signal.SIGKILL)

    def _restart_soon(self) -> None:
        if self._restarting is None or self._restarting.done():
            self._restarting = asyncio.get_running_loop().create_task(self._restart_one_by_one())

    async def _restart_one_by_one(self) -> None:
        """Each worker is drained, ends, and is up again before the next one."""
        for number in range(self._settings.workers):
            worker = self._workers.get(number)
            if worker is not None and not self._stopping.is_set():
                log.info("restarting a worker", worker=number, of=self._settings.workers)
                worker.replaced = True
                worker.send(signal.SIGUSR1)
                await worker.ended()
                await self._up_again(number, worker)
        log.info("all workers are restarted")

    async def _up_again(self, number: int, before: Worker) -> None:
        while not self._stopping.is_set():
            worker = self._workers.get(number)
            if worker is not None and worker is not before and await is_set_within(worker.up, _LOOK_S):
                return
            await asyncio.sleep(_LOOK_S)

    def _stop(self, sign: signal.Signals) -> None:
        if self._stopping.is_set():
            log.warning("not waiting any longer", signal=sign.name)
            self._send_all(signal.SIGKILL)
            return
        log.info("stopping", signal=sign.name)
        self._stop_the_rest()

    def _stop_the_rest(self) -> None:
        if self._killing is None:
            self._stopping.set()
            self._send_all(signal.SIGTERM)
            self._killing = asyncio.get_running_loop().call_later(
                self._limits.workers.worker_stop_s, self._kill_the_rest
            )

    def _kill_the_rest(self) -> None:
        for number, worker in self._workers.items():
            log.warning("a worker does not end, it is killed", worker=number)
            worker.send(signal.SIGKILL)

    def _send_all(self, sign: signal.Signals) -> None:
        for worker in self._workers.values():
            worker.send(sign)

    async def _keep(self, number: int) -> None:
        """One worker after the other, in the same place."""
        backoff = Backoff(self._randbits, self._limits.retry_backoff_s)
        loop = asyncio.get_running_loop()
        was_up = False
        while not self._stopping.is_set():
            started = loop.time()
            worker = self._workers[number] = await self._start(number)
            if self._stopping.is_set():  # all were told to end while this one was about to begin
                worker.send(signal.SIGTERM)
            code = await worker.ended()
            del self._workers[number]
            if self._stopping.is_set():
                return
            was_up = was_up or worker.up.is_set()
            if not was_up:
                raise StartError(f"worker {number} could not start and ended with code {code}; the log says why")
            if worker.replaced:
                backoff.reset()
                continue
            log.error("a worker has ended, and is started again", worker=number, code=code)
            if loop.time() - started > self._limits.retry_backoff_s[-1]:
                backoff.reset()
            await is_set_within(self._stopping, backoff.next_s())

    async def _start(self, number: int) -> Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            plain, tls = (None if each is None else each.fileno() for each in self._shared)
            place = Place(number, self._ports, theirs.fileno(), plain, tls)
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env={**self._environment, **place.environment()},
                pass_fds=place.files,
                start_new_session=True,  # Ctrl-C in a terminal is for whoever looks after them, who tells them
            )
        return Worker(process, ours)


def own_command() -> list[str]:
    """What this process was started with."""
    return [sys.executable, "-m", "bridge", *sys.argv[1:]]
