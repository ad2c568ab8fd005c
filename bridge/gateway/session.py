"""One client: its connection, its connections to brokers, and what passes between them.

Whatever the bridge does not take over is relayed byte for byte, whole frames at a time, to the broker
that the handle (producer or consumer) lives on. A session ends as a whole: when the client or any of its brokers goes
away, everything is closed, and the client's own reconnection does the rest.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, cast

import structlog

from bridge import limits
from bridge.broker.connection import BrokerError
from bridge.gateway.client_commands import ROUTED_BY_CONSUMER, is_tracked, request_id_of
from bridge.gateway.lookups import Lookups, lookup_answer
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.gateway.upstream import Upstream, open_upstream
from bridge.protocol.errors import ProtocolError
from bridge.protocol.frames import NOTHING, RUN, Frame, FrameDecoder, encode_frame
from bridge.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandLookupTopicResponse,
    CommandSubscribe,
    FeatureFlags,
    ServerError,
)
from bridge.protocol.topic_name import TopicName
from tracker import Position

log = structlog.get_logger(__name__)

BROKER_INITIATED = (1 << 64) - 1
"""The request id of commands that answer no request."""


class TrackedTopics(Protocol):
    """What the gateway tells the tracked topics; every call returns at once."""

    def attach(self, consumer: TrackedConsumer) -> None:
        """The broker accepted a consumer of a tracked subscription."""

    def detach(self, consumer: TrackedConsumer) -> None:
        """The consumer is gone; what it has not acked is free again."""

    def closed_by_broker(self, consumer: TrackedConsumer) -> None:
        """The broker closes the consumer: its topic is unloaded, or its cursor was moved past the bridge."""

    def flow(self, consumer: TrackedConsumer, permits: int) -> None:
        """The client takes `permits` more messages."""

    def acked(self, consumer: TrackedConsumer, ack: CommandAck) -> None:
        """An ack was relayed to the broker."""

    def redeliver(self, consumer: TrackedConsumer, positions: list[tuple[int, int]] | None) -> None:
        """The client wants these unacked entries again, or all of the consumer's (None)."""

    def seeking(self, consumer: TrackedConsumer) -> None:
        """A SEEK is on its way to the broker: nothing may be dispatched until the cursor is read anew."""

    def sought(self, topic: str, subscription: str) -> None:
        """The SEEK was answered, one way or the other."""

    def unsubscribed(self, topic: str, subscription: str) -> None:
        """The broker deleted the subscription."""

    def owner_url(self, topic: str) -> Coroutine[Any, Any, str]:
        """The address of the bridge that a client of `topic` is to connect to."""


class SessionHost(Protocol):
    """What a session needs of the gateway it belongs to."""

    service_url: str
    topics: TrackedTopics

    def opened(self, session: "ClientSession") -> bool:
        """Count it in; False when there are too many."""

    def closed(self, session: "ClientSession") -> None:
        """Count it out."""


