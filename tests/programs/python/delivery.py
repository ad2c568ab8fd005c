"""Checks of what is delivered, when, to whom, and how often."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pulsar

from tests.programs.python.scene import (
    PATIENCE_MS,
    Failed,
    Received,
    Scene,
    counts,
    drain,
    drain_all,
    expect_quiet,
    numbered,
    receive,
    same,
    same_texts,
)

TICK_MS = 1_000
"""How much too early the broker's own tracker may be."""


def immediate(scene: Scene) -> None:
    consumer = scene.subscribe()
    scene.send(numbered("now", 20))
    same_texts(drain(consumer, 20), numbered("now", 20))
    expect_quiet(consumer)


def _delayed(scene: Scene, early_ms: float) -> None:
    """Each once, the immediate ones first, and none of the others more than `early_ms` before its time."""
    consumer, producer = scene.subscribe(), scene.producer()
    due_ms = dict.fromkeys(numbered("now", 5), 0.0)
    for text in numbered("after", 5):
        due_ms[text] = int(time.time() * 1000) + 4000
        producer.send(text.encode(), partition_key=text, deliver_after=timedelta(milliseconds=4000))
    at_ms = int(time.time() * 1000) + 5000
    for text in numbered("at", 5):
        due_ms[text] = at_ms
        producer.send(text.encode(), partition_key=text, deliver_at=at_ms)
    scene.send(numbered("now", 5))
    received = drain(consumer, 15)
    same_texts(received, due_ms)
    same_texts(received[:5], numbered("now", 5), "first")
    early = {each.text: round(each.at_ms - due_ms[each.text]) for each in received[5:]}
    if min(early.values()) < -early_ms:
        raise Failed(f"before their time, in ms: {early}")
    expect_quiet(consumer)


def delayed(scene: Scene) -> None:
    _delayed(scene, TICK_MS)


def never_early(scene: Scene) -> None:
    _delayed(scene, 0)


def delayed_backlog(scene: Scene) -> None:
    """A consumer that comes when all is due already."""
    scene.subscribe().close()
    scene.send(numbered("later", 20), deliver_after=timedelta(milliseconds=300))
    scene.send(numbered("now", 20))
    time.sleep(0.4)
    consumer = scene.subscribe()
    same_texts(drain(consumer, 40), numbered("later", 20) + numbered("now", 20))
    expect_quiet(consumer)


