"""Clients that break the protocol: an answer as the broker's or a closed connection, a log line, no harm to others."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from bridge.app import Bridge
from bridge.config import Settings
from bridge.embedded import EmbeddedPulsar
from bridge.embedded.ports import free_ports
from bridge.limits import Limits
from bridge.net.listening import StartError
from bridge.protocol.frames import encode_frame
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandLookupTopicResponse, CommandSubscribe, ServerError
from tests.bridge_process import now_ms
from tests.broker.conftest import InProcessFactory
from tests.clients import some_topic
from tests.cluster import PulsarCluster
from tests.helpers import wait_until_async
from tests.raw_client import RawClient, raw_client
from tracker import DataDirectoryLocked

HUGE = 100 * 1024 * 1024


class Scene(NamedTuple):
    """A bridge in this process, what it logs, and the broker behind it."""

    bridge: Bridge
    logs: list[Any]
    broker: PulsarCluster

    @property
    def url(self) -> str:
        return self.bridge.advertised_url

    def lines_of(self, peer: str) -> list[dict[str, Any]]:
        return [line for line in self.logs if line.get("peer") == peer]

    async def logged(self, peer: str, *words: str) -> None:
        """There is a line that names the peer, and a reason with these words."""

        def found() -> bool:
            reasons = [str(line.get("reason")) for line in self.lines_of(peer)]
            return any(all(word in reason for word in words) for reason in reasons)

        await wait_until_async(found, f"a log line of {peer} with {words}: {self.logs}", timeout=3)

    async def gone(self, client: RawClient, *words: str) -> None:
        """The bridge closed the client's connection and said why."""
        peer = client.address
        await client.closed_by_peer()
        await self.logged(peer, *words)


@pytest_asyncio.fixture
async def scene(
    bridge_here: InProcessFactory, pulsar: PulsarCluster, request: pytest.FixtureRequest
) -> AsyncIterator[Scene]:
    """With another client at work, which must not notice anything; a parameter says which limits differ."""
    with capture_logs() as logs:
        bridge = await bridge_here(limits=getattr(request, "param", None))
        topic = some_topic("bystander")
        bystander = await raw_client(bridge.advertised_url)
        await bystander.consume(topic)
        bystander.flow(100)
        await bystander.produce(topic)
        yield Scene(bridge, logs, pulsar)
        for deliver_at in (None, now_ms() + 100):
            position = await bystander.publish(b"still there", deliver_at)
            assert (await bystander.message()).position == position
        await bystander.close()


async def outcome(client: RawClient, command: BaseCommand, request_id: int | None = None) -> str:
    """What comes of a command: its answer, `closed`, or `nothing` (up to the answer of a ping sent behind it)."""
    with contextlib.suppress(asyncio.CancelledError):
        if request_id is not None:
            return describe(await client.request(command, request_id))
        client.send(command)
        client.send(BaseCommand(type=BaseCommand.PING, ping={}))

        def answers() -> list[str]:
            return ["closed"] if client.lost.done() else [describe(each) for each in client.events]

        found = await wait_until_async(lambda: next(iter(answers()), None), "an answer", interval=0.005)
        assert found is not None
        return "nothing" if found == "PONG" else found
    return "closed"


def describe(command: BaseCommand) -> str:
    name = BaseCommand.Type.Name(command.type)
    if command.type == BaseCommand.ERROR:
        return f"{name} {ServerError.Name(command.error.error)}"
    if command.type == BaseCommand.LOOKUP_RESPONSE:
        response = command.lookupTopicResponse
        if response.response == CommandLookupTopicResponse.Failed:
            return f"{name} Failed {ServerError.Name(response.error)}"
    if command.type == BaseCommand.SEND_ERROR:
        return f"{name} {ServerError.Name(command.send_error.error)}"
    return name


# -- bytes


@pytest.mark.parametrize("connected", [False, True], ids=["before-connect", "connected"])
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "bytes"),
        (b"\x00\x00\x00\x05\x00\x00\x00\x01\x08", "short"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x04\xff\xff\xff\xff", "command"),
        (b"\x00\x00\x00\x08\x00\x00\x01\x00\x08\x02\x00\x00", "command"),
        (HUGE.to_bytes(4, "big") + b"\x00\x00\x00\x02\x08\x02", "limit"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff", "limit"),
    ],
    ids=["http", "too-short", "unreadable", "sizes-contradict", "oversized", "all-ones"],
)
async def test_garbage(scene: Scene, connected: bool, data: bytes, reason: str) -> None:
    client = await raw_client(scene.url, handshake=connected)
    client.send_bytes(data)
    await scene.gone(client, reason)


