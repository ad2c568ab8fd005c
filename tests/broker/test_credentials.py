"""Credentials that run out, and are renewed, on a connection whose topics live on several brokers."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from bridge.protocol.pulsar_pb2 import BaseCommand
from tests.broker.conftest import InProcessFactory
from tests.cluster import PulsarCluster
from tests.helpers import wait_until_async
from tests.raw_client import RawClient, raw_client
from tests.relay import Relay
from tests.secured import NAMESPACE, some_topic_of, token_of

SHORT_S = 3
"""A token for so long; the broker looks once a second."""


class Scene(NamedTuple):
    """A bridge, and what it takes for three brokers, with a topic on each."""

    url: str
    relays: list[Relay]
    topics: list[str]


@pytest_asyncio.fixture
async def scene(bridge_here: InProcessFactory, secured: PulsarCluster) -> AsyncIterator[Scene]:
    topics = [some_topic_of(NAMESPACE) for _ in range(3)]
    homes: dict[str, str] = {}
    async with (
        Relay(secured.service_url, homes) as first,
        Relay(secured.service_url) as second,
        Relay(secured.service_url) as third,
    ):
        relays = [first, second, third]
        homes.update({topic: relay.url for topic, relay in zip(topics, relays, strict=True)})
        bridge = await bridge_here(PulsarCluster(first.url, secured.web_url), broker_token=token_of("bridge"))
        yield Scene(bridge.advertised_url, relays, topics)


async def short_lived(scene: Scene) -> tuple[RawClient, str]:
    """A client with a token that soon runs out, with a consumer at the second broker."""
    token = token_of("admin", exp=int(time.time()) + SHORT_S)
    client = await raw_client(scene.url, handshake=False)
    await client.handshake(auth_method_name="token", auth_data=token.encode(), refreshes=True)
    await client.consume(scene.topics[1])
    client.flow(100)
    await client.produce(scene.topics[1])
    await client.publish(b"before")
    assert (await client.message()).payload == b"before"
    return client, token


async def test_new_credentials_reach_every_broker(scene: Scene) -> None:
    """Those that asked for them, and those that come later."""
    client, old = await short_lived(scene)
    new = token_of("admin", exp=int(time.time()) + 3_600)
    first, second, third = scene.relays

    async def answer() -> bool:
        for challenge in [each for each in client.events if each.type == BaseCommand.AUTH_CHALLENGE]:
            client.events.remove(challenge)
            assert challenge.authChallenge.challenge.auth_data == b"PulsarAuthRefresh"
            response = BaseCommand(type=BaseCommand.AUTH_RESPONSE)
            response.authResponse.response.auth_method_name = "token"
            response.authResponse.response.auth_data = new.encode()
            client.send(response)
        return all(new.encode() in relay.said for relay in (first, second))

    assert all(old.encode() in relay.said for relay in (first, second))
    await wait_until_async(answer, "both brokers have the new token")
    with pytest.raises(TimeoutError):
        await client.closed_by_peer(2.5)  # a broker closes a second after a challenge that is not answered
    await client.consume(scene.topics[2], consumer_id=3)
    client.flow(1, consumer_id=3)
    await client.produce(scene.topics[2], producer_id=3)
    await client.publish(b"after", producer_id=3)
    assert (await client.message()).payload == b"after"
    assert new.encode() in third.said
    assert old.encode() not in third.said
    await client.close()


@pytest.mark.parametrize("refreshes", [True, False], ids=["challenged", "not-able"])
async def test_credentials_that_ran_out_end_what_they_opened(scene: Scene, refreshes: bool) -> None:
    """Delivery by the bridge included, however busy the connection is."""
    expires_s = int(time.time()) + SHORT_S
    token = token_of("admin", exp=expires_s)
    client = await raw_client(scene.url, handshake=False)
    await client.handshake(auth_method_name="token", auth_data=token.encode(), refreshes=refreshes)
    other = await raw_client(scene.url, handshake=False)
    await other.handshake(auth_method_name="token", auth_data=token_of("admin").encode())
    await client.consume(scene.topics[1])
    client.flow(1_000_000)
    await other.produce(scene.topics[1])
    number = 0
    while not client.lost.done():
        await other.publish(b"x", sequence_id=number)
        number += 1
        await asyncio.sleep(0.02)
        assert time.time() < expires_s + 10
    assert time.time() > expires_s - 0.5
    received = client.messages.qsize()
    assert 0 < received <= number
    await other.close()
