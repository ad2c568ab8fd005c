"""Who loses a permission while messages come gets no more, as soon as at the broker; so does whose token ends."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bridge.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe, ServerError
from tests.bridge_process import BridgeProcess, now_ms
from tests.clients import rest_path
from tests.cluster import PulsarCluster
from tests.helpers import NotInTimeError, wait_until_async
from tests.raw_client import RawClient, raw_client
from tests.secured import NAMESPACE, allow, call, disallow, done, forged_token_of, some_topic_of, token_of

EVERY_S = 0.02
DELAY_MS = 300
LARGE = 64 * 1024
SHORT_S = 3
"""A token for so long; the broker looks once a second."""


@pytest.fixture(scope="module")
def door(secured: PulsarCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeProcess]:
    """A bridge whose own role may do all, and which dispatches subscriptions of every type."""
    folder, token = tmp_path_factory.mktemp("taken"), token_of("admin")
    process = BridgeProcess(secured, folder, broker_token=token, delays_on_exclusive=NAMESPACE).start()
    yield process
    process.stop()


def some_role() -> str:
    return f"r-{uuid.uuid4().hex[:6]}"


async def client_of(url: str, token: str, *, refreshes: bool = False) -> RawClient:
    client = await raw_client(url, handshake=False)
    answer = await client.handshake(auth_method_name="token", auth_data=token.encode(), refreshes=refreshes)
    assert answer.type == BaseCommand.CONNECTED, answer
    return client


class Traffic:
    """A message without a delay every now and then, and one with; by a super user, past the bridge."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sent = 0

    @contextlib.asynccontextmanager
    async def flowing(self, url: str) -> AsyncIterator["Traffic"]:
        client = await client_of(url, token_of("admin"))
        await client.produce(self.topic)
        task = asyncio.create_task(self._publish(client))
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await client.close()

    async def _publish(self, client: RawClient) -> None:
        while True:
            for at in (None, now_ms() + DELAY_MS):
                await client.publish(b"x", at, sequence_id=self.sent)
                self.sent += 1
            await asyncio.sleep(EVERY_S)

    async def more(self, seconds: float = 1.0) -> None:
        """Until the delayed ones of now, and many others, would have come."""
        sent, until = self.sent, time.monotonic() + seconds
        await wait_until_async(lambda: self.sent > sent + 20 and time.monotonic() > until, "more was sent")


Change = Callable[[Any, str, str, str], None]


class Way(NamedTuple):
    """To allow a role to consume, and to take that away: with the broker, the role, the topic and the subscription."""

    give: Change
    take: Change


def _give_all(broker: Any, role: str, topic: str, subscription: str) -> None:
    allow(broker, role, "consume")


def _take_all(broker: Any, role: str, topic: str, subscription: str) -> None:
    disallow(broker, role)


def _give_topic(broker: Any, role: str, topic: str, subscription: str) -> None:
    allow(broker, role, "consume", where=rest_path(topic))


def _take_topic(broker: Any, role: str, topic: str, subscription: str) -> None:
    disallow(broker, role, where=rest_path(topic))


def _give_subscription(broker: Any, role: str, topic: str, subscription: str) -> None:
    allow(broker, role, "consume")
    done(broker, "POST", f"namespaces/{NAMESPACE}/permissions/subscription/{subscription}", [role])


def _take_subscription(broker: Any, role: str, topic: str, subscription: str) -> None:
    done(broker, "POST", f"namespaces/{NAMESPACE}/permissions/subscription/{subscription}", ["somebody"])


WAYS = {
    "namespace": Way(_give_all, _take_all),
    "topic": Way(_give_topic, _take_topic),
    "subscription": Way(_give_subscription, _take_subscription),
}