async def test_no_room_for_payloads_before_connect(scene: Scene) -> None:
    client = await raw_client(scene.url, handshake=False)
    client.send_bytes((1024 * 1024).to_bytes(4, "big"))
    await scene.gone(client, "limit")


async def test_truncated_frame_then_closed(scene: Scene) -> None:
    client = await raw_client(scene.url)
    before = scene.bridge.gateway.connections if scene.bridge.gateway else 0
    client.send_bytes(b"\x00\x00\x10\x00\x00\x00\x00\x10\x08\x06")
    peer = client.address
    await client.close()
    assert scene.bridge.gateway is not None
    gateway = scene.bridge.gateway
    await wait_until_async(lambda: gateway.connections == before - 1, "session gone")
    await scene.logged(peer, "frame")


async def test_frames_in_single_bytes(scene: Scene) -> None:
    """Slow is not wrong."""
    client = await raw_client(scene.url, handshake=False)
    command = BaseCommand(type=BaseCommand.CONNECT)
    command.connect.client_version = "slow"
    command.connect.protocol_version = 21
    for byte in encode_frame(command):
        client.send_bytes(bytes((byte,)))
        await asyncio.sleep(0)
    assert (await client.event(BaseCommand.CONNECTED)).connected.server_version
    await client.close()


# -- order


@pytest.mark.parametrize("scene", [{"handshake_timeout_s": 1.0}], indirect=True, ids=[""])
async def test_a_client_that_says_nothing(scene: Scene) -> None:
    client = await raw_client(scene.url, handshake=False)
    await scene.gone(client, "CONNECT", "1 s")


@pytest.mark.parametrize("scene", [{"handshake_timeout_s": 1.0}], indirect=True, ids=[""])
async def test_a_client_that_stops_in_the_middle_of_connect(scene: Scene) -> None:
    client = await raw_client(scene.url, handshake=False)
    client.send_bytes(b"\x00\x00\x00\x20\x00\x00")
    await scene.gone(client, "CONNECT", "1 s")


@pytest.mark.parametrize("kind", [BaseCommand.SUBSCRIBE, BaseCommand.LOOKUP, BaseCommand.SEND, BaseCommand.PING])
async def test_commands_before_connect(scene: Scene, kind: BaseCommand.Type) -> None:
    client = await raw_client(scene.url, handshake=False)
    client.send(minimal(kind))
    await scene.gone(client, "before CONNECTED")


async def test_second_connect(scene: Scene) -> None:
    client = await raw_client(scene.url)
    client.send(minimal(BaseCommand.CONNECT))
    await scene.gone(client, "CONNECT")


async def test_two_connects_at_once(scene: Scene) -> None:
    client = await raw_client(scene.url, handshake=False)
    client.send_bytes(encode_frame(minimal(BaseCommand.CONNECT)) * 2)
    await scene.gone(client, "CONNECT")


async def test_too_many_connections(bridge_here: InProcessFactory) -> None:
    bridge = await bridge_here(max_client_connections=2)
    with capture_logs() as logs:
        first, second = [await raw_client(bridge.advertised_url) for _ in range(2)]
        third = await raw_client(bridge.advertised_url, handshake=False)
        await third.closed_by_peer()
        assert any("too many" in str(line.get("reason")) and line.get("peer") for line in logs)
        await first.close()
        assert bridge.gateway is not None
        gateway = bridge.gateway
        await wait_until_async(lambda: gateway.connections == 1, "one session")
        await (await raw_client(bridge.advertised_url)).close()
        await second.close()


# -- commands that name what is not there


MINIMAL: dict[int, tuple[str, dict[str, Any]]] = {
    BaseCommand.CONNECT: ("connect", {"client_version": "raw", "protocol_version": 21}),
    BaseCommand.PING: ("ping", {}),
    BaseCommand.LOOKUP: ("lookupTopic", {"topic": "persistent://public/default/t", "request_id": 5}),
    BaseCommand.SUBSCRIBE: (
        "subscribe",
        {
            "topic": "persistent://public/default/t",
            "subscription": "s",
            "subType": CommandSubscribe.Shared,
            "consumer_id": 77,
            "request_id": 5,
        },
    ),
    BaseCommand.SEND: ("send", {"producer_id": 77, "sequence_id": 0}),
    BaseCommand.FLOW: ("flow", {"consumer_id": 77, "messagePermits": 10}),
    BaseCommand.ACK: ("ack", {"consumer_id": 77, "ack_type": 0, "message_id": [{"ledgerId": 1, "entryId": 1}]}),
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: ("redeliverUnacknowledgedMessages", {"consumer_id": 77}),
    BaseCommand.CLOSE_CONSUMER: ("close_consumer", {"consumer_id": 77, "request_id": 5}),
    BaseCommand.CLOSE_PRODUCER: ("close_producer", {"producer_id": 77, "request_id": 5}),
    BaseCommand.UNSUBSCRIBE: ("unsubscribe", {"consumer_id": 77, "request_id": 5}),
    BaseCommand.SEEK: ("seek", {"consumer_id": 77, "request_id": 5, "message_publish_time": 1}),
    BaseCommand.GET_LAST_MESSAGE_ID: ("getLastMessageId", {"consumer_id": 77, "request_id": 5}),
}


