"""A connection of the bridge's own to a broker: requests with answers, and consumers with listeners."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import structlog

from bridge.clock import RandBits, system_randbits
from bridge.limits import ConnectionLimits
from bridge.net.certificates import CertificateError
from bridge.net.sliced_reads import SlicedReads
from bridge.net.trust import TrustedServers
from bridge.protocol import commands
from bridge.protocol.answers import ANSWER_OF
from bridge.protocol.entries import StoredEntry, stored_entry
from bridge.protocol.errors import ProtocolError
from bridge.protocol.frames import Frame, FrameDecoder, encode_frame
from bridge.protocol.pulsar_pb2 import BaseCommand, ServerError
from bridge.protocol.service_url import parse_service_url

Spoken = TypeVar("Spoken", bound=asyncio.BaseProtocol)

log = structlog.get_logger(__name__)

ANSWERS = {
    BaseCommand.SUCCESS: "success",
    BaseCommand.ERROR: "error",
    BaseCommand.PRODUCER_SUCCESS: "producer_success",
    BaseCommand.LOOKUP_RESPONSE: "lookupTopicResponse",
    BaseCommand.PARTITIONED_METADATA_RESPONSE: "partitionMetadataResponse",
    BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: "getLastMessageIdResponse",
    BaseCommand.ACK_RESPONSE: "ackResponse",
}
"""Answers that carry the request's id, and the field of BaseCommand that holds them."""


class BrokerError(Exception):
    """The broker refused a request, or could not be reached."""

    def __init__(self, message: str, code: ServerError | None = None) -> None:
        """`code`: the broker's ServerError, None when there was no answer."""
        super().__init__(message if code is None else f"{ServerError.Name(code)}: {message}")
        self.code = code
        self.message = message


class ConnectionClosed(BrokerError):
    """The connection went away while somebody needed it."""


class ConsumerListener(Protocol):
    """What a consumer on a BrokerConnection is told. Called on the event loop; must not block."""

    def on_entries(self, entries: list[StoredEntry]) -> None:
        """Entries of one network read, in order."""

    def on_active(self, active: bool) -> None:
        """The broker elected (or deposed) this Failover consumer."""

    def on_closed(self, reason: str) -> None:
        """The broker closed the consumer, or the connection is gone. Told once."""


