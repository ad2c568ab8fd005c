"""A Pulsar client of bare frames: for precise behaviour, and for input no proper client sends."""

import asyncio
import itertools
import ssl
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from google.protobuf.message import Message

from bridge.protocol.answers import ANSWER_OF, FIELD_OF
from bridge.protocol.frames import Frame, FrameDecoder, encode_frame, entry_metadata
from bridge.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandSubscribe,
    MessageIdData,
    MessageMetadata,
)
from tests.helpers import wait_until_async

PATIENCE_S = 10.0
open_clients: "set[RawClient]" = set()
"""Those of the running test; a fixture closes what a failing test leaves."""
_ANSWERS = {kind: FIELD_OF[kind] for kind in (BaseCommand.ERROR, BaseCommand.ACK_RESPONSE, *ANSWER_OF.values())}


class RawMessage(NamedTuple):
    """A MESSAGE frame."""

    consumer_id: int
    message_id: MessageIdData
    redelivery_count: int
    ack_set: tuple[int, ...]
    entry: bytes

    @property
    def position(self) -> tuple[int, int]:
        return self.message_id.ledgerId, self.message_id.entryId

    @property
    def payload(self) -> bytes:
        metadata = entry_metadata(self.entry)
        # Unbatched and uncompressed, as `RawClient.publish` sends: the payload is the end of the entry.
        return self.entry[self.entry.index(metadata.SerializeToString()) + metadata.ByteSize() :]