def minimal(kind: BaseCommand.Type) -> BaseCommand:
    """A complete command of a type, about consumer or producer 77 and request 5."""
    name, fields = MINIMAL[kind]
    arguments: dict[str, Any] = {name: fields}
    return BaseCommand(type=kind, **arguments)


@pytest.mark.parametrize(
    ("kind", "answered"),
    [
        (BaseCommand.FLOW, False),
        (BaseCommand.ACK, False),
        (BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, False),
        (BaseCommand.SEND, False),
        (BaseCommand.CLOSE_CONSUMER, True),
        (BaseCommand.CLOSE_PRODUCER, True),
        (BaseCommand.UNSUBSCRIBE, True),
        (BaseCommand.SEEK, True),
        (BaseCommand.GET_LAST_MESSAGE_ID, True),
    ],
)
async def test_unknown_handles_are_answered_as_by_the_broker(
    scene: Scene, kind: BaseCommand.Type, answered: bool
) -> None:
    found = []
    for url in (scene.broker.service_url, scene.url):
        client = await raw_client(url)
        found.append(await outcome(client, minimal(kind), 5 if answered else None))
        await client.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", [BaseCommand.CONNECTED, BaseCommand.MESSAGE, BaseCommand.SUCCESS, BaseCommand.ERROR])
async def test_commands_of_a_server_from_a_client(scene: Scene, kind: BaseCommand.Type) -> None:
    """However it ends, it ends for this client only, and no later than at the broker."""
    client = await raw_client(scene.url)
    client.send(BaseCommand(type=kind))
    with contextlib.suppress(ConnectionError):
        await client.handshake()
    await client.close()


BAD_TOPICS = ["", "persistent://", "persistent://public", "persistent://public/default", "nonsense://public/default/t"]
BAD_TOPICS += ["a/b/c/d/e", "persistent://public/default/", "persistent:///default/t", "http://x/y/z"]


@pytest.mark.parametrize("topic", BAD_TOPICS)
async def test_invalid_topic_name_in_lookup(scene: Scene, topic: str) -> None:
    found = []
    for url in (scene.broker.service_url, scene.url):
        client = await raw_client(url)
        command = BaseCommand(type=BaseCommand.LOOKUP)
        command.lookupTopic.topic = topic
        command.lookupTopic.request_id = 5
        found.append(await outcome(client, command, 5))
        await client.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("topic", BAD_TOPICS)
async def test_invalid_topic_name_in_subscribe(scene: Scene, topic: str) -> None:
    """Refused, on a connection that goes on."""
    found = []
    for url in (scene.broker.service_url, scene.url):
        client = await raw_client(url)
        command = minimal(BaseCommand.SUBSCRIBE)
        command.subscribe.topic = topic
        found.append((await outcome(client, command, 5), await outcome(client, minimal(BaseCommand.PING))))
        await client.close()
    assert found[0] == found[1]
    assert found[1][0].startswith("ERROR")


async def test_the_bridges_own_subscription(scene: Scene, topic: str) -> None:
    """Whoever is on it may be elected to dispatch: clients are refused, and go on."""
    client = await raw_client(scene.url)
    answer = await client.subscribe(topic, "__delay-bridge", subType=CommandSubscribe.Failover)
    assert answer.type == BaseCommand.ERROR
    assert answer.error.error == ServerError.NotAllowedError
    assert "'__delay-bridge'" in answer.error.message
    await client.consume(topic, "allowed")


@pytest.mark.parametrize("topic", BAD_TOPICS)
async def test_invalid_topic_name_in_producer(scene: Scene, topic: str) -> None:
    found = []
    for url in (scene.broker.service_url, scene.url):
        client = await raw_client(url)
        command = BaseCommand(type=BaseCommand.PRODUCER)
        command.producer.topic = topic
        command.producer.producer_id, command.producer.request_id = 1, 5
        found.append((await outcome(client, command, 5), await outcome(client, minimal(BaseCommand.PING))))
        await client.close()
    assert found[0] == found[1]
    assert found[1][0].startswith("ERROR")


