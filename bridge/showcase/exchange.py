"""The demo's messages, by the official client: published with random delays, consumed, counted.

Apart from the rest of the demo, for the client is an extra that is not always installed.
"""

import contextlib
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar

from bridge.showcase.demo import DemoError, Tally

TOPIC = "persistent://public/default/demo"
SUBSCRIPTION = "demo"
QUIET_S = 1.0
"""After the last message: time for duplicates to show."""
GIVE_UP_S = 15.0
"""Nothing more is expected this long after the last message was due and the last one came."""
_SWITCH_S = 0.0005


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
