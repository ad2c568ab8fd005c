"""MESSAGE frames of the bridge are those of the broker, byte for byte."""

import pytest

from bridge.protocol.frames import Frame
from bridge.protocol.pulsar_pb2 import BaseCommand
from tests.bridge_process import BridgeProcess, now_ms
from tests.clients import admin, rest_path
from tests.cluster import PulsarCluster
from tests.raw_client import RawClient, raw_client


async def frames_of(url: str, topic: str, expected: int, **fields: int) -> list[bytes]:
    """What a consumer of a subscription of its own gets: everything once, then everything again."""
    client = await raw_client(url)
    frames: list[bytes] = []
    keep = client._on_frame

    def on_frame(frame: Frame) -> None:
        if frame.type == BaseCommand.MESSAGE:
            frames.append(bytes(frame.data))
        keep(frame)

    client._on_frame = on_frame  # type: ignore[method-assign]
    await client.consume(topic, "bridge" if fields.pop("through_bridge") else "broker", **fields)
    client.flow(1_000)
    received = [await client.message() for _ in range(expected)]
    client.redeliver(*(each.position for each in received))
    for _ in range(expected):
        await client.message()
    await client.close()
    return frames


async def publish_some(client: RawClient, topic: str) -> int:
    """Immediate, delayed and a batch; of a size that takes another byte to tell; returns how many."""
    await client.produce(topic)
    due = now_ms() - 1
    await client.publish(b"now")
    await client.publish(b"due", due, sequence_id=1)
    await client.publish(b"a batch", sequence_id=2, messages=10)
    for number in range(3, 6):
        await client.publish(bytes(200 * number), sequence_id=number)
    return 6


@pytest.mark.parametrize("partitioned", [True, False], ids=["partitioned", "one"])
async def test_the_same_bytes(bridge: BridgeProcess, pulsar: PulsarCluster, topic: str, partitioned: bool) -> None:
    """Partition, redelivery count, and no consumer epoch, which belongs to other subscription types."""
    if partitioned:
        admin(pulsar, "PUT", f"{rest_path(topic)}/partitions", 3)
        topic += "-partition-2"
    producer = await raw_client(pulsar.service_url)
    count = await publish_some(producer, topic)
    await producer.close()
    expected = await frames_of(pulsar.service_url, topic, count, through_bridge=False, consumer_epoch=5)
    found = await frames_of(bridge.service_url, topic, count, through_bridge=True, consumer_epoch=5)
    assert sorted(found) == sorted(expected)