@pytest.mark.parametrize("change", ["empty-subscription", "no-such-namespace", "no-such-tenant", "negative-consumer"])
async def test_subscribe_that_the_broker_refuses(scene: Scene, change: str) -> None:
    found = []
    for url in (scene.broker.service_url, scene.url):
        client = await raw_client(url)
        command = minimal(BaseCommand.SUBSCRIBE)
        command.subscribe.topic = some_topic("refused")
        if change == "empty-subscription":
            command.subscribe.subscription = ""
        elif change == "negative-consumer":
            command.subscribe.consumer_id = (1 << 64) - 1
        else:
            tenant = "public" if change == "no-such-namespace" else "nobody"
            command.subscribe.topic = f"persistent://{tenant}/nowhere/t"
        lookup = minimal(BaseCommand.LOOKUP)
        lookup.lookupTopic.topic, lookup.lookupTopic.request_id = command.subscribe.topic, 4
        first = await outcome(client, lookup, 4)
        found.append((first, (await outcome(client, command, 5)).split()[0]))
        await client.close()
    assert found[0] == found[1]


async def test_a_consumer_id_twice(scene: Scene, topic: str) -> None:
    """Answered as by the broker, without a second consumer: messages come once."""
    client = await raw_client(scene.url)
    await client.consume(topic)
    answer = await client.subscribe(topic)
    assert answer.type == BaseCommand.SUCCESS
    client.flow(10)
    await client.produce(topic)
    position = await client.publish(b"once")
    assert (await client.message()).position == position
    with pytest.raises(TimeoutError):
        await client.message(0.2)
    await client.close()


# -- messages and acks that are not what they should be


async def test_ack_of_what_is_not_there_yet(scene: Scene, topic: str) -> None:
    """The broker drops it: the message that comes to lie there later is delivered."""
    found: list[bool] = []
    for url in (scene.broker.service_url, scene.url):
        client = await raw_client(url)
        await client.consume(f"{topic}-{len(found)}")
        client.flow(100)
        await client.produce(f"{topic}-{len(found)}")
        ledger, entry = await client.publish(b"first")
        await client.message()
        client.ack(*[(ledger, entry + ahead) for ahead in range(1, 5)], (ledger + 1_000, 0))
        client.ack((1 << 63, 1 << 63))
        at = now_ms() + 300
        sent = [await client.publish(b"later", each) for each in (None, at, None, at)]
        found.append(sorted([(await client.message(5)).position for _ in sent]) == sorted(sent))
        await client.close()
    assert found == [True, True]


@pytest.mark.parametrize(
    "entry",
    [b"", b"\x00", b"\xff" * 40, b"\x00\x00\x00\x04\xff\xff\xff\xffpayload"],
    ids=["empty", "short", "sizes", "metadata"],
)
async def test_a_message_nobody_can_read(scene: Scene, topic: str, entry: bytes) -> None:
    """A producer is free to send nonsense, the broker stores it; what comes behind it must not be held up."""
    client = await raw_client(scene.url)
    await client.consume(topic)
    client.flow(100)
    await client.produce(topic)
    await client.publish(b"before")
    assert (await client.message()).payload == b"before"
    nonsense = await raw_client(scene.broker.service_url)
    await nonsense.produce(topic)
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id, command.send.sequence_id = 1, 0
    nonsense.send(command, entry)
    await wait_until_async(lambda: nonsense.lost.done() or bool(nonsense.events), "the broker's answer")
    await nonsense.close()
    sent = [await client.publish(b"behind"), await client.publish(b"later", now_ms() + 100)]
    received: set[tuple[int, int]] = set()
    while not received >= set(sent):
        received.add((await client.message(5)).position)
    await client.close()


