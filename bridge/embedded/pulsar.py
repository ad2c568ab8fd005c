"""A real Apache Pulsar on this machine, as a child process that never outlives the process that started it."""

import fcntl
import json
import os
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Self

from bridge.embedded.child import ChildProcess
from bridge.embedded.distribution import ensure_distribution
from bridge.embedded.errors import EmbeddedError, PortInUseError, StartError
from bridge.embedded.instance import DEFAULT_MEMORY, HOST, Instance, Ports
from bridge.embedded.java import find_java
from bridge.embedded.ports import free_ports, is_free
from bridge.embedded.sessions import forget_sessions

_POLL_SECONDS = 0.1
_HTTP_SECONDS = 5.0
_PORT_TRIES = 3
_PORT_LOST = "Address already in use"
_TAIL_LINES = 40
_NAMESPACE = "public/default"
# Never through a proxy: the broker is on loopback.
_http = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class EmbeddedPulsar:
    """One standalone broker with its bookie, on loopback, with its own data folder and ports.

    All methods block; call them through `asyncio.to_thread` from asynchronous code. Not for concurrent use.
    `start` may be called again after `kill` or an end of the broker: same ports, same data. After `stop` too, but a
    temporary data folder is gone by then. Should this process die, even by SIGKILL, the broker is ended and a
    temporary folder removed.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        broker_port: int = 0,
        web_port: int = 0,
        config: Mapping[str, str] | None = None,
        *,
        home: Path | None = None,
        cache_dir: Path | None = None,
        progress: bool = True,
        start_timeout: float = 120.0,
        memory: str = DEFAULT_MEMORY,
        admin_token: str | None = None,
    ) -> None:
        """Nothing runs yet.

        `data_dir` is kept; None takes a temporary folder, removed by `stop`. Port 0 takes a free one. `config` are
        broker settings (keys of standalone.conf). `home`, `cache_dir` and `progress` are those of
        `ensure_distribution`. `start_timeout` is in seconds. `memory` are JVM options. `admin_token`: of a super user,
        for a broker whose `config` asks for tokens.
        """
        self._data_dir = data_dir.absolute() if data_dir else None
        self._wanted = (broker_port, web_port)
        self._config = dict(config or {})
        self._home, self._cache_dir, self._progress = home, cache_dir, progress
        self._start_timeout = start_timeout
        self._memory = memory
        self._headers = {} if admin_token is None else {"Authorization": f"Bearer {admin_token}"}
        self._ports: Ports | None = None
        self._instance: Instance | None = None
        self._child: ChildProcess | None = None

    @property
    def service_url(self) -> str:
        """`pulsar://127.0.0.1:PORT`; raises EmbeddedError before the first start."""
        return f"pulsar://{HOST}:{self._known_ports().broker}"

    @property
    def web_url(self) -> str:
        """`http://127.0.0.1:PORT`, for the admin API; raises EmbeddedError before the first start."""
        return f"http://{HOST}:{self._known_ports().web}"

    @property
    def pid(self) -> int | None:
        """The broker's process id; None while it does not run."""
        return self._child.pid if self._child is not None and self._child.running() else None

    @property
    def data_dir(self) -> Path | None:
        """Where the broker keeps its data; None for a temporary folder before the first start and after `stop`."""
        return self._data_dir or (self._instance.folder if self._instance else None)

    def log_tail(self, lines: int = _TAIL_LINES) -> str:
        """The last `lines` lines of the broker's log; empty when it never started."""
        return self._instance.log_tail(lines) if self._instance else ""

    def start(self) -> None:
        """Returns when the broker is healthy and has the namespace public/default.

        Raises StartError with the log's tail when it is not ready in time, PortInUseError for a port given that is
        taken, and the errors of `find_java` and `ensure_distribution`. No broker is left running then.
        """
        if self.pid is not None:
            raise EmbeddedError("this embedded Pulsar is already running")
        # Ports of our own choice may be taken by others before the broker has them: then choose again.
        tries = _PORT_TRIES if self._ports is None and 0 in self._wanted else 1
        for left in reversed(range(tries)):
            try:
                self._start_once()
                return
            except StartError as error:
                if left == 0 or _PORT_LOST not in error.log_tail:
                    raise
                self._ports = None

    def kill(self) -> None:
        """SIGKILL for the broker, as in a crash; its data stays for the next `start`."""
        if self._child is not None and self._child.running():
            self._child.kill()

    def stop(self, timeout: float = 30.0) -> None:
        """Ends the broker (orderly when its data is kept, killed after `timeout` seconds) and frees everything."""
        child, self._child = self._child, None
        if child is None:
            return
        try:
            if self._data_dir is not None and child.running():
                child.terminate(timeout)
        finally:
            child.close()
            if self._data_dir is None:
                self._instance = None

    def __enter__(self) -> Self:
        """Starts it."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops it."""
        self.stop()

    def _start_once(self) -> None:
        """One try on one choice of ports; after a failure everything of a first start is taken back."""
        first = self._child is None
        try:
            if first:
                self._prepare()
            self._check_ports()
            assert self._child is not None
            assert self._instance is not None
            forget_sessions(self._instance.metadata)
            self._child.start()
            self._await_ready()
        except BaseException:
            if first:
                self.stop(timeout=0)
            else:
                self.kill()
            raise

    def _prepare(self) -> None:
        java = find_java()
        home = ensure_distribution(self._cache_dir, self._home, self._progress)
        folder = self._data_dir or Path(tempfile.gettempdir()).absolute() / f"embedded-pulsar-{uuid.uuid4().hex[:12]}"
        instance = Instance(home, folder)
        instance.check_paths()
        ports = self._ports or self._choose_ports(instance)
        lock = None
        if self._data_dir is not None:
            folder.mkdir(parents=True, exist_ok=True)
            lock = _locked(instance)
        try:
            self._child = ChildProcess(
                instance.command(ports),
                instance.environment(java, os.environ, self._memory),
                instance.log,
                remove=None if self._data_dir else folder,
                keep_open=() if lock is None else (lock,),
            )
        finally:
            if lock is not None:
                os.close(lock)  # the watchdog has it now
        if self._data_dir is None:
            folder.mkdir(mode=0o700)
        instance.write(ports, self._config)
        instance.log.unlink(missing_ok=True)
        self._instance, self._ports = instance, ports

    def _choose_ports(self, instance: Instance) -> Ports:
        free = free_ports(3)
        broker, web = self._wanted
        return Ports(broker or free[0], web or free[1], instance.recorded_bookie_port() or free[2])

    def _check_ports(self) -> None:
        ports = self._known_ports()
        for port in (ports.broker, ports.web, ports.bookie):
            if not is_free(port):
                raise PortInUseError(port)

    def _known_ports(self) -> Ports:
        if self._ports is None:
            raise EmbeddedError("this embedded Pulsar has no ports before its first start")
        return self._ports

    def _await_ready(self) -> None:
        assert self._child is not None
        deadline = time.monotonic() + self._start_timeout
        while self._child.running():
            if self._ready() and self._child.running():
                return
            if time.monotonic() > deadline:
                raise StartError(f"Pulsar was not ready after {self._start_timeout:g} s", self.log_tail())
            time.sleep(_POLL_SECONDS)
        raise StartError(f"Pulsar ended while starting, with code {self._child.exit_code}", self.log_tail())

    def _ready(self) -> bool:
        """The broker answers its own health check, and clients find the default namespace."""
        try:
            if self._get("/admin/v2/brokers/health").strip() != b"ok":
                return False
            return _NAMESPACE in json.loads(self._get("/admin/v2/namespaces/public"))
        except (OSError, HTTPException, ValueError):
            return False

    def _get(self, path: str) -> bytes:
        request = urllib.request.Request(self.web_url + path, headers=self._headers)
        with _http.open(request, timeout=_HTTP_SECONDS) as answer:
            body: bytes = answer.read()
        return body


def _locked(instance: Instance) -> int:
    """A descriptor that holds the data folder's lock; whoever has a copy of it keeps the lock."""
    descriptor = os.open(instance.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise EmbeddedError(f"another embedded Pulsar uses the data folder {instance.folder}") from None
    return descriptor
