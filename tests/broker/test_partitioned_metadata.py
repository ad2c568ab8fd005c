"""Asking for a topic's partitions without making it: announced and served as by the broker.

Java clients need it to choose the names of retry and dead-letter topics, see `test_java_tools.py`.
"""

import pytest

from bridge.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandPartitionedTopicMetadataResponse,
    FeatureFlags,
    ServerError,
)
from tests.bridge_process import BridgeProcess
from tests.clients import admin
from tests.cluster import PulsarCluster
from tests.raw_client import RawClient, raw_client


async def flags_of(url: str) -> FeatureFlags:
    client = await raw_client(url, handshake=False)
    connected = (await client.handshake()).connected
    await client.close()
    return connected.feature_flags


async def partitions_of(client: RawClient, topic: str, create: bool) -> CommandPartitionedTopicMetadataResponse:
    command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA)
    command.partitionMetadata.topic = topic
    command.partitionMetadata.request_id = request_id = client.next_request_id()
    command.partitionMetadata.metadata_auto_creation_enabled = create
    return (await client.request(command, request_id)).partitionMetadataResponse


async def test_the_flags_of_the_broker(bridge: BridgeProcess, pulsar: PulsarCluster) -> None:
    """Those that the gateway knows; what others may ask of it, it does not serve."""
    flags = await flags_of(pulsar.service_url)
    assert flags.supports_get_partitioned_metadata_without_auto_creation
    flags.DiscardUnknownFields()
    assert (await flags_of(bridge.service_url)).SerializeToString() == flags.SerializeToString()


@pytest.mark.parametrize("through", ["bridge", "broker"])
async def test_nothing_is_made_by_asking(
    through: str, bridge: BridgeProcess, pulsar: PulsarCluster, topic: str
) -> None:
    """In a namespace where topics come into being with two partitions."""
    namespace = f"public/{topic.rpartition('/')[2]}"
    admin(pulsar, "PUT", f"namespaces/{namespace}", {"replication_clusters": ["standalone"]})
    policy = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}
    admin(pulsar, "POST", f"namespaces/{namespace}/autoTopicCreation", policy)
    client = await raw_client(bridge.service_url if through == "bridge" else pulsar.service_url)
    there_is_none = await partitions_of(client, f"persistent://{namespace}/t", create=False)
    assert there_is_none.error == ServerError.TopicNotFound
    assert admin(pulsar, "GET", f"persistent/{namespace}/partitioned") == []
    assert (await partitions_of(client, f"persistent://{namespace}/t", create=True)).partitions == 2
    assert (await partitions_of(client, f"persistent://{namespace}/t", create=False)).partitions == 2
    await client.close()
