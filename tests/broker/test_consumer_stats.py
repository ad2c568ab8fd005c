"""What a client is told of its own consumer: the same at the broker and through the bridge."""

import pytest

from bridge.protocol.pulsar_pb2 import BaseCommand, CommandConsumerStatsResponse
from tests.cluster import PulsarCluster
from tests.helpers import wait_until_async
from tests.raw_client import raw_client


@pytest.fixture(params=["broker", "bridge"])
def url(request: pytest.FixtureRequest, pulsar: PulsarCluster) -> str:
    """Where the client connects to."""
    return str(pulsar.service_url if request.param == "broker" else request.getfixturevalue("bridge").service_url)


async def test_a_consumer_asks_for_its_stats(url: str, topic: str) -> None:
    """Of its own, as `getBrokerConsumerStats` of the client in C++ does."""
    client = await raw_client(url)
    await client.consume(topic)
    client.flow(10)
    await client.produce(topic)
    for number in range(4):
        await client.publish(b"x", sequence_id=number)
    got = [await client.message() for _ in range(4)]
    client.ack(got[0].position)

    async def told() -> CommandConsumerStatsResponse:
        command = BaseCommand(type=BaseCommand.CONSUMER_STATS)
        command.consumerStats.consumer_id = 1
        command.consumerStats.request_id = request_id = client.next_request_id()
        return (await client.request(command, request_id)).consumerStatsResponse

    async def counted() -> bool:
        return (await told()).unackedMessages == 3

    await wait_until_async(counted, "the ack is counted")
    answer = await told()
    assert (answer.availablePermits, answer.blockedConsumerOnUnackedMsgs, answer.type) == (6, False, "Shared")
    assert answer.address.startswith("/127.0.0.1:")
    await client.close()
