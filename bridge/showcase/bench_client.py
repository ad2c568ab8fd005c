"""One workload with the official Python client, in a process of its own; prints its figures as JSON.

The same code runs against the broker and against the bridge: only the service URL differs.
"""

import argparse
import json
import random
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pulsar

from bridge.showcase.side_by_side import DUE


def delayed(
    client: Any, messages: int, lead_s: float, spread_s: float, kind: str = "Shared", keys: int = 0
) -> dict[str, float]:
    """Publish `messages` due at one instant (spread 0) or at random over `spread_s`, of so many keys; consume them."""
    consumer, producer = _both(client, kind)
    start = time.time() + lead_s
    generator = random.Random(7)
    due = [int((start + generator.uniform(0, spread_s)) * 1000) for _ in range(messages)]
    sending = _Sending()
    for number, deliver_at in enumerate(due):
        key = {"partition_key": f"key-{number % keys}"} if keys else {}
        producer.send_async(str(number).encode(), sending.begun(), deliver_at=deliver_at, **key)
    producer.flush()
    slack = min(due) / 1000 - time.time()
    if slack >= 0:
        threading.Timer(slack, print, [DUE], {"flush": True}).start()
    else:
        raise SystemExit(f"publishing took {-slack:.1f} s longer than the lead of {lead_s} s: give a longer one")
    received: list[tuple[int, float]] = []
    for _ in range(messages):
        message = consumer.receive(timeout_millis=60_000)
        received.append((int(message.data()), time.time() * 1000))
        consumer.acknowledge(message)
    lateness = sorted(at - due[number] for number, at in received)
    first, last = received[0][1], received[-1][1]
    return {
        "early": sum(1 for late in lateness if late < 0),
        "lost": messages - len({number for number, _ in received}),
        "rate": messages / max((last - first) / 1000, 1e-9),
        **{name: round(_percentile(lateness, share), 1) for name, share in _SHARES.items()},
        "send_p99_ms": round(_percentile(sorted(sending.took_ms), 0.99), 1),
        "client_us": round(time.process_time() * 1e6 / messages, 1),
    }


def _both(client: Any, kind: str) -> tuple[Any, Any]:
    """A consumer and a producer of a topic of their own."""
    topic = f"bench-{uuid.uuid4().hex[:12]}"
    consumer = client.subscribe(topic, "bench", consumer_type=getattr(pulsar.ConsumerType, kind))
    return consumer, client.create_producer(topic, block_if_queue_full=True, max_pending_messages=5000)


_SHARES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "p9999_ms": 0.9999, "max_ms": 1.0}


class _Sending:
    """How long it took until each message was stored, with what the client waited for room included."""

    def __init__(self) -> None:
        self.took_ms: list[float] = []

    def begun(self) -> Callable[[Any, Any], None]:
        began = time.monotonic()

        def ended(result: Any, message_id: Any) -> None:
            must_succeed(result, message_id)
            self.took_ms.append((time.monotonic() - began) * 1000)

        return ended


def throughput(client: Any, messages: int, size: int, kind: str) -> dict[str, float]:
    """No delay at all: publish `messages` of `size` bytes, then consume them."""
    consumer, producer = _both(client, kind)
    payload = b"x" * size
    started = time.time()
    for _ in range(messages):
        producer.send_async(payload, must_succeed)
    producer.flush()
    produced = time.time()
    for _ in range(messages):
        consumer.acknowledge(consumer.receive(timeout_millis=60_000))
    consumed = time.time()
    return {
        "produce": messages / (produced - started),
        "consume": messages / (consumed - produced),
        "both": messages / (consumed - started),
    }


def _percentile(ascending: list[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(len(ascending) * share))]


def must_succeed(result: Any, _: Any) -> None:
    """For `send_async`: a benchmark whose messages are not stored measures nothing."""
    if result != pulsar.Result.Ok:
        raise SystemExit(f"publishing failed: {result}")


def main() -> None:
    """Run one workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=["burst", "spread", "throughput"])
    parser.add_argument("--service-url", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--lead", type=float, default=15.0)
    parser.add_argument("--spread", type=float, default=20.0)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--kind", default="Shared")
    parser.add_argument("--keys", type=int, default=0)
    parser.add_argument("--trust", help="file with the authorities of a service URL with TLS")
    given = parser.parse_args()
    trust = {"tls_trust_certs_file_path": given.trust} if given.trust else {}
    client = pulsar.Client(given.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **trust)
    if given.workload == "throughput":
        figures = throughput(client, given.messages, given.size, given.kind)
    else:
        spread = given.spread if given.workload == "spread" else 0.0
        figures = delayed(client, given.messages, given.lead, spread, given.kind, given.keys)
    client.close()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