class RawClient(asyncio.Protocol):
    """Answers pings by itself; keeps messages in `messages` and what answers no request in `events`."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[RawMessage] = asyncio.Queue()
        self.events: list[BaseCommand] = []
        self.pings = 0
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder()
        self._requests: dict[int, asyncio.Future[BaseCommand]] = {}
        self._receipts: dict[tuple[int, int], asyncio.Future[tuple[int, int]]] = {}
        self._request_ids = itertools.count(1)

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        open_clients.add(self)

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            self._on_frame(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        open_clients.discard(self)
        if not self.lost.done():
            self.lost.set_result(None)
        waiting: list[asyncio.Future[Any]] = [*self._requests.values(), *self._receipts.values()]
        for future in waiting:
            future.cancel()

    # -- bytes and frames

    @property
    def address(self) -> str:
        """This side's address, as the bridge's log names it."""
        host, port = self.transport.get_extra_info("sockname")[:2]
        return f"{host}:{port}"

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None, "the connection is closed"
        return self._transport

    def send_bytes(self, data: bytes) -> None:
        self.transport.write(data)

    def send(self, command: BaseCommand, entry: bytes = b"") -> None:
        self.send_bytes(encode_frame(command, entry))

    async def request(self, command: BaseCommand, request_id: int, timeout_s: float = PATIENCE_S) -> BaseCommand:
        """Send, and return the answer, an ERROR included."""
        future: asyncio.Future[BaseCommand] = asyncio.get_running_loop().create_future()
        self._requests[request_id] = future
        self.send(command)
        async with asyncio.timeout(timeout_s):
            return await future

    def next_request_id(self) -> int:
        return next(self._request_ids)

    async def closed_by_peer(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until the other side closes the connection."""
        async with asyncio.timeout(timeout_s):
            await asyncio.shield(self.lost)

    async def event(self, kind: int, timeout_s: float = PATIENCE_S) -> BaseCommand:
        """Wait for a command that answers no request, and take it."""

        def find() -> BaseCommand | None:
            return next((each for each in self.events if each.type == kind), None)

        found = await wait_until_async(find, f"a command of type {kind}", timeout=timeout_s, interval=0.005)
        assert found is not None
        self.events.remove(found)
        return found

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        await self.lost

    # -- commands

    async def handshake(self, *, refreshes: bool = False, broker_metadata: bool = False, **fields: Any) -> BaseCommand:
        """Say CONNECT; returns CONNECTED or ERROR. `refreshes`: the client can be asked for new credentials;
        `broker_metadata`: it knows what brokers note of entries.
        """
        command = BaseCommand(type=BaseCommand.CONNECT)
        command.connect.client_version = "raw"
        command.connect.protocol_version = 21
        command.connect.feature_flags.supports_auth_refresh = refreshes
        command.connect.feature_flags.supports_broker_entry_metadata = broker_metadata
        for name, value in fields.items():
            setattr(command.connect, name, value)
        self.send(command)

        def answer() -> BaseCommand | None:
            found = next((e for e in self.events if e.type in (BaseCommand.CONNECTED, BaseCommand.ERROR)), None)
            if found is None and self.lost.done():
                raise ConnectionError("closed instead of CONNECTED")
            return found

        found = await wait_until_async(answer, "CONNECTED", interval=0.005)
        assert found is not None
        self.events.remove(found)
        return found

    async def lookup(self, topic: str) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.LOOKUP)
        command.lookupTopic.topic = topic
        command.lookupTopic.request_id = request_id = self.next_request_id()
        return await self.request(command, request_id)

    async def subscribe(self, topic: str, subscription: str = "s", consumer_id: int = 1, **fields: Any) -> BaseCommand:
        """SUBSCRIBE without a lookup; Shared, durable, from the earliest, unless `fields` say otherwise."""
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        subscribe = command.subscribe
        subscribe.topic = topic
        subscribe.subscription = subscription
        subscribe.subType = CommandSubscribe.Shared
        subscribe.consumer_id = consumer_id
        subscribe.request_id = request_id = self.next_request_id()
        subscribe.consumer_name = f"raw-{consumer_id}"
        subscribe.initialPosition = CommandSubscribe.Earliest
        for name, value in fields.items():
            if isinstance(value, Message):
                getattr(subscribe, name).CopyFrom(value)
            else:
                setattr(subscribe, name, value)
        return await self.request(command, request_id)

    async def consume(self, topic: str, subscription: str = "s", consumer_id: int = 1, **fields: Any) -> None:
        """LOOKUP and SUBSCRIBE, both successful."""
        await self.lookup(topic)
        answer = await self.subscribe(topic, subscription, consumer_id, **fields)
        assert answer.type == BaseCommand.SUCCESS, answer

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        command = BaseCommand(type=BaseCommand.FLOW)
        command.flow.consumer_id = consumer_id
        command.flow.messagePermits = permits
        self.send(command)

    def ack(self, *positions: tuple[int, int], consumer_id: int = 1, ack_set: tuple[int, ...] = ()) -> None:
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id = consumer_id
        command.ack.ack_type = CommandAck.Individual
        for ledger, entry in positions:
            command.ack.message_id.add(ledgerId=ledger, entryId=entry, ack_set=ack_set)
        self.send(command)

    def redeliver(self, *positions: tuple[int, int], consumer_id: int = 1) -> None:
        command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        command.redeliverUnacknowledgedMessages.consumer_id = consumer_id
        for ledger, entry in positions:
            command.redeliverUnacknowledgedMessages.message_ids.add(ledgerId=ledger, entryId=entry)
        self.send(command)

    async def close_consumer(self, consumer_id: int = 1) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = consumer_id
        command.close_consumer.request_id = request_id = self.next_request_id()
        return await self.request(command, request_id)

    async def produce(self, topic: str, producer_id: int = 1) -> str:
        """LOOKUP and PRODUCER; returns the producer's name."""
        await self.lookup(topic)
        command = BaseCommand(type=BaseCommand.PRODUCER)
        command.producer.topic = topic
        command.producer.producer_id = producer_id
        command.producer.request_id = request_id = self.next_request_id()
        answer = await self.request(command, request_id)
        assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer
        return answer.producer_success.producer_name

    async def publish(
        self,
        payload: bytes,
        deliver_at: int | None = None,
        *,
        producer_id: int = 1,
        sequence_id: int = 0,
        messages: int | None = None,
        publish_ms: int = 1,
        transaction: tuple[int, int] | None = None,
        key: str | None = None,
        changed: tuple[bytes, bytes] | None = None,
        **fields: Any,
    ) -> tuple[int, int]:
        """SEND; returns the position once stored. `messages`: what the metadata calls the size of the batch; `fields`:
        more of it; `changed`: some bytes of it, and what is written in their place.
        """
        metadata = MessageMetadata(producer_name="raw", sequence_id=sequence_id, publish_time=publish_ms)
        if deliver_at is not None:
            metadata.deliver_at_time = deliver_at
        if messages is not None:
            metadata.num_messages_in_batch = messages
        for name, value in fields.items():
            if isinstance(value, list):
                getattr(metadata, name).extend(value)
            else:
                setattr(metadata, name, value)
        command = BaseCommand(type=BaseCommand.SEND)
        if key is not None:
            metadata.partition_key = key
        if transaction is not None:
            for each in (metadata, command.send):
                each.txnid_most_bits, each.txnid_least_bits = transaction
        body = metadata.SerializeToString()
        if changed is not None:
            body = body.replace(*changed)
        command.send.producer_id = producer_id
        command.send.sequence_id = sequence_id
        stored: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        self._receipts[producer_id, sequence_id] = stored
        self.send(command, len(body).to_bytes(4, "big") + body + payload)
        async with asyncio.timeout(PATIENCE_S):
            return await stored

    async def message(self, timeout_s: float = PATIENCE_S) -> RawMessage:
        async with asyncio.timeout(timeout_s):
            return await self.messages.get()

    def _on_frame(self, frame: Frame) -> None:
        command = frame.command()
        if command.type == BaseCommand.MESSAGE:
            message = command.message
            self.messages.put_nowait(
                RawMessage(
                    message.consumer_id,
                    message.message_id,
                    message.redelivery_count,
                    tuple(message.ack_set),
                    frame.entry(),
                )
            )
        elif command.type == BaseCommand.SEND_RECEIPT:
            receipt = command.send_receipt
            stored = self._receipts.pop((receipt.producer_id, receipt.sequence_id), None)
            if stored is None:
                self.events.append(command)
            elif not stored.done():
                stored.set_result((receipt.message_id.ledgerId, receipt.message_id.entryId))
        elif command.type == BaseCommand.PING:
            self.pings += 1
            self.send(BaseCommand(type=BaseCommand.PONG, pong={}))
        else:
            body = getattr(command, _ANSWERS[command.type]) if command.type in _ANSWERS else None
            future = self._requests.pop(body.request_id, None) if body is not None else None
            if future is None:
                self.events.append(command)
            elif not future.done():
                future.set_result(command)


async def raw_client(url: str, *, handshake: bool = True, tls: ssl.SSLContext | None = None) -> RawClient:
    """Connect, by TLS if told so, and say CONNECT unless told otherwise."""
    parts = urlsplit(url)
    assert parts.hostname
    assert parts.port
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(RawClient, parts.hostname, parts.port, ssl=tls)
    if handshake:
        answer = await client.handshake()
        assert answer.type == BaseCommand.CONNECTED, answer
    return client
