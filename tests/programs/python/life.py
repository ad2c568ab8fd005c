"""Checks of subscriptions: positions, seeks, ends, and what they are made of several topics."""

import re
import time
from datetime import timedelta

import pulsar

from tests.programs.python.scene import Scene, drain, drain_all, expect_quiet, numbered, same, same_texts


def seek_earliest(scene: Scene) -> None:
    consumer = scene.subscribe()
    scene.send(numbered("m", 10))
    drain(consumer, 10)
    consumer.seek(pulsar.MessageId.earliest)
    same_texts(drain(consumer, 10), numbered("m", 10), "again")
    expect_quiet(consumer)


def seek_time(scene: Scene) -> None:
    consumer = scene.subscribe()
    scene.send(numbered("before", 5))
    time.sleep(0.1)
    between_ms = int(time.time() * 1000)
    time.sleep(0.1)
    scene.send(numbered("after", 5))
    drain(consumer, 10)
    consumer.seek(between_ms)
    same_texts(drain(consumer, 5), numbered("after", 5), "again")
    expect_quiet(consumer)


def seek_id(scene: Scene) -> str:
    """Whether the message that is sought comes itself is for the broker to say."""
    consumer = scene.subscribe()
    scene.send(numbered("m", 10))
    received = {each.text: each.message for each in drain(consumer, 10)}
    consumer.seek(received["m-5"].message_id())
    again = drain(consumer, 4) + drain_all(consumer)
    return " ".join(sorted(each.text for each in again))


def seek_over_delayed(scene: Scene) -> None:
    """Back to the start while some are delayed: these come once, at their time."""
    consumer = scene.subscribe()
    scene.send(numbered("now", 5))
    due_ms = int(time.time() * 1000) + 4_000
    scene.send(numbered("later", 5), deliver_at=due_ms)
    drain(consumer, 5)
    consumer.seek(pulsar.MessageId.earliest)
    received = drain(consumer, 10)
    same_texts(received[:5], numbered("now", 5), "again")
    same_texts(received[5:], numbered("later", 5), "later")
    same(min(each.at_ms for each in received[5:]) >= due_ms - 1_000, True, "in time")
    expect_quiet(consumer)


def unsubscribe(scene: Scene) -> None:
    consumer = scene.subscribe()
    scene.send(numbered("m", 10))
    scene.send(numbered("later", 3), deliver_after=timedelta(seconds=2))
    drain(consumer, 10)
    consumer.unsubscribe()
    consumer = scene.subscribe()
    same_texts(drain(consumer, 13), numbered("m", 10) + numbered("later", 3), "again")
    expect_quiet(consumer)


def initial_position(scene: Scene) -> None:
    scene.send(numbered("old", 5))
    early = scene.subscribe(subscription="early")
    late = scene.subscribe(subscription="late", initial_position=pulsar.InitialPosition.Latest)
    scene.send(numbered("new", 5))
    same_texts(drain(early, 10), numbered("old", 5) + numbered("new", 5), "from earliest")
    same_texts(drain(late, 5), numbered("new", 5), "from latest")
    expect_quiet(early, late)


def partitioned(scene: Scene) -> str:
    """Whoever runs this has made the topic, with three partitions."""
    consumer = scene.subscribe()
    scene.send(numbered("now", 30))
    scene.send(numbered("later", 30), deliver_after=timedelta(seconds=1))
    received = drain(consumer, 60)
    same_texts(received, numbered("now", 30) + numbered("later", 30))
    expect_quiet(consumer)
    return " ".join(sorted({each.message.topic_name()[-12:] for each in received}))


def _two_topics(scene: Scene, topics: object) -> None:
    first, second = f"{scene.topic}-a", f"{scene.topic}-b"
    scene.send(["a-before"], first)
    scene.send(["b-before"], second)
    consumer = scene.subscribe(topics)
    scene.send(["a-later"], first, deliver_after=timedelta(seconds=1))
    scene.send(["b-after"], second)
    same_texts(drain(consumer, 4), ["a-before", "b-before", "a-later", "b-after"])
    expect_quiet(consumer)


def several_topics(scene: Scene) -> None:
    _two_topics(scene, [f"{scene.topic}-a", f"{scene.topic}-b"])


def pattern(scene: Scene) -> None:
    _two_topics(scene, re.compile(f"{re.escape(scene.topic)}-.*"))


def reader(scene: Scene) -> None:
    """Beside a subscription that the bridge dispatches."""
    consumer = scene.subscribe()
    last = None
    producer = scene.producer()
    for text in numbered("m", 10):
        last = producer.send(text.encode(), partition_key=text)
    found = scene.reader(pulsar.MessageId.earliest)
    read = []
    while found.has_message_available():
        read.append(found.read_next(10_000).data().decode())
    same(read, numbered("m", 10), "read")
    same(str(consumer.get_last_message_id()), str(last), "last message id")
