"""Cumulative acks in transactions on Exclusive and Failover subscriptions: at the broker, and through the bridge."""

from collections.abc import Iterator

import pytest

from bridge.protocol.pulsar_pb2 import CommandSubscribe
from tests.bridge_process import BridgeProcess, now_ms
from tests.cluster import PulsarCluster
from tests.raw_client import raw_client
from tests.single_active import NAMES, TYPES, ack_up_to, acked_up_to, join, places, publish_all, silent
from tests.transactions import Place, abort, begin, commit, connect_coordinator


@pytest.fixture(scope="module")
def delaying(configured_broker: PulsarCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeProcess]:
    folder = tmp_path_factory.mktemp("delaying")
    process = BridgeProcess(configured_broker, folder, delays_on_exclusive="public/default").start()
    yield process
    process.stop()


@pytest.fixture(params=["broker", "bridge"])
def url(request: pytest.FixtureRequest, configured_broker: PulsarCluster) -> str:
    """Where clients connect to: what passes at the one must pass at the other."""
    if request.param == "broker":
        return configured_broker.service_url
    return str(request.getfixturevalue("delaying").service_url)


@pytest.fixture(params=TYPES, ids=NAMES)
def kind(request: pytest.FixtureRequest) -> CommandSubscribe.SubType:
    return request.param  # type: ignore[no-any-return]


async def test_committed(
    url: str, configured_broker: PulsarCluster, kind: CommandSubscribe.SubType, topic: str
) -> None:
    client = await raw_client(url)
    await connect_coordinator(client)
    await join(client, topic, kind)
    stored = await publish_all(client, topic, 6)
    assert await places(client, 6) == stored
    transaction = await begin(client, topic)
    await ack_up_to(client, stored[1], transaction=transaction)
    await ack_up_to(client, stored[3], transaction=transaction)
    await commit(client, transaction)
    await acked_up_to(configured_broker, topic, stored[3])
    client.redeliver()
    assert await places(client, 2) == stored[4:]
    await silent(client)


async def test_aborted(url: str, configured_broker: PulsarCluster, kind: CommandSubscribe.SubType, topic: str) -> None:
    client = await raw_client(url)
    await connect_coordinator(client)
    await join(client, topic, kind)
    stored = await publish_all(client, topic, 6)
    assert await places(client, 6) == stored
    transaction = await begin(client, topic)
    await ack_up_to(client, stored[3], transaction=transaction)
    await abort(client, transaction)
    again: list[Place] = []
    while not set(stored) <= set(again):  # some come by the abort, all by being asked for
        client.redeliver()
        again += await places(client, 6)
    await ack_up_to(client, stored[5])
    await acked_up_to(configured_broker, topic, stored[5])


async def test_what_waits_is_not_acked(
    delaying: BridgeProcess, configured_broker: PulsarCluster, kind: CommandSubscribe.SubType, topic: str
) -> None:
    client = await raw_client(delaying.service_url)
    await connect_coordinator(client)
    await join(client, topic, kind)
    stored = await publish_all(client, topic, 1)
    due = now_ms() + 2_000
    waits = await client.publish(b"x", due, sequence_id=1)
    stored += await publish_all(client, topic, 2, 2)
    assert await places(client, 3) == stored
    transaction = await begin(client, topic)
    await ack_up_to(client, stored[2], transaction=transaction)
    await commit(client, transaction)
    ranges = f"[({waits[0]}:{waits[1]}..{stored[2][0]}:{stored[2][1]}]]"
    await acked_up_to(configured_broker, topic, stored[0], ranges)
    assert await places(client, 1) == [waits]
    assert now_ms() >= due
    client.ack(waits)
    await acked_up_to(configured_broker, topic, stored[2])
