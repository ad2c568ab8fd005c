"""One client: its connection, its connections to brokers, and what passes between them.

Whatever the bridge does not take over is relayed byte for byte, whole frames at a time, to the broker
that the handle (producer or consumer) lives on. A session ends as a whole: when the client or any of its brokers goes
away, everything is closed, and the client's own reconnection does the rest.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar, cast

from bridge.broker.connection import BrokerError
from bridge.clock import RandBits
from bridge.gateway.client_commands import Tracking
from bridge.gateway.consumers import TrackedTopics
from bridge.gateway.keep_alive import KeepAlive
from bridge.gateway.requests import BROKER_INITIATED, body_of
from bridge.gateway.router import RELAYED_FROM_BROKER, Router, Shown
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.gateway.turns import Turns
from bridge.gateway.upstream import Upstream
from bridge.gateway.upstreams import SessionUpstreams
from bridge.limits import ConnectionLimits
from bridge.net.ending import ending
from bridge.net.limited_log import LimitedLog
from bridge.net.sliced_reads import SlicedReads
from bridge.net.trust import TrustedServers
from bridge.protocol import commands
from bridge.protocol.errors import ProtocolError
from bridge.protocol.frames import NOTHING, Frame, FrameDecoder, encode_frame
from bridge.protocol.pulsar_pb2 import (
    BaseCommand,
    ServerError,
)
from bridge.protocol.service_url import ServiceUrls
from tracker import Position

T = TypeVar("T")
_PING = encode_frame(commands.ping())


class SessionHost(Protocol):
    """What a session needs of the gateway it belongs to."""

    service_url: str
    topics: TrackedTopics
    log: LimitedLog
    limits: ConnectionLimits
    randbits: RandBits
    trusted: TrustedServers
    tracking: Tracking

    def opened(self, session: "ClientSession") -> bool:
        """Count it in; False when there are too many."""

    def closed(self, session: "ClientSession") -> None:
        """Count it out."""

    def failed(self, peer: str, error: Exception) -> None:
        """Tell of an error that nobody thought of; the session ends."""


class ClientSession(SlicedReads):
    """The server side of one client connection."""

    def __init__(self, host: SessionHost, by_tls: bool = False) -> None:
        """Wait for `connection_made`."""
        limits = self._limits = host.limits
        super().__init__(limits.client_read_bytes)
        self.peer = "?"
        self.by_tls = by_tls
        self._host = host
        self._log = host.log
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(limits.max_connect_command_bytes)
        self.knows_broker_metadata = False
        self._connected = False
        self._upstreams = SessionUpstreams(self, self.spawn, limits, host.trusted)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._router = Router(
            self, host.topics, host.service_url, self._upstreams, limits, host.randbits, host.tracking
        )
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._abort_timer: asyncio.TimerHandle | None = None
        self._turns = Turns(
            self._on_client_frame, self._has_enough, lambda held: self._hold("turns", held), limits.client_turn_s
        )
        self._holds: set[str] = set()
        self._keep_alive = KeepAlive(self._ping, self._vanished, self._look_at_brokers, limits.keep_alive_interval_s)
        self._upstreams_full = 0
        self._ended = False
        self._has_room = True

    # -- asyncio.Protocol: the client's side

    @ending
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start waiting for CONNECT."""
        super().connection_made(transport)
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        host, port = (*(transport.get_extra_info("peername") or ("?", "?")),)[:2]
        self.peer = f"{host}:{port}"
        self._transport.set_write_buffer_limits(
            self._limits.client_write_high_water, self._limits.client_write_low_water
        )
        if not self._host.opened(self):
            self.end("too many client connections")
            return
        self._handshake_timer = self._loop.call_later(self._limits.handshake_timeout_s, self._handshake_expired)

    @ending
    def data_received(self, data: bytes) -> None:
        """Relay or handle every frame; a broken one ends the session."""
        self._keep_alive.heard()
        try:
            self._turns.take(self._decoder.feed(data, _RELAYED_FROM_CLIENT if self._relaying else NOTHING))
        except ProtocolError as error:
            self.end(str(error), error=True)

    @ending
    def pause_writing(self) -> None:
        """The client does not read: let the brokers wait, and the subscriptions know at once."""
        self._has_room = False
        for upstream in self._upstreams.all():
            upstream.hold_reads(True)
        self._router.tell_writable()

    @ending
    def resume_writing(self) -> None:
        """The client reads again."""
        self._has_room = True
        for upstream in self._upstreams.all():
            upstream.hold_reads(False)
        self._router.resume()
        self._turns.go_on()

    @ending
    def connection_lost(self, exc: Exception | None) -> None:
        """Free everything the client held."""
        if self._decoder.buffered and not self._ended:
            self._log.warning("client session ends", self.peer, "frame", reason="closed in the middle of a frame")
        self._transport = None
        for timer in (self._handshake_timer, self._abort_timer):
            if timer is not None:
                timer.cancel()
        with contextlib.ExitStack() as steps:  # the last is the first; each is done, whatever becomes of the others
            steps.callback(self._let_go_if_idle)
            steps.callback(self._host.closed, self)
            steps.callback(self._router.end)
            steps.callback(self._upstreams.end)
            for task in self._tasks:
                steps.callback(task.cancel)
            steps.callback(self._turns.end)
            steps.callback(self._keep_alive.stop)

    def _let_go_if_idle(self) -> None:
        if not self._tasks:
            self._let_go()

    def _let_go(self) -> None:
        """Of the parts that refer to this one: the collector of cycles comes by once in an hour."""
        self._router.let_go()
        del self._turns, self._keep_alive, self._router, self._upstreams

    # -- client frames

    def _on_client_frame(self, frame: Frame) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        try:
            self._handle(frame)
        except (ProtocolError, ValueError) as error:
            self.end(str(error), error=True)
        except Exception as error:
            self.fail(error)

    def _handle(self, frame: Frame) -> None:
        if not self._connected:
            self._before_connected(frame)
        elif frame.type == BaseCommand.AUTH_RESPONSE:
            self._on_auth_response(frame)
        else:
            self._router.from_client(frame)

    def _before_connected(self, frame: Frame) -> None:
        if frame.type == BaseCommand.CONNECT and self._upstreams.connect is None:
            body_of(frame)
            connect = self._upstreams.connect = frame.command()
            self.knows_broker_metadata = connect.connect.feature_flags.supports_broker_entry_metadata
            # Only a proxy in front of us would set it; the bridge itself decides where to connect.
            connect.connect.ClearField("proxy_to_broker_url")
            self.spawn(self._open_first(connect))
        elif frame.type == BaseCommand.AUTH_RESPONSE and self._upstreams.first is not None:
            self._on_auth_response(frame)
        else:
            raise ProtocolError(f"command of type {frame.type} before CONNECTED")

    def _on_auth_response(self, frame: Frame) -> None:
        following = self._upstreams.on_auth_response(frame)
        if following is not None:
            self._write_all([following])

    # -- server frames (UpstreamOwner)

    @property
    def relayed_from_broker(self) -> frozenset[int]:
        """Types of a broker's frames that go to the client unseen."""
        return RELAYED_FROM_BROKER if self._transport is None else self._router.relayed

    def on_server_frames(self, upstream: Upstream, frames: list[Frame]) -> None:
        """Relay to the client what is not for the gateway itself, in one write."""
        if self._transport is None:
            return  # a connection with TLS hands on what it holds while it is being closed
        out: list[bytes | memoryview] = []
        for frame in frames:
            data = self._shown(upstream, frame)
            if data is not None:
                out.append(data)
        if out:
            self._write_all(out)
        self._router.note_answers(upstream, frames)

    def _shown(self, upstream: Upstream, frame: Frame) -> Shown:
        if frame.type == BaseCommand.CONNECTED:
            return self._on_connected(upstream, frame)
        if frame.type == BaseCommand.AUTH_CHALLENGE:
            return self._on_auth_challenge(upstream, frame)
        return self._router.shown(upstream, frame)

    @ending
    def on_server_writable(self, writable: bool) -> None:
        """An upstream's buffer is full: stop reading from the client until all have room again."""
        self._upstreams_full += -1 if writable else 1
        self._hold("upstream", self._upstreams_full > 0)

    @ending
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
        upstream.hold_reads(not self._has_room)
        if upstream is not self._upstreams.first:
            return None
        self._connected = True
        if connected.max_message_size:
            self._decoder.limit_to(connected.max_message_size)
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
        self._keep_alive.start()
        connected.protocol_version = min(connected.protocol_version, commands.PROTOCOL_VERSION)
        if connected.HasField("feature_flags"):
            # A flag this gateway does not know of is one it does not serve.
            connected.feature_flags.DiscardUnknownFields()
        return encode_frame(command)

    def _on_auth_challenge(self, upstream: Upstream, frame: Frame) -> memoryview | None:
        shown = self._upstreams.on_challenge(upstream, frame)
        self._turns.go_on()
        return shown

    # -- ClientWriter

    @property
    def writable(self) -> bool:
        """Whether more may be dispatched to the client: it reads, and its brokers have been heard since it does."""
        return self._has_room and self._transport is not None and not self._upstreams.are_behind

    @ending
    def write_client(self, data: bytes) -> None:
        """Send bytes to the client; dropped when it is gone."""
        if self._transport is not None:
            self._transport.write(data)

    @ending
    def send_upstream(self, consumer_id: int, command: BaseCommand) -> None:
        """Send a command to the broker of a consumer."""
        if self._transport is not None:
            self._router.send(consumer_id, command)

    @ending
    def request_mark_delete(self, consumer_id: int, answer: Callable[[Position], None]) -> None:
        """Ask the broker of a consumer for the mark-delete position."""
        if self._transport is not None:
            self._router.request_mark_delete(consumer_id, answer)

    @ending
    def close_consumer(self, consumer: TrackedConsumer, to: ServiceUrls | None) -> None:
        """Close a tracked consumer on both sides."""
        if self._transport is not None and self._router.close_consumer(consumer):
            self.write_client(encode_frame(commands.close_consumer(consumer.consumer_id, BROKER_INITIATED, to)))

    def fail(self, error: Exception) -> None:
        """An error that nobody thought of: the client starts over."""
        self._host.failed(self.peer, error)
        self.end("internal error")

    def end(self, reason: str, error: bool = False) -> None:
        """Close the client's connection; `connection_lost` does the rest. `error`: the client is to blame."""
        if self._transport is None or self._transport.is_closing():
            return
        (self._log.warning if error else self._log.info)("client session ends", self.peer, str(error), reason=reason)
        self._ended = True
        self._transport.close()
        self._abort_timer = self._loop.call_later(self._limits.close_timeout_s, self._abort)

    # -- helpers

    def _abort(self) -> None:
        """A client that does not read must not keep a closing session alive."""
        if self._transport is not None:
            self._transport.abort()

    @ending
    def _hold(self, reason: str, held: bool) -> None:
        """Read nothing from the client as long as there is a reason."""
        (self._holds.add if held else self._holds.discard)(reason)
        self.hold_reads(bool(self._holds))

    def _has_enough(self) -> bool:
        """Whether it waits for brokers, or does not read what it is answered."""
        if len(self._tasks) >= self._limits.client_tasks_at_once and not self._upstreams.is_challenged:
            return True  # unless what they wait for may be the client's answer to a broker
        transport = self._transport
        if self._has_room or transport is None:
            return False
        return transport.get_write_buffer_size() > self._limits.client_unread

    @ending
    def _ping(self) -> None:
        if self._upstreams_full or len(self._tasks) >= self._limits.client_tasks_at_once:
            self._keep_alive.heard()  # nothing is read from the client, and that is not its fault
        else:
            self.write_client(_PING)

    @ending
    def _look_at_brokers(self) -> None:
        silent = next((upstream for upstream in self._upstreams.all() if not upstream.look()), None)
        if silent is not None:
            self.end(f"{silent.url} is silent", error=True)

    @ending
    def _vanished(self) -> None:
        self.end(f"nothing came from the client for {2 * self._limits.keep_alive_interval_s:g} s", error=True)
        self._abort()  # whatever is still to be written: nobody reads it

    @ending
    def _handshake_expired(self) -> None:
        if not self._connected:
            self.end(f"no CONNECT and answer to it within {self._limits.handshake_timeout_s:g} s", error=True)

    @property
    def broker_connections(self) -> int:
        """Its connections to brokers."""
        return len(self._upstreams.all())

    @property
    def _relaying(self) -> bool:
        """Whether frames that concern the broker alone need no look at all: there is but one."""
        return self._connected and self._upstreams.only is not None

    def _write_all(self, parts: Iterable[bytes | memoryview]) -> None:
        if self._transport is None:
            return
        if self.by_tls:
            self._transport.write(b"".join(parts))  # each part would be a record of its own
        else:
            self._transport.writelines(parts)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run work for as long as the client is there."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    @ending
    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception) and not _is_known(error):
            self.fail(error)
        if self._transport is not None:
            self._turns.go_on()
        elif not self._tasks:
            self._let_go()

    def note_refusal(self, request_id: int, name: str, reason: str) -> None:
        """Log that a request was refused."""
        self._log.warning("request failed", self.peer, name, request_id=request_id, reason=reason)

    async def _open_first(self, connect: BaseCommand) -> None:
        try:
            await self._upstreams.open_first(self._host.service_url, connect)
        except BrokerError as error:
            refusal = commands.error(BROKER_INITIATED, ServerError.ServiceNotReady, str(error))
            self.write_client(encode_frame(refusal))
            self.end(str(error))


def _is_known(error: Exception) -> bool:
    """Whether whoever waited for the task has been told."""
    return isinstance(error, BrokerError | ProtocolError)


_RELAYED_FROM_CLIENT = frozenset({BaseCommand.SEND})
