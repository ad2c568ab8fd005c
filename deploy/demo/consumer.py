"""Consumes what `producer.py` publishes by an ordinary Shared subscription, and says how late it came."""

import argparse
import os
import signal
import sys
import threading
import time

import pulsar

SAY_EVERY_S = 10.0
WAIT_MS = 500
SLACK_MS = 1
"""The due time that the producer notes and the one its library makes of the delay are read from the clock one after
the other, and rounded."""


def arguments() -> argparse.Namespace:
    """What is given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--service-url", default=os.environ.get("PULSAR_SERVICE_URL", "pulsar://127.0.0.1:6650"))
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--subscription", default="billing")
    parser.add_argument("--messages", type=int, default=0, help="so many and no more; 0: no end")
    return parser.parse_args()


class Lateness:
    """Of the messages since the last line that was printed, in ms."""

    def __init__(self) -> None:
        self.total = self.early = 0
        self._recent: list[float] = []

    def note(self, late_ms: float) -> None:
        """Take in one message."""
        self.total += 1
        self.early += late_ms < -SLACK_MS
        self._recent.append(max(late_ms, 0.0))

    def line(self) -> str:
        """What is printed; then start anew."""
        recent, self._recent = sorted(self._recent), []
        if not recent:
            return f"received {self.total:,}  nothing new"
        shares = (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        told = "  ".join(f"{name} {recent[round(share * (len(recent) - 1))]:.1f} ms" for name, share in shares)
        return f"received {self.total:,}  lateness of the last {len(recent):,}: {told}  early {self.early:,}"


def main() -> int:
    """Consume; returns the exit status."""
    given = arguments()
    ended = threading.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: ended.set())
    client = pulsar.Client(given.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn))
    consumer = client.subscribe(
        given.topic,
        given.subscription,
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    lateness, said_at = Lateness(), time.monotonic()
    while not ended.is_set() and (given.messages == 0 or lateness.total < given.messages):
        try:
            message = consumer.receive(timeout_millis=WAIT_MS)
        except pulsar.Timeout:
            pass
        else:
            arrived_ms = time.time() * 1000
            due = message.properties().get("due-ms")
            consumer.acknowledge(message)
            if due is not None:
                lateness.note(arrived_ms - float(due))
        if time.monotonic() - said_at > SAY_EVERY_S:
            said_at = time.monotonic()
            print(lateness.line(), flush=True)
    print(lateness.line(), flush=True)
    client.close()
    return 1 if lateness.early else 0


if __name__ == "__main__":
    sys.exit(main())