def batches(scene: Scene) -> str:
    consumer = scene.subscribe()
    producer = scene.producer(batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for batch in range(3):
        for number in range(10):
            producer.send_async(f"{batch}-{number}".encode(), None, partition_key=f"key-{batch}")
        producer.flush()
    received = drain(consumer, 30)
    same_texts(received, [f"{batch}-{number}" for batch in range(3) for number in range(10)])
    entries = {(each.message.message_id().ledger_id(), each.message.message_id().entry_id()) for each in received}
    consumer.close()
    expect_quiet(scene.subscribe())
    return f"{len(entries)} entries"


def spread(scene: Scene) -> None:
    """Several consumers: each message to one of them, and each of them has some."""
    consumers = [scene.subscribe(receiver_queue_size=5) for _ in range(3)]
    scene.send(numbered("m", 90))
    received: list[list[Received]] = [[], [], []]
    while sum(map(len, received)) < 90:
        before = sum(map(len, received))
        for consumer, mine in zip(consumers, received, strict=True):
            mine.extend(drain_all(consumer, 100))
        same(before < sum(map(len, received)), True, f"more after {before}")
    same_texts(itertools.chain(*received), numbered("m", 90))
    same([bool(mine) for mine in received], [True] * 3, "who had some")


def negative_ack(scene: Scene) -> str:
    """Refused twice: immediate messages and delayed ones."""
    consumer = scene.subscribe()
    scene.send(numbered("now", 2))
    scene.send(numbered("later", 2), deliver_after=timedelta(seconds=1))
    received = []
    for _ in range(4 * 3):
        [each] = drain(consumer, 1, ack=False)
        received.append(each)
        (consumer.acknowledge if each.redelivered == 2 else consumer.negative_acknowledge)(each.message)
    expect_quiet(consumer)
    return counts(received)


def ack_timeout(scene: Scene) -> str:
    """The client's shortest is ten seconds."""
    consumer = scene.subscribe(unacked_messages_timeout_ms=10_000)
    scene.send(["forgotten"])
    received = [*drain(consumer, 1, ack=False), *drain(consumer, 1)]
    expect_quiet(consumer)
    return counts(received)


def zero_queue(scene: Scene) -> None:
    """One message at a time: asked for when the one before is done."""
    consumer = scene.subscribe(receiver_queue_size=0)
    scene.send(numbered("now", 3))
    scene.send(numbered("later", 3), deliver_after=timedelta(seconds=1))
    found = []
    # This client allows no time limit here; what waits in vain ends when the scene closes the consumer.
    waiting = ThreadPoolExecutor(1)
    for _ in range(6):
        message = waiting.submit(consumer.receive).result(PATIENCE_MS / 1000)
        consumer.acknowledge(message)
        found.append(message.data().decode())
    waiting.shutdown()
    same(sorted(found), sorted(numbered("now", 3) + numbered("later", 3)), "received")


def dead_letter(scene: Scene) -> str:
    dead = scene.subscribe(f"{scene.topic}-dead", "undertaker")
    policy = pulsar.ConsumerDeadLetterPolicy(2, f"{scene.topic}-dead", "kept")
    consumer = scene.subscribe(dead_letter_policy=policy)
    scene.send(["good-0", "good-1", "bad-0"])
    scene.send(["good-2", "bad-1"], deliver_after=timedelta(seconds=1))
    received = []
    for _ in range(3 + 2 * 3):
        [each] = drain(consumer, 1, ack=False)
        received.append(each)
        (consumer.negative_acknowledge if each.text.startswith("bad") else consumer.acknowledge)(each.message)
    same_texts(drain(dead, 2), ["bad-0", "bad-1"], "dead")
    expect_quiet(consumer, dead)
    return counts(received)


def left_without_acks(scene: Scene) -> str:
    """What a consumer had and did not ack goes to the next one."""
    first = scene.subscribe(consumer_name="first")
    scene.send(numbered("m", 10))
    drain(first, 10, ack=False)
    second = scene.subscribe(consumer_name="second")
    first.close()
    received = drain(second, 10)
    expect_quiet(second)
    return counts(received)


def order_by_key(scene: Scene) -> None:
    """Key_Shared: each key's messages in their order, all at one consumer."""
    consumers = [scene.subscribe(receiver_queue_size=10) for _ in range(3)]
    producer = scene.producer()
    for number in range(200):
        producer.send_async(f"{number % 20}:{number}".encode(), None, partition_key=f"key-{number % 20}")
    producer.flush()
    order: dict[str, list[int]] = {}
    at: dict[str, set[int]] = {}
    count = 0
    while count < 200:
        before = count
        for index, consumer in enumerate(consumers):
            for each in drain_all(consumer, 100):
                key, _, place = each.text.partition(":")
                order.setdefault(key, []).append(int(place))
                at.setdefault(key, set()).add(index)
                count += 1
        same(before < count, True, f"more after {before}")
    same({key: sorted(numbers) for key, numbers in order.items()}, order, "order")
    same(max(map(len, at.values())), 1, "consumers of one key")


def close_under_load(scene: Scene) -> None:
    """A consumer leaves while messages flow: all are received by one or the other."""
    leaving, staying = scene.subscribe(receiver_queue_size=20), scene.subscribe(receiver_queue_size=20)
    producer = scene.producer()
    for number in range(400):
        producer.send_async(f"m-{number}".encode(), None, partition_key=f"m-{number}")
    received = {receive(leaving).text for _ in range(50)}
    leaving.close()
    producer.flush()
    received.update(each.text for each in drain_all(staying, 3_000))
    same(sorted(received), sorted(numbered("m", 400)), "received by both")