async def taken_away(broker: Any, url: str, way: Way, **fields: Any) -> float:
    """Seconds from when the broker has taken the permission away until it is felt; nothing comes after that."""
    topic, role, subscription = some_topic_of(NAMESPACE), some_role(), f"s-{uuid.uuid4().hex[:6]}"
    await asyncio.to_thread(done, broker, "PUT", rest_path(topic))
    await asyncio.to_thread(way.give, broker, role, topic, subscription)
    client = await client_of(url, token_of(role))
    async with Traffic(topic).flowing(broker.service_url) as traffic:
        await client.consume(topic, subscription, **fields)
        client.flow(1_000_000)
        await wait_until_async(lambda: client.messages.qsize() > 50, "messages")
        await asyncio.to_thread(way.take, broker, role, topic, subscription)
        began = time.monotonic()
        await client.event(BaseCommand.CLOSE_CONSUMER)
        felt, received = time.monotonic() - began, client.messages.qsize()
        client.flow(1_000_000)
        again = await client.subscribe(topic, subscription, consumer_id=2, **fields)
        assert again.error.error == ServerError.AuthorizationError
        client.flow(1_000_000, consumer_id=2)
        await traffic.more()
        assert client.messages.qsize() == received
    await client.close()
    return felt


KINDS = CommandSubscribe.SubType.values()


@pytest.mark.parametrize("kind", KINDS, ids=CommandSubscribe.SubType.Name)
@pytest.mark.parametrize("way", WAYS)
async def test_a_permission_taken_away(
    secured: PulsarCluster, door: BridgeProcess, way: str, kind: CommandSubscribe.SubType
) -> None:
    """The broker closes the consumer by itself, within tenths of a second."""
    urls = (secured.service_url, door.service_url)
    felt = await asyncio.gather(*(taken_away(secured, url, WAYS[way], subType=kind) for url in urls))
    assert felt[1] < felt[0] + 5


def stats_of(broker: Any, topic: str) -> Any:
    """What the broker says of the subscription `s`."""
    return call(broker.web_url, "GET", f"{rest_path(topic)}/stats", "admin")[1]["subscriptions"]["s"]


class Flood:
    """Large messages, until a client that does not read is sent no more of them."""

    def __init__(self, producer: RawClient, sent: Callable[[], int]) -> None:
        """`sent`: how many the client was sent so far, wherever they are now."""
        self._producer = producer
        self._sent = sent
        self._number = 0

    async def publish(self, payload: bytes, times: int) -> None:
        for _ in range(times):
            await self._producer.publish(payload, sequence_id=self._number)
            self._number += 1

    async def until_full(self) -> None:
        async def stalled() -> bool:
            await self.publish(b"x" * LARGE, 16)
            with contextlib.suppress(NotInTimeError):
                await wait_until_async(lambda: asyncio.to_thread(self._all_sent), timeout=1.0)
                return False
            return True

        await wait_until_async(stalled, "the client's connection is full", timeout=30)

    def _all_sent(self) -> bool:
        return self._sent() == self._number


@pytest.mark.parametrize("what", ["a permission", "a token"])
@pytest.mark.parametrize("where", ["broker", "bridge"])
async def test_who_does_not_read_while_it_ends(
    secured: PulsarCluster, door: BridgeProcess, where: str, what: str
) -> None:
    """What the broker says of it waits behind what the client does not read; nothing new goes out before."""
    url = door.service_url if where == "bridge" else secured.service_url
    topic, role = some_topic_of(NAMESPACE), some_role()
    await asyncio.to_thread(done, secured, "PUT", rest_path(topic))
    await asyncio.to_thread(WAYS["topic"].give, secured, role, topic, "s")
    token = token_of(role) if what == "a permission" else token_of(role, exp=int(time.time()) + 2 * SHORT_S)
    producer, client = await client_of(url, token_of("admin")), await client_of(url, token)
    await producer.produce(topic)
    await client.consume(topic)
    client.flow(1_000_000)
    client.transport.pause_reading()

    def sent() -> int:
        return sent_by(door, topic) if where == "bridge" else int(stats_of(secured, topic)["msgOutCounter"])

    async def let_go() -> bool:
        return not (await asyncio.to_thread(stats_of, secured, topic))["consumers"]

    flood = Flood(producer, sent)
    await flood.until_full()
    if what == "a permission":
        await asyncio.to_thread(WAYS["topic"].take, secured, role, topic, "s")
    await wait_until_async(let_go, "the broker let it go", timeout=20)
    await flood.publish(b"secret", 10)
    client.transport.resume_reading()
    await (client.event(BaseCommand.CLOSE_CONSUMER) if what == "a permission" else client.closed_by_peer())
    with pytest.raises(NotInTimeError):
        await wait_until_async(lambda: b"secret" in payloads(client), timeout=1.0)
    await client.close()
    await producer.close()