# no reader needs to be opened anew for want of permits
@pytest.mark.parametrize("scene", [{"read_stall_s": 60}], indirect=True, ids=[""])
@pytest.mark.parametrize("count", [0, -500, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("delayed", [False, True], ids=["immediate", "delayed"])
async def test_a_batch_that_lies_about_its_size(scene: Scene, topic: str, count: int, delayed: bool) -> None:
    """The broker's count of permits goes far astray, the reader's goes with it, and what comes behind is delivered.

    No count may cancel out the others: what the broker reads at once and counts as 0 messages, it sends to nobody. So
    a batch of 0 may be missing, see `test_a_batch_that_claims_no_messages_and_is_read_alone`.
    """
    client = await raw_client(scene.url)
    await client.consume(topic)
    client.flow(100)
    await client.produce(topic)
    at = now_ms() + 100 if delayed else None
    sent = [await client.publish(b"x", at, messages=each) for each in (1, count, *[1] * 10)]
    found: set[tuple[int, int]] = set()
    needed = set(sent) - ({sent[1]} if count == 0 else set())
    while not found >= needed:
        position = (await client.message()).position
        found.add(position)
        client.ack(position)
        client.flow(max(count, 1))
    await client.close()


@pytest.mark.parametrize("scene", [{"read_stall_s": 0.5}], indirect=True, ids=[""])
@pytest.mark.parametrize("count", [2**31 - 1, -(2**31)])
async def test_reading_goes_on_behind_a_batch_that_lies(scene: Scene, topic: str, count: int) -> None:
    """The harvester, caught up with the topic, loses its permits in the broker, and notices."""
    client = await raw_client(scene.url)
    await client.consume(topic)
    client.flow((1 << 31) - 1)
    await client.produce(topic)
    for messages in (1, count, 1, 1):
        position = await client.publish(b"x", messages=messages)
        assert (await client.message(20)).position == position
        client.ack(position)
        client.flow((1 << 31) - 1)
    await client.close()


@pytest.mark.parametrize("permits", [0, (1 << 32) - 1])
async def test_odd_permits(scene: Scene, topic: str, permits: int) -> None:
    client = await raw_client(scene.url)
    await client.consume(topic)
    client.flow(permits)
    client.flow(10)
    await client.produce(topic)
    position = await client.publish(b"x")
    assert (await client.message()).position == position
    await client.close()


# -- start


async def test_port_in_use(tmp_path: Path, pulsar: PulsarCluster) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for name in ("port", "web_port"):
            ports = {"port": 0, "web_port": 0, name: port}
            bridge = Bridge(settings(pulsar, tmp_path / name, **ports), Limits())
            with pytest.raises(StartError, match=str(port)):
                await bridge.start()


async def test_data_directory_in_use(bridge_here: InProcessFactory, tmp_path: Path, pulsar: PulsarCluster) -> None:
    await bridge_here(data_dir=tmp_path / "one")
    with pytest.raises(DataDirectoryLocked, match="one"):
        await Bridge(settings(pulsar, tmp_path / "one"), Limits()).start()


async def test_data_directory_that_cannot_be(tmp_path: Path, pulsar: PulsarCluster) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(Exception, match="file") as caught:
        await Bridge(settings(pulsar, tmp_path / "file"), Limits()).start()
    assert type(caught.value).__module__.startswith(("tracker", "bridge")), caught.value


async def test_broker_down_at_start(tmp_path: Path, make_pulsar: Any) -> None:
    """The bridge starts, says what it waits for, refuses clients with a reason, and serves once the broker is there."""
    broker_port, web_port = await asyncio.to_thread(free_ports, 2)
    where = PulsarCluster(f"pulsar://127.0.0.1:{broker_port}", f"http://127.0.0.1:{web_port}")
    bridge = Bridge(settings(where, tmp_path / "data"), Limits())
    await bridge.start()
    try:
        status, body = await ready(bridge)
        assert status == 503
        await wait_until_async(lambda: bridge.not_ready and str(broker_port) in bridge.not_ready, "the reason")
        client = await raw_client(bridge.advertised_url, handshake=False)
        answer = await client.handshake()
        assert answer.type == BaseCommand.ERROR
        assert answer.error.error == ServerError.ServiceNotReady
        assert str(broker_port) in answer.error.message
        await client.closed_by_peer()
        status, body = await ready(bridge)
        assert (status, str(broker_port) in body["reason"]) == (503, True)

        broker: EmbeddedPulsar = await asyncio.to_thread(make_pulsar, broker_port=broker_port, web_port=web_port)
        assert broker.pid
        await wait_until_async(lambda: bridge.not_ready is None, "ready")
        assert (await ready(bridge))[0] == 200
        client = await raw_client(bridge.advertised_url)
        topic = some_topic("late-broker")
        await client.consume(topic)
        client.flow(1)
        await client.produce(topic)
        await client.publish(b"x", now_ms() + 100)
        assert (await client.message()).payload == b"x"
        await client.close()
    finally:
        await bridge.stop()


def settings(broker: PulsarCluster, data_dir: Path, **values: Any) -> Settings:
    return Settings(
        broker_service_url=broker.service_url,
        broker_web_url=broker.web_url,
        data_dir=data_dir,
        host="127.0.0.1",
        advertised_address="127.0.0.1",
        **{"port": 0, "web_port": 0, **values},
    )


async def ready(bridge: Bridge) -> tuple[int, dict[str, Any]]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{bridge.web_port}/readyz") as answer,
    ):
        return answer.status, await answer.json()
