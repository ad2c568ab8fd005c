"""The demo: a real Pulsar, a real bridge, the official client (see `exchange`), and a count of what arrived when.

The bridge runs as a child process through the ordinary command, so that the measuring client and the bridge do not
share an interpreter.
"""

import contextlib
import json
import math
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

from bridge.config import ENV_PREFIX
from bridge.embedded.child import ChildProcess
from bridge.embedded.ports import free_ports

_READY_S = 30.0
_HOST = "127.0.0.1"


class DemoError(Exception):
    """The demo could not be carried out; the message says why."""


@dataclass
class Tally:
    """What was promised and what came. Written by the client's threads, read by everybody."""

    messages: int
    latest_deliver_at_ms: int = 0
    lateness_ms: dict[int, float] = field(default_factory=dict)
    published: int = 0
    refused: int = 0
    early: int = 0
    duplicates: int = 0

    def received(self, number: int, deliver_at_ms: int, at_ms: float) -> None:
        """A message came."""
        if number in self.lateness_ms:
            self.duplicates += 1
            return
        self.lateness_ms[number] = at_ms - deliver_at_ms
        if at_ms < deliver_at_ms:
            self.early += 1

    @property
    def delivered(self) -> int:
        """Different messages received."""
        return len(self.lateness_ms)

    @property
    def lost(self) -> int:
        """Published and not received."""
        return self.published - self.delivered

    @property
    def good(self) -> bool:
        """Whether everything was accepted and came, once, and none too soon."""
        return self.published == self.messages and not (self.early or self.lost or self.duplicates or self.refused)

    def percentile_ms(self, share: float) -> float:
        """The lateness that `share` of the messages do not exceed (nearest rank); 0 without any."""
        ordered = sorted(self.lateness_ms.values())
        return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else 0.0


@contextlib.contextmanager
def running_bridge(broker_service_url: str, broker_web_url: str) -> Iterator[str]:
    """A bridge in a process of its own, on free ports and temporary data; gives its service URL. Raises DemoError."""
    port, web_port = free_ports(2)
    folder = Path(tempfile.gettempdir()) / f"delay-bridge-demo-{uuid.uuid4().hex[:12]}"
    log = folder / "bridge.log"
    options = {
        "--broker-service-url": broker_service_url,
        "--broker-web-url": broker_web_url,
        "--data-dir": str(folder / "data"),
        "--host": _HOST,
        "--port": str(port),
        "--advertised-address": _HOST,
        "--web-host": _HOST,
        "--web-port": str(web_port),
    }
    command = [sys.executable, "-m", "bridge", "serve", *(word for option in options.items() for word in option)]
    # The demo is the same for everybody, whatever the environment holds for another bridge.
    env = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    child = ChildProcess(command, env, log, remove=folder)
    try:
        folder.mkdir(mode=0o700)
        child.start()
        _await_ready(child, f"http://{_HOST}:{web_port}/readyz", log)
        yield f"pulsar://{_HOST}:{port}"
        child.terminate(timeout=10)
    finally:
        child.close()


def _await_ready(child: ChildProcess, url: str, log: Path) -> None:
    deadline = time.monotonic() + _READY_S
    reason = "it does not answer"
    while child.running() and time.monotonic() < deadline:
        try:
            # Never through a proxy: the bridge is on loopback.
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5):
                return
        except urllib.error.HTTPError as error:
            with error:
                reason = json.load(error).get("reason", reason)
        except (OSError, HTTPException):
            pass
        time.sleep(0.05)
    said = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
    raise DemoError(f"the bridge did not become ready: {' '.join(said) or reason}")
