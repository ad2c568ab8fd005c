"""An error that nobody thought of ends the session that it happens in, loudly, and no other."""

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from bridge.gateway.listener import Gateway
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.limits import ConnectionLimits
from bridge.net.failures import Failures, Part
from bridge.protocol import commands
from bridge.protocol.frames import Frame, encode_frame
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe
from bridge.protocol.service_url import ServiceUrls
from tests.fake_broker import FakeBroker, success
from tests.helpers import wait_until_async
from tests.raw_client import RawClient, raw_client

TOPIC = "persistent://public/default/t"


class Boom(Exception):
    pass


def boom(*_: object) -> Any:
    raise Boom


class NoTopics:
    """Nothing is dispatched: what the gateway tells is noted."""

    def __init__(self) -> None:
        self.attached: list[TrackedConsumer] = []
        self.flow: Callable[..., None] = lambda *_: None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_: None

    def attach(self, consumer: TrackedConsumer) -> None:
        self.attached.append(consumer)

    def detach(self, consumer: TrackedConsumer) -> None:
        self.attached.remove(consumer)

    @asynccontextmanager
    async def attaching(self, *_: str) -> AsyncIterator[Callable[[], Coroutine[Any, Any, bool]]]:
        async def never() -> bool:
            return False

        yield never

    async def owner_urls(self, topic: str) -> ServiceUrls:
        return ServiceUrls("pulsar://127.0.0.1:1")


class Scene:
    def __init__(self, broker: FakeBroker, gateway: Gateway, topics: NoTopics, failures: Failures, url: str) -> None:
        self.broker, self.gateway, self.topics, self.failures, self.url = broker, gateway, topics, failures, url

    async def client(self) -> tuple[RawClient, Any]:
        """A client, and its session."""
        before = set(self.gateway._sessions)
        client = await raw_client(self.url)
        (session,) = set(self.gateway._sessions) - before
        return client, session


@pytest_asyncio.fixture
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    limits = getattr(request, "param", ConnectionLimits())
    topics, failures = NoTopics(), Failures()
    async with FakeBroker() as broker:
        gateway = Gateway(broker.url, topics, failures, 10_000, limits)
        bound = socket.create_server(("127.0.0.1", 0))
        bound.setblocking(False)
        await gateway.start([bound])
        yield Scene(broker, gateway, topics, failures, f"pulsar://127.0.0.1:{bound.getsockname()[1]}")
        await gateway.close()