class BrokerConnection(SlicedReads):
    """One TCP connection; open it with `connect`."""

    def __init__(self, url: str, limits: ConnectionLimits, randbits: RandBits = system_randbits) -> None:
        """`url`: the broker's service URL, for messages and logs."""
        super().__init__(limits.server_read_bytes)
        self.limits = limits
        self.url = url
        self.randbits = randbits
        self.max_message_size = 0
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._handshake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests: dict[int, tuple[int, asyncio.Future[BaseCommand]]] = {}  # with the type of their answer
        self._listeners: dict[int, ConsumerListener] = {}
        self._request_ids = itertools.count(1)
        self._consumer_ids = itertools.count(1)
        self._heard = 0.0
        self._asked: float | None = None
        self._confirmed = 0.0
        self._keep_alive: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start keep-alive."""
        super().connection_made(transport)
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        self._confirmed = asyncio.get_running_loop().time()  # CONNECTED follows, or nothing does
        self._schedule_keep_alive()

    def data_received(self, data: bytes) -> None:
        """Hand every frame to whom it concerns; a broken frame ends the connection."""
        self._heard = asyncio.get_running_loop().time()
        batches: dict[int, list[StoredEntry]] = {}
        try:
            for frame in self._decoder.feed(data):
                if frame.type == BaseCommand.MESSAGE:
                    message = frame.command().message
                    batches.setdefault(message.consumer_id, []).append(stored_entry(frame, message))
                else:
                    self._on_frame(frame)
        except ProtocolError as error:
            log.error("broker broke the protocol", broker=self.url, reason=str(error))
            self.close()
            return
        for consumer_id, entries in batches.items():
            listener = self._listeners.get(consumer_id)
            if listener is not None:
                listener.on_entries(entries)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits and tell every listener."""
        self._transport = None
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        reason = f"connection to {self.url} closed" + (f": {exc}" if exc else "")
        for _, future in self._requests.values():
            _fail(future, reason)
        _fail(self._handshake, reason)
        self._requests.clear()
        listeners, self._listeners = self._listeners, {}
        if not self.closed.done():
            self.closed.set_result(None)
        with contextlib.ExitStack() as each:  # whatever becomes of the others
            for listener in reversed(listeners.values()):
                each.callback(listener.on_closed, reason)

    # -- use

    @property
    def is_closed(self) -> bool:
        """Whether the connection is gone or going."""
        return self._transport is None or self._transport.is_closing()

    @property
    def unconfirmed_s(self) -> float:
        """How long ago the broker certainly heard of this bridge last: what it has answered was sent then."""
        return asyncio.get_running_loop().time() - self._confirmed

    @property
    def is_confirmed(self) -> bool:
        """Whether what the broker said of this bridge's place holds: it would not have given it to another one yet."""
        return self.unconfirmed_s < self.limits.confirmed_s

    async def handshake(self, connect: BaseCommand) -> None:
        """Say CONNECT and wait for CONNECTED. Raises BrokerError."""
        self.send(connect)
        async with asyncio.timeout(self.limits.handshake_timeout_s):
            await self._handshake

    def send(self, command: BaseCommand) -> None:
        """Write a command. Raises ConnectionClosed."""
        if self._transport is None:
            raise ConnectionClosed(f"connection to {self.url} closed")
        self._transport.write(encode_frame(command))

    def next_request_id(self) -> int:
        """A request id not used before on this connection."""
        return next(self._request_ids)

    async def request(self, command: BaseCommand, request_id: int, timeout_s: float | None = None) -> BaseCommand:
        """Send `command`, which carries `request_id`, and return the answer.

        Raises BrokerError when the broker refuses or does not answer in time, by default `request_timeout_s`.
        """
        timeout_s = self.limits.request_timeout_s if timeout_s is None else timeout_s
        future: asyncio.Future[BaseCommand] = asyncio.get_running_loop().create_future()
        self._requests[request_id] = ANSWER_OF.get(command.type, BaseCommand.ACK_RESPONSE), future
        try:
            self.send(command)
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise BrokerError(f"{self.url} did not answer within {timeout_s:g} s") from None
        finally:
            self._requests.pop(request_id, None)

    def register(self, listener: ConsumerListener) -> int:
        """Reserve a consumer id before SUBSCRIBE is sent: the broker may speak of it before it answers."""
        consumer_id = next(self._consumer_ids)
        self._listeners[consumer_id] = listener
        return consumer_id

    def unregister(self, consumer_id: int) -> None:
        """Forget a consumer; its late frames are dropped."""
        self._listeners.pop(consumer_id, None)

    def close(self) -> None:
        """Close the connection; listeners are told by `connection_lost`."""
        if self._transport is not None:
            self._transport.close()

    # -- frames

    def _on_frame(self, frame: Frame) -> None:
        command = frame.command()
        kind = command.type
        if kind in ANSWERS:
            self._answer(command)
        elif kind == BaseCommand.PING:
            self.send(commands.pong())
        elif kind == BaseCommand.PONG and self._asked is not None:
            self._confirmed, self._asked = self._asked, None
        elif kind == BaseCommand.CONNECTED:
            self.max_message_size = command.connected.max_message_size
            if self.max_message_size:
                self._decoder.limit_to(self.max_message_size)
            if not self._handshake.done():
                self._handshake.set_result(None)
        elif kind == BaseCommand.ACTIVE_CONSUMER_CHANGE:
            change = command.active_consumer_change
            listener = self._listeners.get(change.consumer_id)
            if listener is not None:
                listener.on_active(change.is_active)
        elif kind == BaseCommand.CLOSE_CONSUMER:
            listener = self._listeners.pop(command.close_consumer.consumer_id, None)
            if listener is not None:
                listener.on_closed("closed by the broker")

    def _answer(self, command: BaseCommand) -> None:
        body = getattr(command, ANSWERS[command.type])
        if command.type == BaseCommand.ERROR and not self._handshake.done():
            self._handshake.set_exception(BrokerError(body.message, body.error))
            return
        expected, future = self._requests.get(body.request_id, (None, None))
        if future is None or future.done():
            return
        if command.type == BaseCommand.ERROR:
            future.set_exception(BrokerError(body.message, body.error))
        elif command.type == expected:
            future.set_result(command)
        else:
            future.set_exception(BrokerError(f"{self.url} gave another answer: {BaseCommand.Type.Name(command.type)}"))

    def _schedule_keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        self._heard = loop.time()

        def check() -> None:
            if self.is_closed:
                return
            silent = loop.time() - self._heard
            if silent > 2 * self.limits.keep_alive_interval_s:
                log.warning("broker is silent", broker=self.url, seconds=round(silent))
                assert self._transport is not None
                self._transport.abort()
                return
            if self._asked is None:  # else its answer would be taken for that of the next one
                self._asked = loop.time()
                self.send(commands.ping())
            self._keep_alive = loop.call_later(self.limits.confirm_every_s, check)

        self._keep_alive = loop.call_later(self.limits.confirm_every_s, check)


def _fail(future: asyncio.Future[Any], reason: str) -> None:
    if not future.done():
        future.set_exception(ConnectionClosed(reason))
        future.exception()  # seen, also when nobody waits any more


def describe(error: Exception) -> str:
    """The error in words; time-outs carry none of their own."""
    return str(error) or "timed out"


async def reach(url: str, make: Callable[[], Spoken], timeout_s: float, trusted: TrustedServers) -> Spoken:
    """Open a connection to a service URL; nothing is said yet. Raises BrokerError (no such URL, unreachable)."""
    loop = asyncio.get_running_loop()
    try:
        host, port, tls = parse_service_url(url)
    except ValueError as error:
        raise BrokerError(str(error)) from error
    try:
        context = trusted.context if tls else None
        async with asyncio.timeout(timeout_s):
            _, protocol = await loop.create_connection(make, host, port, ssl=context)
    except (CertificateError, OSError, TimeoutError, UnicodeError) as error:  # the last: a name too long for DNS
        raise BrokerError(f"cannot reach {url}: {describe(error)}") from error
    return protocol


async def connect(
    url: str,
    limits: ConnectionLimits,
    auth_token: str | None = None,
    randbits: RandBits = system_randbits,
    trusted: TrustedServers | None = None,
) -> BrokerConnection:
    """Connect and shake hands; `trusted`: by default the system's authorities.

    Raises BrokerError (refused, unreachable, no answer).
    """
    trusted = TrustedServers() if trusted is None else trusted
    connection = await reach(url, lambda: BrokerConnection(url, limits, randbits), limits.handshake_timeout_s, trusted)
    try:
        await connection.handshake(commands.connect(auth_token))
    except BaseException as error:
        connection.close()
        if isinstance(error, TimeoutError):
            raise BrokerError(f"{url} did not answer CONNECT") from None
        raise
    return connection
