"""Checks of what is in messages, and how it travels."""

import os

import pulsar
from pulsar.schema import Integer, JsonSchema, Record, String

from tests.programs.python.scene import Failed, Scene, drain, drain_all, expect_quiet, receive, same


class Order(Record):  # type: ignore[misc]
    item = String()
    count = Integer()


def schema(scene: Scene) -> None:
    consumer = scene.subscribe(schema=JsonSchema(Order))
    scene.producer(schema=JsonSchema(Order)).send(Order(item="tea", count=3), partition_key="k")
    value = receive(consumer).message.value()
    same((value.item, value.count), ("tea", 3), "value")


def metadata(scene: Scene) -> None:
    consumer = scene.subscribe()
    scene.producer(producer_name=f"{scene.topic[-30:]}-maker").send(
        b"x", {"one": "1", "two": "zwei"}, "key", ordering_key="order", sequence_id=77, event_timestamp=1_234_567
    )
    found = receive(consumer).message
    same(found.properties(), {"one": "1", "two": "zwei"}, "properties")
    same((found.partition_key(), found.ordering_key(), found.event_timestamp()), ("key", "order", 1_234_567), "told")
    if hasattr(found, "producer_name"):  # clients of 3.6 have none
        same(found.producer_name(), f"{scene.topic[-30:]}-maker", "producer")
    same(found.topic_name(), scene.topic, "topic")


def empty(scene: Scene) -> str:
    """No payload at all; a null value where the client can send one."""
    consumer = scene.subscribe()
    producer = scene.producer()
    producer.send(b"", partition_key="k")
    same(receive(consumer).text, "", "payload")
    if not hasattr(pulsar.Message, "has_null_value"):
        return "no null values"
    producer.send(None, partition_key="k")
    return f"null value: {receive(consumer).message.has_null_value()}"


def compression(scene: Scene) -> None:
    consumer = scene.subscribe()
    kind = pulsar.CompressionType
    for each in (kind.LZ4, kind.ZLib, kind.ZSTD, kind.SNAPPY):
        text = f"{each} " * 1000
        scene.producer(compression_type=each).send(text.encode(), partition_key="k")
        same(receive(consumer).text, text, str(each))


def chunks(scene: Scene) -> None:
    """Larger than what a message may be."""
    consumer = scene.subscribe()
    content = os.urandom(6_000_000)
    scene.producer(chunking_enabled=True).send(content, partition_key="k")
    if receive(consumer).message.data() != content:
        raise Failed("other content")
    expect_quiet(consumer)


def batch_index_acks(scene: Scene) -> str:
    """Half of a batch is acked, the consumer leaves: whether the rest alone comes again is for the broker to say."""
    consumer = scene.subscribe(batch_index_ack_enabled=True)
    producer = scene.producer(batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for number in range(10):
        producer.send_async(f"m-{number}".encode(), None, partition_key="k")
    producer.flush()
    for each in drain(consumer, 10, ack=False):
        if int(each.text[2:]) < 5:
            consumer.acknowledge(each.message)
    consumer.close()
    consumer = scene.subscribe(batch_index_ack_enabled=True)
    rest = drain(consumer, 5)
    return " ".join(sorted(each.text for each in rest + drain_all(consumer)))