class Unwritable:
    """A transport that takes nothing."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        raise Boom

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class NoNumber:
    __bool__ = __gt__ = __add__ = boom


def a_command(scene: Scene, client: RawClient, session: Any) -> None:
    session._router._producers.on_send = boom
    session._on_client_frame(Frame(BaseCommand.SEND, memoryview(b"")))


def bytes_of_the_client(scene: Scene, client: RawClient, session: Any) -> None:
    session._decoder.feed = boom
    client.send(BaseCommand(type=BaseCommand.PING, ping={}))


def what_a_broker_says(scene: Scene, client: RawClient, session: Any) -> None:
    session._router._lookups.answered = boom
    (upstream,) = session._upstreams.all()
    upstream.data_received(encode_frame(commands.lookup_connect(1, "pulsar://b:1", authoritative=True)))


def what_the_topics_send(scene: Scene, client: RawClient, session: Any) -> None:
    session._transport = Unwritable(session._transport)
    session.write_client(b"")


def its_keep_alive(scene: Scene, client: RawClient, session: Any) -> None:
    session._upstreams_full = NoNumber()
    session._keep_alive._ping()
    session._upstreams_full = 0


def a_client_that_does_not_read(scene: Scene, client: RawClient, session: Any) -> None:
    scene.topics.flow = boom
    session.pause_writing()
    session._has_room = True


def a_client_that_reads_again(scene: Scene, client: RawClient, session: Any) -> None:
    scene.topics.flow = boom
    session.resume_writing()


def a_broker_that_does_not_read(scene: Scene, client: RawClient, session: Any) -> None:
    session.hold_reads = boom
    (upstream,) = session._upstreams.all()
    upstream.pause_writing()


def an_ack_of_its_own(scene: Scene, client: RawClient, session: Any) -> None:
    session._router._consumers.send = boom
    scene.topics.attached[0].acknowledge([(1, 1)])


def the_end_of_a_consumer(scene: Scene, client: RawClient, session: Any) -> None:
    session._router._consumers.close = boom
    scene.topics.attached[0].close()


WAYS = (
    a_command,
    bytes_of_the_client,
    what_a_broker_says,
    what_the_topics_send,
    its_keep_alive,
    a_client_that_does_not_read,
    a_client_that_reads_again,
    a_broker_that_does_not_read,
    an_ack_of_its_own,
    the_end_of_a_consumer,
)


@pytest.mark.parametrize("act", WAYS, ids=lambda each: each.__name__)
async def test_whatever_fails_ends_the_session(scene: Scene, act: Callable[[Scene, RawClient, Any], None]) -> None:
    client, session = await scene.client()
    await client.consume(TOPIC)
    await wait_until_async(lambda: len(scene.topics.attached) == 1, "the consumer")
    other, _ = await scene.client()
    with capture_logs() as logged:
        act(scene, client, session)
        await client.closed_by_peer()
    assert scene.failures.counts == {Part.client: 1}
    told = [each for each in logged if each["log_level"] == "critical"]
    assert [(each["event"], each["peer"], type(each["exc_info"])) for each in told] == [
        ("client session failed", session.peer, Boom)
    ]
    await wait_until_async(lambda: scene.gateway.connections == 1, "the session is counted out")
    await wait_until_async(lambda: scene.broker.connections == 1, "its connections to brokers are closed")
    assert not scene.topics.attached
    assert (await other.lookup(TOPIC)).lookupTopicResponse.brokerServiceUrl
    await other.close()


async def test_a_task_that_fails_ends_the_session(scene: Scene) -> None:
    client, session = await scene.client()
    session._router._lookups.resolve = boom
    with capture_logs() as logged:
        client.send(BaseCommand(type=BaseCommand.LOOKUP, lookupTopic={"topic": TOPIC, "request_id": 1}))
        await client.closed_by_peer()
    assert scene.failures.counts == {Part.client: 1}
    assert [each["event"] for each in logged if each["log_level"] == "critical"] == ["client session failed"]


@pytest.mark.parametrize(
    "part", ["_keep_alive.stop", "_turns.end", "_upstreams.end", "_router.end", "_router._requests.end"]
)
async def test_what_a_session_held_is_free_whatever_fails_on_its_end(scene: Scene, part: str) -> None:
    client, session = await scene.client()
    await client.consume(TOPIC)
    await wait_until_async(lambda: len(scene.topics.attached) == 1, "the consumer")
    holder, _, name = part.rpartition(".")
    failing = attrgetter(holder)(session)
    right = getattr(failing, name)

    def fails() -> None:
        right()
        raise Boom

    setattr(failing, name, fails)
    await client.close()
    await wait_until_async(lambda: scene.gateway.connections == 0, "the session is counted out")
    assert not scene.topics.attached
    assert scene.failures.counts == {Part.client: 1}
    await wait_until_async(lambda: scene.broker.connections == 0, "its connections to brokers are closed")


async def test_what_a_broker_still_says_when_the_session_has_ended_goes_nowhere(scene: Scene) -> None:
    """A connection with TLS hands on what it holds while it is being closed."""
    client, session = await scene.client()
    (upstream,) = session._upstreams.all()
    await client.close()
    await wait_until_async(lambda: not hasattr(session, "_router"), "the session has let go")
    upstream.data_received(success(7))
    assert not scene.failures.counts
    await wait_until_async(lambda: scene.broker.connections == 0, "its connection to the broker is closed")


async def test_a_consumer_waits_until_its_cursor_shows_the_mark(scene: Scene) -> None:
    """Acks that come before the cursor has a ledger take the mark away."""
    said = [True, True, True, False]
    asked: list[bool] = []
    shared: list[int] = []

    @asynccontextmanager
    async def attaching(*_: str) -> AsyncIterator[Callable[[], Coroutine[Any, Any, bool]]]:
        async def is_unmarked() -> bool:
            asked.append(said[len(asked)])
            return asked[-1]

        yield is_unmarked

    def subscribed(command: BaseCommand) -> list[bytes]:
        if command.subscribe.subType == CommandSubscribe.Shared:
            shared.append(len(asked))
        return [success(command.subscribe.request_id)]

    def position(command: BaseCommand) -> list[bytes]:
        answer = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
        body = answer.getLastMessageIdResponse
        body.request_id = command.getLastMessageId.request_id
        for each in (body.last_message_id, body.consumer_mark_delete_position):
            each.ledgerId, each.entryId = 1, 7
        return [encode_frame(answer)]

    scene.topics.attaching = attaching  # type: ignore[method-assign]
    scene.broker.answers = {BaseCommand.SUBSCRIBE: subscribed, BaseCommand.GET_LAST_MESSAGE_ID: position}
    client, _ = await scene.client()
    await client.consume(TOPIC)
    assert shared == [4]
    assert [each.ack.message_id[0].entryId for each in scene.broker.heard if each.type == BaseCommand.ACK] == [7]
    await client.close()


@pytest.mark.parametrize("scene", [ConnectionLimits(log_lines_at_once=2)], indirect=True, ids=[""])
async def test_log_lines_of_failing_sessions_are_limited(scene: Scene) -> None:
    with capture_logs() as logged:
        for _ in range(5):
            client, session = await scene.client()
            session.fail(Boom())
            await client.closed_by_peer()
    assert scene.failures.counts[Part.client] == 5
    assert len([each for each in logged if each["event"] == "client session failed"]) == 2
    await asyncio.sleep(0)


async def test_nothing_of_a_session_waits_for_the_collector_of_cycles(scene: Scene) -> None:
    """It comes by once in an hour."""
    client, session = await scene.client()
    await client.consume(TOPIC)
    await wait_until_async(lambda: len(scene.topics.attached) == 1, "the consumer")
    gc.collect()
    gc.disable()
    try:
        parts = [weakref.ref(each) for each in (session, session._router, session._router._consumers)]
        del session
        await client.close()
        await wait_until_async(lambda: scene.gateway.connections == 0, "the session is counted out")
        await wait_until_async(lambda: [each() for each in parts] == [None] * 3, "all is gone")
    finally:
        gc.enable()


@pytest.mark.parametrize("scene", [ConnectionLimits(keep_alive_interval_s=0.1)], indirect=True, ids=[""])
async def test_a_broker_that_falls_silent_ends_the_session_of_a_client_that_does_not_ask(scene: Scene) -> None:
    """A consumer that waits for messages does not see that what it acks goes nowhere."""
    asked = BaseCommand(type=BaseCommand.PING, ping={})
    with capture_logs() as logged:
        client, _ = await scene.client()
        await wait_until_async(
            lambda: scene.broker.heard.count(asked) >= 3, "a broker that is idle is asked, and answers"
        )
        assert scene.gateway.connections == 1
        scene.broker.answers = dict.fromkeys(BaseCommand.Type.values(), lambda _: [])
        await client.closed_by_peer()
    (line,) = [each for each in logged if each["event"] == "client session ends"]
    assert line["reason"] == f"{scene.broker.url} is silent"


async def test_who_reads_again_is_sent_nothing_before_its_brokers_were_heard(scene: Scene) -> None:
    """They may have closed its consumers meanwhile. Answers to what was asked before do not count."""
    scene.broker.answers[BaseCommand.PING] = lambda _: []
    client, session = await scene.client()
    await client.consume("t")
    told: list[bool] = []
    scene.topics.flow = lambda consumer, permits: told.append(consumer.writable)

    def asked() -> int:
        return sum(each.type == BaseCommand.PING for each in scene.broker.heard)

    for _ in range(2):
        client.send(BaseCommand(type=BaseCommand.PING, ping={}))
    session.pause_writing()
    await wait_until_async(lambda: asked() == 2, "the client's pings")
    session.resume_writing()
    session.resume_writing()  # a second time, before the first is over
    await wait_until_async(lambda: asked() == 4, "asked by the bridge")
    for answers in (3, 1):
        assert told == [False, False, False]
        for _ in range(answers):
            scene.broker.send(encode_frame(commands.pong()))
            await client.event(BaseCommand.PONG)
    assert told == [False, False, False, True]
    await client.close()
