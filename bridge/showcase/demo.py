"""The demo: a real Pulsar, a real bridge, the official client, and a count of what arrived when.

The bridge runs as a child process through the ordinary command, so that the measuring client and the bridge do not
share an interpreter.
"""

import contextlib
import json
import math
import os
import random
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pulsar

from bridge.config import ENV_PREFIX
from bridge.embedded.child import ChildProcess
from bridge.embedded.ports import free_ports

TOPIC = "persistent://public/default/demo"
SUBSCRIPTION = "demo"
QUIET_S = 1.0
"""After the last message: time for duplicates to show."""
GIVE_UP_S = 15.0
"""Nothing more is expected this long after the last message was due and the last one came."""
_READY_S = 30.0
_SWITCH_S = 0.0005
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


def run_demo(
    service_url: str, messages: int, delays_ms: tuple[int, int], on_progress: Callable[[Tally], None], log: Path
) -> Tally:
    """Publish `messages` with random delays, consume them by a Shared subscription, and count.

    `on_progress` is called several times a second. `log`: the file the client library writes to. Raises DemoError.
    """
    tally = Tally(messages)
    # The threads that measure must not wait long for the one that draws.
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        client = pulsar.Client(service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(log)))
        with contextlib.closing(client):
            consumer = client.subscribe(TOPIC, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared)
            producer = client.create_producer(TOPIC, max_pending_messages=5_000, block_if_queue_full=True)
            _exchange(consumer, producer, tally, delays_ms, on_progress)
    except pulsar.PulsarException as error:
        raise DemoError(f"the Pulsar client failed: {error}") from error
    finally:
        sys.setswitchinterval(switch_s)
    return tally


def _exchange(
    consumer: Any, producer: Any, tally: Tally, delays_ms: tuple[int, int], on_progress: Callable[[Tally], None]
) -> None:
    done = threading.Event()
    failures: list[Exception] = []

    def in_thread(work: Callable[..., None], *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except Exception as error:  # reported by the main thread
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    threads = [in_thread(_consume, consumer, tally, done), in_thread(_publish, producer, tally, delays_ms, done)]
    try:
        _wait_for_all(tally, threads[1], failures, on_progress)
    finally:
        done.set()
        for thread in threads:
            thread.join(timeout=5)
    if failures:
        raise failures[0]


def _publish(producer: Any, tally: Tally, delays_ms: tuple[int, int], done: threading.Event) -> None:
    def sent(result: Any, message_id: Any) -> None:
        if result == pulsar.Result.Ok:
            tally.published += 1
        else:
            tally.refused += 1

    for number in range(tally.messages):
        if done.is_set():
            return
        # What `deliver_after` does, the client's clock plus the delay, with the sum known here to compare with.
        deliver_at_ms = time.time_ns() // 1_000_000 + random.randint(*delays_ms)
        tally.latest_deliver_at_ms = max(tally.latest_deliver_at_ms, deliver_at_ms)
        producer.send_async(f"{number} {deliver_at_ms}".encode(), sent, deliver_at=deliver_at_ms)
    producer.flush()


def _consume(consumer: Any, tally: Tally, done: threading.Event) -> None:
    while not done.is_set():
        try:
            message = consumer.receive(timeout_millis=200)
        except pulsar.Timeout:
            continue
        at_ms = time.time_ns() / 1e6
        number, deliver_at_ms = map(int, message.data().split())
        tally.received(number, deliver_at_ms, at_ms)
        consumer.acknowledge(message)


def _wait_for_all(
    tally: Tally, publisher: threading.Thread, failures: list[Exception], on_progress: Callable[[Tally], None]
) -> None:
    """Until everything came and was quiet for a while, or nothing can be expected any more."""
    seen, last_news = -1, time.monotonic()
    while not failures:
        on_progress(tally)
        came = tally.delivered + tally.duplicates
        if came != seen or publisher.is_alive() or time.time_ns() < tally.latest_deliver_at_ms * 1e6:
            seen, last_news = came, time.monotonic()
        quiet_s = time.monotonic() - last_news
        if quiet_s > (QUIET_S if tally.lost <= 0 else GIVE_UP_S):
            return
        time.sleep(0.1)