def sent_by(door: BridgeProcess, topic: str) -> int:
    return int(door.stats(topic)["subscriptions"]["s"]["delivered"])


def payloads(client: RawClient) -> set[bytes]:
    """Of what came since."""
    found = set()
    while not client.messages.empty():
        found.add(client.messages.get_nowait().payload)
    return found


@pytest.mark.parametrize("how", ["restart", "takeover"])
async def test_taken_away_while_no_bridge_is_there(secured: PulsarCluster, tmp_path: Path, how: str) -> None:
    """What a bridge knows of messages is nobody's permission: who comes back is asked about anew."""
    topic, role = some_topic_of(NAMESPACE), some_role()
    await asyncio.to_thread(done, secured, "PUT", rest_path(topic))
    await asyncio.to_thread(WAYS["topic"].give, secured, role, topic, "s")
    bridges = [BridgeProcess(secured, tmp_path / name, broker_token=token_of("admin")) for name in ("one", "two")]
    first, second = bridges[0], bridges[how == "takeover"]
    try:
        for bridge in {first, second}:
            await asyncio.to_thread(bridge.start)
        async with Traffic(topic).flowing(secured.service_url) as traffic:
            for token in (token_of("consumer"), token_of(role)):
                client = await client_of(first.service_url, token)
                await client.consume(topic)
                client.flow(1_000_000)
                received = client.messages.qsize
                await wait_until_async(lambda: received() > 20, "messages")  # noqa: B023 - waited for at once
            await asyncio.to_thread(first.kill)
            await asyncio.to_thread(WAYS["topic"].take, secured, role, topic, "s")
            if how == "restart":
                await asyncio.to_thread(first.start)
            other = await client_of(second.service_url, token_of(role))
            honest = await client_of(second.service_url, token_of("consumer"))
            refused = await other.subscribe(topic)
            assert refused.error.error == ServerError.AuthorizationError
            other.flow(1_000_000)
            await honest.consume(topic)
            honest.flow(1_000_000)
            await wait_until_async(lambda: honest.messages.qsize() > 100, "messages", timeout=30)
            await traffic.more()
            assert other.messages.empty()
            for client in (honest, other):
                await client.close()
    finally:
        for bridge in bridges:
            await asyncio.to_thread(bridge.stop)


ANSWERS: dict[str, Callable[[str], str | None]] = {
    "cannot be asked": lambda token: None,
    "does not answer": lambda token: None,
    "answers with the same": lambda token: token,
    "answers with a forged one": lambda token: forged_token_of("consumer"),
    "answers with another role's": lambda token: token_of("both"),
}


async def token_that_ends(broker: Any, url: str, what: str) -> float:
    """Seconds from when the token ends until the connection does; nothing comes after that."""
    topic = some_topic_of(NAMESPACE)
    await asyncio.to_thread(done, broker, "PUT", rest_path(topic))
    ends_s = int(time.time()) + SHORT_S
    token = token_of("consumer", exp=ends_s)
    client = await client_of(url, token, refreshes=what != "cannot be asked")
    async with Traffic(topic).flowing(broker.service_url):
        await client.consume(topic)
        client.flow(1_000_000)
        await wait_until_async(lambda: client.messages.qsize() > 20, "messages")
        if (new := ANSWERS[what](token)) is not None:
            await client.event(BaseCommand.AUTH_CHALLENGE)
            response = BaseCommand(type=BaseCommand.AUTH_RESPONSE)
            response.authResponse.response.auth_method_name = "token"
            response.authResponse.response.auth_data = new.encode()
            client.send(response)
        await client.closed_by_peer()
        lasted = time.time() - ends_s
    with pytest.raises(AssertionError):
        await client_of(url, token)
    return lasted


async def test_tokens_that_end(secured: PulsarCluster, door: BridgeProcess) -> None:
    """Whatever the client makes of the broker's question."""
    urls = (secured.service_url, door.service_url)
    allow(secured, "both", "produce", "consume")
    lasted = await asyncio.gather(*(token_that_ends(secured, url, what) for what in ANSWERS for url in urls))
    for what, at_broker, at_bridge in zip(ANSWERS, lasted[::2], lasted[1::2], strict=True):
        assert at_bridge < at_broker + 5, what
