"""A bridge in a child process: for clients that block, and for tests that kill it."""

import json
import multiprocessing
import os
import signal
import time
import urllib.error
import urllib.parse
import urllib.request
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Protocol

from bridge.protocol.names import TopicName
from tests.described import assert_described
from tests.helpers import wait_until
from tests.run_bridge import run_child
from tests.stepped_clock import VARIABLE, SteppedClock

_STARTED_S = 30.0
# Hundreds of bridges are started, and most of that would be imports: they are forked from a process that has them.
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["tests.run_bridge"])


class Broker(Protocol):
    """What a bridge needs to know of its broker."""

    @property
    def service_url(self) -> str: ...
    @property
    def web_url(self) -> str: ...


class BridgeProcess:
    """`start` may be called again after `kill` or `stop`: same ports, same data directory."""

    def __init__(
        self,
        broker: Broker,
        folder: Path,
        limits: dict[str, Any] | None = None,
        *,
        own_clock: bool = False,
        **settings: Any,
    ) -> None:
        """`limits`: limits to change, by name; `settings`: those of `bridge.config.Settings`.

        `own_clock`: it has a wall clock of its own, `clock`.
        """
        self.data_dir = folder / "data"
        self.log_file = folder / "bridge.log"
        self.port = self.web_port = 0
        self._limits = limits or {}
        self._settings = {
            "broker_service_url": broker.service_url,
            "broker_web_url": broker.web_url,
            "data_dir": str(self.data_dir),
            "host": "127.0.0.1",
            "advertised_address": "127.0.0.1",
            "members_topic": "off",  # many tests share a broker
            **settings,
        }
        self._child: ForkServerProcess | None = None
        self._line: Connection[Any, Any] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._clock_file = folder / "clock"
        self.clock = SteppedClock(self._clock_file) if own_clock else None

    @property
    def service_url(self) -> str:
        return f"pulsar://{self._settings['host']}:{self.port}"

    @property
    def web_url(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def pid(self) -> int:
        assert self._child is not None
        assert self._child.pid is not None
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.is_alive()

    def start(self, *, ready: bool = True) -> "BridgeProcess":
        """Returns when it listens and, with `ready`, says that it serves."""
        settings = {**self._settings, "port": self.port, "web_port": self.web_port}
        self._line, theirs = _forks.Pipe()
        with theirs:
            environment = dict(os.environ) | ({} if self.clock is None else {VARIABLE: str(self._clock_file)})
            arguments = (settings, self._limits, environment, self.log_file, theirs)
            self._child = _forks.Process(target=run_child, args=arguments)
            self._child.start()
        self.port, self.web_port = self._listening()
        if ready:
            wait_until(lambda: self.ready()[0] == 200, "bridge ready", timeout=_STARTED_S)
        return self

    def _listening(self) -> tuple[int, int]:
        assert self._line is not None
        try:
            if self._line.poll(_STARTED_S):
                port, web_port = self._line.recv()
                return port, web_port
        except EOFError:
            pass
        self.kill()
        raise AssertionError(f"the bridge did not start:\n{self.log()[-4000:]}")

    def ready(self) -> tuple[int, dict[str, Any]]:
        """Status and body of /readyz."""
        return self.get("/readyz")

    def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON body of a GET; status 0 when nobody answers."""
        return self.ask("GET", path)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and JSON body of a call; status 0 when nobody answers."""
        request = urllib.request.Request(self.web_url + path, method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                status, found = answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                status, found = error.code, json.load(error)
        except (OSError, ValueError):
            return 0, {}
        assert_described(method, path, status, found)
        return status, found

    def text(self, path: str) -> str:
        """A page."""
        with urllib.request.urlopen(self.web_url + path, timeout=20) as answer:
            return str(answer.read().decode())

    def topic(self, topic: str) -> dict[str, Any]:
        """What the list of tracked topics says of one; empty when it is not there."""
        # Only this one: a bridge that serves many tests has hundreds, and this is asked again and again.
        _, topics = self.get(f"/admin/v2/delayed/topics?filter={urllib.parse.quote(topic, safe='')}")
        return next((each for each in topics if each["topic"] == topic), {})

    def stats(self, topic: str) -> dict[str, Any]:
        """What `GET …/stats` says of a tracked topic."""
        status, found = self.get(f"/admin/v2/delayed/{TopicName.parse(topic).rest_path}/stats")
        assert status == 200, found
        return dict(found)

    def kill(self) -> None:
        """SIGKILL: nothing is written, nobody is told."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and wait."""
        self._end(signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP: its connections stay open, and nobody is at the other end."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: it goes on where it was, as if no time had passed."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, sign: signal.Signals) -> None:
        child, self._child = self._child, None
        line, self._line = self._line, None
        if child is None or line is None:
            return
        if child.is_alive() and child.pid is not None:
            os.kill(child.pid, sign)
        child.join(30)
        stopped = not child.is_alive()
        if not stopped:
            child.kill()
            child.join()
        child.close()
        line.close()
        assert stopped, f"the bridge did not stop:\n{self.log()[-4000:]}"

    def log(self) -> str:
        """Everything it logged so far."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def wait_for_log(self, text: str, timeout: float = 10.0) -> None:
        wait_until(lambda: text in self.log(), f"{text!r} in the bridge's log", timeout=timeout)


def now_ms() -> int:
    """The wall clock in ms, as `deliver_at` counts."""
    return time.time_ns() // 1_000_000
