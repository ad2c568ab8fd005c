"""Publishes messages with random delays, at a steady rate, until it is ended.

A few are due at once, and now and then many at the same instant: both are what the bridge is for.
"""

import argparse
import os
import random
import signal
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import pulsar

STORM = 200
SAY_EVERY_S = 10.0


def arguments() -> argparse.Namespace:
    """What is given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--service-url", default=os.environ.get("PULSAR_SERVICE_URL", "pulsar://127.0.0.1:6650"))
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--rate", type=float, default=20, help="messages a second")
    parser.add_argument("--min-delay", type=float, default=1, help="seconds")
    parser.add_argument("--max-delay", type=float, default=120, help="seconds")
    parser.add_argument("--storm-every", type=float, default=300, help="seconds between storms; 0: none")
    parser.add_argument("--messages", type=int, default=0, help="so many and no more; 0: no end")
    return parser.parse_args()


class Outcome:
    """How many were stored, and how many refused: answers come on the client's own threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.stored = self.refused = 0

    def note(self, result: Any, _message_id: Any) -> None:
        """Take in one answer."""
        with self._lock:
            if result == pulsar.Result.Ok:
                self.stored += 1
            else:
                self.refused += 1


def main() -> int:
    """Publish; returns the exit status."""
    given = arguments()
    ended = threading.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: ended.set())
    client = pulsar.Client(given.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn))
    producer = client.create_producer(given.topic, block_if_queue_full=True)
    outcome, number = Outcome(), 0

    def send(delay_s: float) -> None:
        nonlocal number
        due_ms = round((time.time() + delay_s) * 1000)
        producer.send_async(
            f"order {number}".encode(),
            outcome.note,
            deliver_after=timedelta(milliseconds=round(delay_s * 1000)),
            # The library does not show a received message's due time.
            properties={"due-ms": str(due_ms)},
            partition_key=f"customer-{number % 100}",
        )
        number += 1

    started = said_at = storm_at = time.monotonic()
    while not ended.is_set() and (given.messages == 0 or number < given.messages):
        send(0 if number % 20 == 0 else random.uniform(given.min_delay, given.max_delay))
        now = time.monotonic()
        if given.storm_every and now - storm_at > given.storm_every:
            storm_at = now
            at = time.time() + given.max_delay
            for _ in range(STORM):
                send(at - time.time())
        if now - said_at > SAY_EVERY_S:
            said_at = now
            print(f"published {outcome.stored:,}  refused {outcome.refused:,}", flush=True)
        ended.wait(max(started + number / given.rate - now, 0) if given.rate > 0 else 0)
    producer.flush()
    client.close()
    print(f"published {outcome.stored:,}  refused {outcome.refused:,}", flush=True)
    return 1 if outcome.refused else 0


if __name__ == "__main__":
    sys.exit(main())
