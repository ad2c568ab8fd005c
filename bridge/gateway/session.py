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
from bridge.broker.connection import PROTOCOL_VERSION, BrokerError
from bridge.gateway.client_commands import refuse_reserved, request_id_of
from bridge.gateway.consumers import CONSUMER_HANDLERS, SessionConsumers, TrackedTopics
from bridge.gateway.lookups import Lookups, lookup_answer
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.gateway.upstream import Upstream, open_upstream
from bridge.protocol.errors import ProtocolError
from bridge.protocol.frames import NOTHING, RUN, Frame, FrameDecoder, encode_frame
from bridge.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    FeatureFlags,
    ServerError,
)
from bridge.sliced_reads import SlicedReads
from tracker import Position

log = structlog.get_logger(__name__)

BROKER_INITIATED = (1 << 64) - 1
"""The request id of commands that answer no request."""


class SessionHost(Protocol):
    """What a session needs of the gateway it belongs to."""

    service_url: str
    topics: TrackedTopics

    def opened(self, session: "ClientSession") -> bool:
        """Count it in; False when there are too many."""

    def closed(self, session: "ClientSession") -> None:
        """Count it out."""


class ClientSession(SlicedReads):
    """The server side of one client connection."""

    def __init__(self, host: SessionHost) -> None:
        """Wait for `connection_made`."""
        super().__init__(limits.CLIENT_READ_BYTES)
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
        self._consumers = SessionConsumers(self, host.topics, self._relay_to)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._lookups = Lookups(host.service_url, self._upstream)
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._upstreams_full = 0
        self._ended = False
        self.writable = True

    # -- asyncio.Protocol: the client's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start waiting for CONNECT."""
        super().connection_made(transport)
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
        for consumer in self._consumers.tracked.values():
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
        self._consumers.end()
        self._host.closed(self)

    # -- client frames

    def _on_client_frame(self, frame: Frame) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        handler, consumer_handler = _CLIENT_HANDLERS.get(frame.type), CONSUMER_HANDLERS.get(frame.type)
        if frame.type == RUN:
            self._relay_to(self._only, frame)
        elif not self._connected:
            self._before_connected(frame)
        elif handler is not None:
            handler(self, frame)
        elif consumer_handler is not None:
            consumer_handler(self._consumers, frame)
        else:
            self._relay_to(None, frame)

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
        self._relay_to(self._challenger, frame)

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
        self._relay_to(self._producers.get(frame.command().send.producer_id), frame)

    def _on_close_producer(self, frame: Frame) -> None:
        self._relay_to(self._producers.pop(frame.command().close_producer.producer_id, None), frame)

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
            refuse_reserved(subscribe)
            self._consumers.subscribe(await self._lookups.upstream_of(subscribe.topic), frame, subscribe)

        self._spawn(self._answering(subscribe.request_id, relay()))

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
                self._consumers.answered(request_id_of(frame), frame.type == BaseCommand.SUCCESS)

    def on_server_writable(self, writable: bool) -> None:
        """An upstream's buffer is full: stop reading from the client until all have room again."""
        self._upstreams_full += -1 if writable else 1
        self.hold_reads(self._upstreams_full > 0)

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
        connected.protocol_version = min(connected.protocol_version, PROTOCOL_VERSION)
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
        own = self._consumers.last_message_id(frame.command().getLastMessageIdResponse)
        return None if own else frame.data

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
            self._consumers.closed_by_broker(command.close_consumer.consumer_id)
        return encode_frame(command)

    # -- ClientWriter

    def write_client(self, data: bytes) -> None:
        """Send bytes to the client; dropped when it is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def send_upstream(self, consumer_id: int, command: BaseCommand) -> None:
        """Send a command to the broker of a consumer."""
        self._consumers.send(consumer_id, command)

    def request_mark_delete(self, consumer_id: int, answer: Callable[[Position], None]) -> None:
        """Ask the broker of a consumer for the mark-delete position."""
        self._consumers.request_mark_delete(consumer_id, self._lookups.next_request_id(), answer)

    def close_consumer(self, consumer: TrackedConsumer) -> None:
        """Close a tracked consumer on both sides."""
        if self._consumers.close(consumer, self._lookups.next_request_id()):
            command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
            command.close_consumer.consumer_id = consumer.consumer_id
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

    @property
    def broker_connections(self) -> int:
        """Its connections to brokers."""
        return len(self._open_upstreams())

    def _open_upstreams(self) -> list[Upstream]:
        done = [task for task in self._upstreams.values() if task.done() and not task.cancelled()]
        return [task.result() for task in done if task.exception() is None]

    @property
    def _relaying(self) -> bool:
        """Whether frames that concern the broker alone need no look at all: there is but one."""
        return self._connected and self._only is not None

    def _relay_to(self, upstream: Upstream | None, frame: Frame) -> None:
        """What concerns no handle that is known here goes to the first broker."""
        upstream = upstream or self._primary
        assert upstream is not None
        upstream.write(frame.data)

    def _write_all(self, parts: Iterable[bytes | memoryview]) -> None:
        if self._transport is not None:
            self._transport.writelines(parts)

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
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            if len(self._upstreams) >= limits.MAX_BROKERS_PER_SESSION and url not in self._upstreams:
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
