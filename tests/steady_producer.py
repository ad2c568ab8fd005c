"""Publishes at a steady rate, by itself: `python -m tests.steady_producer URL TOPIC SECONDS RATE LEAD_MS`.

Text number n is the n // KEYS-th of key n % KEYS, `k17:3`. With a lead, messages are due at the next half second after
it; 0: at once. Prints how many were stored, and the seconds that took.
"""

import sys
import time

import pulsar

KEYS = 200
AT_ONCE = 2_000
"""Messages that the broker has not confirmed."""


def text_of(number: int) -> str:
    """Key and number of the key's."""
    return f"k{number % KEYS}:{number // KEYS}"


def main() -> None:
    url, topic = sys.argv[1:3]
    seconds, rate, lead_ms = map(float, sys.argv[3:6])
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn))
    producer = client.create_producer(topic, max_pending_messages=AT_ONCE, block_if_queue_full=True)
    failed: list[object] = []

    def on_sent(result: object, _: object) -> None:
        if result != pulsar.Result.Ok:
            failed.append(result)

    sent, began = 0, time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        while sent < passed * rate:
            text = text_of(sent)
            due = int((time.time() * 1_000 + lead_ms) // 500 + 1) * 500 if lead_ms else None
            producer.send_async(text.encode(), on_sent, partition_key=text.split(":")[0], deliver_at=due)
            sent += 1
        time.sleep(0.002)
    producer.flush()
    took = time.monotonic() - began
    client.close()
    if failed:
        sys.exit(f"{len(failed)} were not stored: {failed[0]}")
    print(sent, f"{took:.1f}")


if __name__ == "__main__":
    main()