class ClientSession(asyncio.Protocol):
    """The server side of one client connection."""

    def __init__(self, host: SessionHost) -> None:
        """Wait for `connection_made`."""
        self.peer = "?"
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(limits.MAX_CONNECT_COMMAND_BYTES)
        self._connect: BaseCommand | None = None
        self._connected = False
        self._upstreams: dict[str, asyncio.Task[Upstream]] = {}
        self._primary: Upstream | None = None
        self._only: Upstream | None = None  # the one upstream as long as there is only one: the fast path
        self._challenger: Upstream | None = None
        self._producers: dict[int, Upstream] = {}
        self._consumers: dict[int, Upstream] = {}
        self._tracked: dict[int, TrackedConsumer] = {}
        self._former: dict[int, TrackedConsumer] = {}  # closed by the broker; acks of theirs may still arrive
        self._requests: dict[int, Callable[[bool], None]] = {}
        self._cursor_requests: dict[int, Callable[[Position], None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lookups = Lookups(host.service_url, self._upstream)
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._upstreams_full = 0
        self._ended = False
        self.writable = True

    # -- asyncio.Protocol: the client's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start waiting for CONNECT."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        host, port = (*(transport.get_extra_info("peername") or ("?", "?")),)[:2]
        self.peer = f"{host}:{port}"
        self._transport.set_write_buffer_limits(limits.CLIENT_WRITE_HIGH_WATER, limits.CLIENT_WRITE_LOW_WATER)
        if not self._host.opened(self):
            self.end("too many client connections")
            return
        self._handshake_timer = self._loop.call_later(limits.HANDSHAKE_TIMEOUT_S, self._handshake_expired)

    def data_received(self, data: bytes) -> None:
        """Relay or handle every frame; a broken one ends the session."""
        try:
            frames = self._decoder.feed(data, _RELAYED_FROM_CLIENT if self._relaying else NOTHING)
            for frame in frames:
                self._on_client_frame(frame)
        except (ProtocolError, ValueError) as error:
            self.end(str(error), error=True)

    def pause_writing(self) -> None:
        """The client does not read: let the brokers wait."""
        self.writable = False
        for upstream in self._open_upstreams():
            upstream.pause_reading()

    def resume_writing(self) -> None:
        """The client reads again."""
        self.writable = True
        for upstream in self._open_upstreams():
            upstream.resume_reading()
        for consumer in self._tracked.values():
            self._host.topics.flow(consumer, 0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Free everything the client held."""
        if self._decoder.buffered and not self._ended:
            log.warning("client session ends", peer=self.peer, reason="closed in the middle of a frame")
        self._transport = None
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
        for task in self._tasks:
            task.cancel()
        for upstream in self._open_upstreams():
            upstream.close()
        tracked, self._tracked = list(self._tracked.values()), {}
        for consumer in tracked:
            self._host.topics.detach(consumer)
        waiting, self._requests = list(self._requests.values()), {}
        for callback in waiting:
            callback(False)
        self._host.closed(self)

    # -- client frames

    def _on_client_frame(self, frame: Frame) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        handler = _CLIENT_HANDLERS.get(frame.type)
        if frame.type == RUN:
            self._relay_to(self._only, frame)
        elif not self._connected:
            self._before_connected(frame)
        elif handler is not None:
            handler(self, frame)
        elif frame.type in ROUTED_BY_CONSUMER:
            self._relay_by_consumer(frame, getattr(frame.command(), ROUTED_BY_CONSUMER[frame.type]).consumer_id)
        else:
            self._relay_to(self._primary, frame)

    def _before_connected(self, frame: Frame) -> None:
        if frame.type == BaseCommand.CONNECT and self._connect is None:
            self._connect = frame.command()
            # Only a proxy in front of us would set it; the bridge itself decides where to connect.
            self._connect.connect.ClearField("proxy_to_broker_url")
            self._spawn(self._open_primary())
        elif frame.type == BaseCommand.AUTH_RESPONSE and self._challenger is not None:
            self._challenger.write(frame.data)
        else:
            raise ProtocolError(f"command of type {frame.type} before CONNECTED")

    def _on_auth_response(self, frame: Frame) -> None:
        self._relay_to(self._challenger or self._primary, frame)

    def _on_connect(self, frame: Frame) -> None:
        raise ProtocolError("CONNECT on a connection that is connected")

    def _on_ping(self, frame: Frame) -> None:
        """Answered by the broker, so that a broker lost without a word is noticed by the client's own keep-alive."""
        for upstream in self._open_upstreams():
            if self._loop.time() - upstream.heard > 3 * limits.KEEP_ALIVE_INTERVAL_S:
                self.end(f"{upstream.url} is silent", error=True)
                return
            upstream.write(frame.data)

    def _on_pong(self, frame: Frame) -> None:
        for upstream in self._open_upstreams():
            upstream.write(frame.data)

    def _on_send(self, frame: Frame) -> None:
        self._relay_to(self._producers.get(frame.command().send.producer_id, self._primary), frame)

    def _on_close_producer(self, frame: Frame) -> None:
        self._relay_to(self._producers.pop(frame.command().close_producer.producer_id, self._primary), frame)

    def _on_lookup(self, frame: Frame) -> None:
        self._spawn(self._lookup(frame.command()))

    def _on_producer(self, frame: Frame) -> None:
        producer = frame.command().producer

        async def relay() -> None:
            upstream = await self._lookups.upstream_of(producer.topic)
            self._producers[producer.producer_id] = upstream
            upstream.write(frame.data)

        self._spawn(self._answering(producer.request_id, relay()))

    def _on_subscribe(self, frame: Frame) -> None:
        subscribe = frame.command().subscribe

        async def relay() -> None:
            upstream = await self._lookups.upstream_of(subscribe.topic)
            self._consumers[subscribe.consumer_id] = upstream
            if is_tracked(subscribe):
                self._when_answered(subscribe.request_id, lambda ok: self._subscribed(subscribe, ok))
            upstream.write(frame.data)

        self._spawn(self._answering(subscribe.request_id, relay()))

    def _subscribed(self, subscribe: CommandSubscribe, ok: bool) -> None:
        if not ok or subscribe.consumer_id in self._tracked:
            return
        topic = str(TopicName.parse(subscribe.topic))
        consumer = TrackedConsumer(
            self,
            topic,
            subscribe.subscription,
            subscribe.consumer_id,
            subscribe.consumer_name,
            subscribe.priority_level,
        )
        self._tracked[subscribe.consumer_id] = consumer
        self._former.pop(subscribe.consumer_id, None)
        self._host.topics.attach(consumer)

    def _on_flow(self, frame: Frame) -> None:
        flow = frame.command().flow
        consumer = self._tracked.get(flow.consumer_id)
        if consumer is None:
            self._relay_by_consumer(frame, flow.consumer_id)
        else:
            self._host.topics.flow(consumer, flow.messagePermits)

    def _on_ack(self, frame: Frame) -> None:
        ack = frame.command().ack
        self._relay_by_consumer(frame, ack.consumer_id)
        consumer = self._tracked.get(ack.consumer_id) or self._former.get(ack.consumer_id)
        if consumer is not None:
            self._host.topics.acked(consumer, ack)

    def _on_redeliver(self, frame: Frame) -> None:
        redeliver = frame.command().redeliverUnacknowledgedMessages
        consumer = self._tracked.get(redeliver.consumer_id)
        if consumer is None:
            self._relay_by_consumer(frame, redeliver.consumer_id)
            return
        positions = [(position.ledgerId, position.entryId) for position in redeliver.message_ids]
        self._host.topics.redeliver(consumer, positions or None)

    def _on_seek(self, frame: Frame) -> None:
        seek = frame.command().seek
        consumer = self._tracked.get(seek.consumer_id)
        if consumer is not None:
            topics, topic, subscription = self._host.topics, consumer.topic, consumer.subscription
            topics.seeking(consumer)
            self._when_answered(seek.request_id, lambda _: topics.sought(topic, subscription))
        self._relay_by_consumer(frame, seek.consumer_id)

    def _on_unsubscribe(self, frame: Frame) -> None:
        unsubscribe = frame.command().unsubscribe
        consumer = self._tracked.get(unsubscribe.consumer_id)
        if consumer is not None:
            self._when_answered(unsubscribe.request_id, lambda ok: self._unsubscribed(consumer, ok))
        self._relay_by_consumer(frame, unsubscribe.consumer_id)

    def _unsubscribed(self, consumer: TrackedConsumer, ok: bool) -> None:
        if ok:
            self._drop_consumer(consumer.consumer_id)
            self._host.topics.unsubscribed(consumer.topic, consumer.subscription)

    def _on_close_consumer(self, frame: Frame) -> None:
        consumer_id = frame.command().close_consumer.consumer_id
        self._relay_by_consumer(frame, consumer_id)
        self._drop_consumer(consumer_id)
        self._former.pop(consumer_id, None)

    def _drop_consumer(self, consumer_id: int) -> None:
        self._consumers.pop(consumer_id, None)
        consumer = self._tracked.pop(consumer_id, None)
        if consumer is not None:
            self._host.topics.detach(consumer)

    # -- server frames (UpstreamOwner)

    @property
    def relayed_from_broker(self) -> frozenset[int]:
        """Types of a broker's frames that go to the client unseen."""
        return RELAYED_FROM_BROKER

    def on_server_frames(self, upstream: Upstream, frames: list[Frame]) -> None:
        """Relay to the client what is not for the gateway itself, in one write."""
        out: list[bytes | memoryview] = []
        for frame in frames:
            handler = _SERVER_HANDLERS.get(frame.type)
            data = frame.data if handler is None else handler(self, upstream, frame)
            if data is not None:
                out.append(data)
        if out:
            self._write_all(out)
        for frame in frames:
            if frame.type in (BaseCommand.SUCCESS, BaseCommand.ERROR):
                self._answered(frame)

    def on_server_writable(self, writable: bool) -> None:
        """An upstream's buffer is full: stop reading from the client until all have room again."""
        self._upstreams_full += -1 if writable else 1
        if self._transport is None or self._transport.is_closing():
            return
        if self._upstreams_full:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def on_server_lost(self, upstream: Upstream, reason: str) -> None:
        """Without one of its brokers the client starts over."""
        self.end(reason)

    def _on_connected(self, upstream: Upstream, frame: Frame) -> bytes | None:
        command = frame.command()
        connected = command.connected
        if connected.max_message_size:
            upstream.decoder.limit_to(connected.max_message_size)
        if not upstream.connected.done():
            upstream.connected.set_result(None)
        if upstream is not self._primary:
            return None
        self._connected = True
        if connected.max_message_size:
            self._decoder.limit_to(connected.max_message_size)
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
        if connected.HasField("feature_flags"):
            # A flag this gateway does not know of is one it does not serve.
            known = FeatureFlags()
            for name in FeatureFlags.DESCRIPTOR.fields_by_name:
                setattr(known, name, getattr(connected.feature_flags, name))
            connected.feature_flags.CopyFrom(known)
        return encode_frame(command)

    def _on_auth_challenge(self, upstream: Upstream, frame: Frame) -> memoryview:
        self._challenger = upstream
        return frame.data

    def _on_server_pong(self, upstream: Upstream, frame: Frame) -> memoryview | None:
        return frame.data if upstream is self._primary else None

    def _on_lookup_response(self, upstream: Upstream, frame: Frame) -> None:
        self._lookups.answered(frame.command().lookupTopicResponse)

    def _on_server_error(self, upstream: Upstream, frame: Frame) -> memoryview | None:
        if not upstream.connected.done():
            error = frame.command().error
            upstream.connected.set_exception(BrokerError(error.message, error.error))
            upstream.connected.exception()
            return frame.data if upstream is self._primary else None
        return self._unless_own(upstream, frame)

    def _on_last_message_id(self, upstream: Upstream, frame: Frame) -> memoryview | None:
        response = frame.command().getLastMessageIdResponse
        answer = self._cursor_requests.pop(response.request_id, None)
        if answer is None:
            return frame.data
        if response.HasField("consumer_mark_delete_position"):
            position = response.consumer_mark_delete_position
            # Both are unsigned on the wire; before the first entry of a ledger it says 2^64-1.
            answer(Position(position.ledgerId, -1 if position.entryId >= 1 << 63 else position.entryId))
        return None

    def _unless_own(self, upstream: Upstream, frame: Frame) -> memoryview | None:
        return None if request_id_of(frame) > limits.GATEWAY_REQUEST_ID_BASE else frame.data

    def _on_server_close(self, upstream: Upstream, frame: Frame) -> bytes:
        """A broker's CLOSE_… names the next broker; without it the client looks up, and stays with the bridge."""
        command = frame.command()
        producer = command.type == BaseCommand.CLOSE_PRODUCER
        close = command.close_producer if producer else command.close_consumer
        close.ClearField("assignedBrokerServiceUrl")
        close.ClearField("assignedBrokerServiceUrlTls")
        if producer:
            self._producers.pop(command.close_producer.producer_id, None)
        else:
            consumer = self._tracked.get(command.close_consumer.consumer_id)
            if consumer is not None:
                self._former[consumer.consumer_id] = consumer
                self._host.topics.closed_by_broker(consumer)
            self._drop_consumer(command.close_consumer.consumer_id)
        return encode_frame(command)

    def _answered(self, frame: Frame) -> None:
        if self._requests:
            waiting = self._requests.pop(request_id_of(frame), None)
            if waiting is not None:
                waiting(frame.type == BaseCommand.SUCCESS)

    # -- ClientWriter

    def write_client(self, data: bytes) -> None:
        """Send bytes to the client; dropped when it is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def send_upstream(self, consumer_id: int, command: BaseCommand) -> None:
        """Send a command to the broker of a consumer."""
        upstream = self._consumers.get(consumer_id)
        if upstream is not None:
            upstream.write(encode_frame(command))

    def request_mark_delete(self, consumer_id: int, answer: Callable[[Position], None]) -> None:
        """Ask the broker; requests that got no answer are forgotten when there are too many."""
        if len(self._cursor_requests) >= limits.MAX_PENDING_REQUESTS:
            self._cursor_requests.clear()
        command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
        command.getLastMessageId.consumer_id = consumer_id
        command.getLastMessageId.request_id = request_id = self._lookups.next_request_id()
        self._cursor_requests[request_id] = answer
        self.send_upstream(consumer_id, command)

    def close_consumer(self, consumer: TrackedConsumer) -> None:
        """Close a tracked consumer on both sides."""
        if self._tracked.get(consumer.consumer_id) is not consumer:
            return
        command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = consumer.consumer_id
        command.close_consumer.request_id = self._lookups.next_request_id()
        self.send_upstream(consumer.consumer_id, command)
        self._drop_consumer(consumer.consumer_id)
        command.close_consumer.request_id = BROKER_INITIATED
        self.write_client(encode_frame(command))

    def end(self, reason: str, error: bool = False) -> None:
        """Close the client's connection; `connection_lost` does the rest. `error`: the client is to blame."""
        if self._transport is None or self._transport.is_closing():
            return
        (log.warning if error else log.info)("client session ends", peer=self.peer, reason=reason)
        self._ended = True
        self._transport.close()
        self._loop.call_later(limits.CLOSE_TIMEOUT_S, self._abort)

    # -- helpers

    def _abort(self) -> None:
        """A client that does not read must not keep a closing session alive."""
        if self._transport is not None:
            self._transport.abort()

    def _handshake_expired(self) -> None:
        if not self._connected:
            self.end(f"no CONNECT and answer to it within {limits.HANDSHAKE_TIMEOUT_S:g} s", error=True)

    def _open_upstreams(self) -> list[Upstream]:
        done = [task for task in self._upstreams.values() if task.done() and not task.cancelled()]
        return [task.result() for task in done if task.exception() is None]

    @property
    def _relaying(self) -> bool:
        """Whether frames that concern the broker alone need no look at all: there is but one."""
        return self._connected and self._only is not None

    def _relay_to(self, upstream: Upstream | None, frame: Frame) -> None:
        assert upstream is not None
        upstream.write(frame.data)

    def _relay_by_consumer(self, frame: Frame, consumer_id: int) -> None:
        """A consumer nobody knows goes to the first broker, which answers as a broker does."""
        self._relay_to(self._consumers.get(consumer_id, self._primary), frame)

    def _write_all(self, parts: Iterable[bytes | memoryview]) -> None:
        if self._transport is not None:
            self._transport.writelines(parts)

    def _when_answered(self, request_id: int, callback: Callable[[bool], None]) -> None:
        if len(self._requests) >= limits.MAX_PENDING_REQUESTS:
            raise ProtocolError(f"more than {limits.MAX_PENDING_REQUESTS} requests at once")
        self._requests[request_id] = callback

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answering(self, request_id: int, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`; what goes wrong becomes the answer to the client's request, as a broker would word it."""
        command = BaseCommand(type=BaseCommand.ERROR)
        command.error.request_id = request_id
        try:
            await work
            return
        except BrokerError as error:
            command.error.error = error.code or ServerError.ServiceNotReady
            command.error.message = str(error)
        except (ProtocolError, ValueError) as error:
            self.end(str(error), error=True)
            return
        log.warning("request failed", peer=self.peer, request_id=request_id, reason=command.error.message)
        self.write_client(encode_frame(command))

    async def _lookup(self, command: BaseCommand) -> None:
        request = command.lookupTopic

        async def work() -> None:
            answer = await self._lookups.resolve(request)
            refused = answer.response == CommandLookupTopicResponse.Failed
            owner = "" if refused else await self._host.topics.owner_url(request.topic)
            self.write_client(encode_frame(lookup_answer(request, answer, owner)))

        await self._answering(request.request_id, work())

    async def _open_primary(self) -> None:
        try:
            self._primary = self._only = await self._upstream(self._host.service_url)
        except BrokerError as error:
            command = BaseCommand(type=BaseCommand.ERROR)
            command.error.request_id = BROKER_INITIATED
            command.error.error = ServerError.ServiceNotReady
            command.error.message = str(error)
            self.write_client(encode_frame(command))
            self.end(str(error))

    async def _upstream(self, url: str) -> Upstream:
        """The connection to a broker; the first is the one that answers what concerns no handle."""
        task = self._upstreams.get(url)
        if task is None:
            if len(self._upstreams) >= limits.MAX_BROKERS_PER_SESSION:
                raise BrokerError(f"more than {limits.MAX_BROKERS_PER_SESSION} brokers", ServerError.ServiceNotReady)
            task = self._loop.create_task(self._open_upstream(url))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._upstreams[url] = task
        upstream = await asyncio.shield(task)
        if self._primary is not None and upstream is not self._primary:
            self._only = None
            await upstream.connected
        return upstream

    async def _open_upstream(self, url: str) -> Upstream:
        upstream = await open_upstream(url, self)
        assert self._connect is not None
        if self._primary is None:
            self._primary = upstream
        upstream.write(encode_frame(self._connect))
        return upstream


_CLIENT_HANDLERS: dict[int, Callable[[ClientSession, Frame], None]] = {
    BaseCommand.CONNECT: ClientSession._on_connect,
    BaseCommand.AUTH_RESPONSE: ClientSession._on_auth_response,
    BaseCommand.PING: ClientSession._on_ping,
    BaseCommand.PONG: ClientSession._on_pong,
    BaseCommand.SEND: ClientSession._on_send,
    BaseCommand.PRODUCER: ClientSession._on_producer,
    BaseCommand.CLOSE_PRODUCER: ClientSession._on_close_producer,
    BaseCommand.LOOKUP: ClientSession._on_lookup,
    BaseCommand.SUBSCRIBE: ClientSession._on_subscribe,
    BaseCommand.FLOW: ClientSession._on_flow,
    BaseCommand.ACK: ClientSession._on_ack,
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: ClientSession._on_redeliver,
    BaseCommand.SEEK: ClientSession._on_seek,
    BaseCommand.UNSUBSCRIBE: ClientSession._on_unsubscribe,
    BaseCommand.CLOSE_CONSUMER: ClientSession._on_close_consumer,
}

_RELAYED_FROM_CLIENT = frozenset({BaseCommand.SEND})

_SERVER_HANDLERS: dict[int, Callable[[ClientSession, Upstream, Frame], bytes | memoryview | None]] = {
    BaseCommand.CONNECTED: ClientSession._on_connected,
    BaseCommand.AUTH_CHALLENGE: ClientSession._on_auth_challenge,
    BaseCommand.PONG: ClientSession._on_server_pong,
    BaseCommand.LOOKUP_RESPONSE: ClientSession._on_lookup_response,
    BaseCommand.SUCCESS: ClientSession._unless_own,
    BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: ClientSession._on_last_message_id,
    BaseCommand.ERROR: ClientSession._on_server_error,
    BaseCommand.CLOSE_PRODUCER: ClientSession._on_server_close,
    BaseCommand.CLOSE_CONSUMER: ClientSession._on_server_close,
}

RELAYED_FROM_BROKER = frozenset(BaseCommand.Type.values()) - frozenset(_SERVER_HANDLERS)
