"""Clients of a simulated world: they connect, come back when they lose their connection, and tell the account."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from bridge.protocol.frames import Frame, FrameDecoder, encode_frame
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandAck, CommandSubscribe, KeySharedMode, MessageMetadata
from bridge.protocol.service_url import parse_service_url
from tests.simulation.account import Account
from tests.simulation.key_account import Stay
from tests.simulation.messages import Broken
from tests.simulation.network import End

PATIENCE_S = 10.0
PERMITS = 50
_ANSWERS = {
    BaseCommand.SUCCESS: "success",
    BaseCommand.ERROR: "error",
    BaseCommand.PRODUCER_SUCCESS: "producer_success",
    BaseCommand.LOOKUP_RESPONSE: "lookupTopicResponse",
}


class Lost(Exception):
    """The connection is gone, or the answer does not come."""


class Wire(asyncio.Protocol):
    """A connection: requests with answers; everything else goes to `on_command`."""

    def __init__(self, on_command: Callable[[BaseCommand, Frame], None]) -> None:
        """Not connected yet."""
        loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = loop.create_future()
        self.connected: asyncio.Future[None] = loop.create_future()
        self.end: End | None = None
        self._on_command = on_command
        self._decoder = FrameDecoder()
        self._waiting: dict[int, asyncio.Future[BaseCommand]] = {}
        self._ids = itertools.count(1)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say CONNECT."""
        self.end = cast(End, transport)
        command = BaseCommand(type=BaseCommand.CONNECT)
        command.connect.client_version, command.connect.protocol_version = "simulated", 20
        self.send(command)

    def data_received(self, data: bytes) -> None:
        """Handle frames."""
        for frame in self._decoder.feed(data):
            command = frame.command()
            if command.type == BaseCommand.PING:
                self.send(BaseCommand(type=BaseCommand.PONG, pong={}))
            elif command.type == BaseCommand.CONNECTED:
                if not self.connected.done():
                    self.connected.set_result(None)
            elif command.type in _ANSWERS:
                waiting = self._waiting.pop(getattr(command, _ANSWERS[command.type]).request_id, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(command)
            else:
                self._on_command(command, frame)

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever waits learns of it by `lost`."""
        self.end = None
        if not self.lost.done():
            self.lost.set_result(None)

    def send(self, command: BaseCommand, entry: bytes = b"") -> None:
        """Send, if it is still there."""
        if self.end is not None:
            self.end.write(encode_frame(command, entry))

    async def until(self, waited: asyncio.Future[Any]) -> Any:
        """What comes, unless the connection is lost. Raises Lost."""
        await asyncio.wait([waited, self.lost], timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        if not waited.done():
            waited.cancel()
            raise Lost
        return waited.result()

    async def ask(self, command: BaseCommand, name: str) -> BaseCommand:
        """Send a request; its answer, an ERROR included. Raises Lost."""
        request_id = next(self._ids)
        getattr(command, name).request_id = request_id
        waiting = self._waiting[request_id] = asyncio.get_running_loop().create_future()
        self.send(command)
        return cast(BaseCommand, await self.until(waiting))

    async def succeed(self, command: BaseCommand, name: str) -> BaseCommand:
        """Raises Lost also for an ERROR."""
        answer = await self.ask(command, name)
        if answer.type == BaseCommand.ERROR:
            raise Lost(answer.error.message)
        return answer

    async def owner(self, topic: str) -> str:
        """LOOKUP. Raises Lost."""
        command = BaseCommand(type=BaseCommand.LOOKUP)
        command.lookupTopic.topic = topic
        answer = (await self.succeed(command, "lookupTopic")).lookupTopicResponse
        if not answer.brokerServiceUrl:
            raise Lost(answer.message)
        return answer.brokerServiceUrl

    def close(self) -> None:
        """Close the connection."""
        if self.end is not None:
            self.end.close()

    def is_dead(self) -> bool:
        """Whether the line is lost, or swallows what is said."""
        return self.end is None or any(self.end.connection.silent)


async def connect(url: str, on_command: Callable[[BaseCommand, Frame], None]) -> Wire:
    """Connect and shake hands. Raises Lost."""
    host, port, _ = parse_service_url(url)
    try:
        async with asyncio.timeout(PATIENCE_S):
            _, wire = await asyncio.get_running_loop().create_connection(lambda: Wire(on_command), host, port)
    except OSError as error:
        raise Lost(str(error)) from error
    try:
        await wire.until(wire.connected)
    except Lost:
        wire.close()
        raise
    return wire


async def at_owner(urls: list[str], topic: str, chance: random.Random, on_command: Any) -> Wire:
    """A connection to whoever a lookup at one of the URLs names. Raises Lost."""
    url = chance.choice(urls)
    wire = await connect(url, on_command)
    try:
        for _ in range(5):
            owner = await wire.owner(topic)
            if owner == url:
                return wire
            wire.close()
            url, wire = owner, await connect(owner, on_command)
    except BaseException:
        wire.close()
        raise
    wire.close()
    raise Lost("sent from one to the other")


class Producer:
    """Publishes to one topic, and again what was not stored for certain."""

    def __init__(self, urls: list[str], topic: str, account: Account, chance: random.Random) -> None:
        """`urls`: brokers or bridges."""
        self._urls = urls
        self._topic = topic
        self._account = account
        self._chance = chance
        self.away = False
        self._wire: Wire | None = None
        self._numbers = itertools.count()
        self._receipts: dict[int, asyncio.Future[tuple[int, int]]] = {}

    async def publish(self, deliver_at_ms: int | None, messages: int = 1, key: str = "") -> None:
        """Until it is stored. A message that may be stored twice has two names."""
        while True:
            if self.away:
                await asyncio.sleep(0.2)
                continue
            text = self._account.name()
            try:
                place = await self._once(text, deliver_at_ms, messages, key)
            except Lost:
                self._wire = None
                await asyncio.sleep(self._chance.uniform(0.05, 1.0))
                continue
            self._account.stored(text, place)
            return

    def leave(self) -> None:
        """Not to come back while it is `away`."""
        if self._wire is not None:
            self._wire.close()

    async def _once(self, text: str, deliver_at_ms: int | None, messages: int, key: str) -> tuple[int, int]:
        if self._wire is None or self._wire.end is None:
            wire = await at_owner(self._urls, self._topic, self._chance, self._on_command)
            command = BaseCommand(type=BaseCommand.PRODUCER)
            command.producer.topic, command.producer.producer_id = self._topic, 1
            try:
                await wire.succeed(command, "producer")
            except Lost:
                wire.close()
                raise
            self._wire = wire
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=self._account.now_ms())
        if deliver_at_ms is not None:
            metadata.deliver_at_time = deliver_at_ms
        if messages > 1:
            metadata.num_messages_in_batch = messages
        if key:
            metadata.partition_key = key
        self._account.published(text, deliver_at_ms, key)
        sequence_id = next(self._numbers)
        command = BaseCommand(type=BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id = 1, sequence_id
        receipt = self._receipts[sequence_id] = asyncio.get_running_loop().create_future()
        body = metadata.SerializeToString()
        padding = b"." * self._chance.choice((0, 0, 0, 8_000))
        self._wire.send(command, len(body).to_bytes(4, "big") + body + text.encode() + padding)
        return cast(tuple[int, int], await self._wire.until(receipt))

    def _on_command(self, command: BaseCommand, _: Frame) -> None:
        if command.type == BaseCommand.SEND_RECEIPT:
            receipt = self._receipts.pop(command.send_receipt.sequence_id, None)
            if receipt is not None and not receipt.done():
                receipt.set_result((command.send_receipt.message_id.ledgerId, command.send_receipt.message_id.entryId))
        elif command.type == BaseCommand.CLOSE_PRODUCER and self._wire is not None:
            self._wire.close()


class Asks(NamedTuple):
    """How a consumer subscribes; `hashes`: the range of hashes of keys that it wants, first and last."""

    subscription: str = "s"
    consumer: str = "consumer"
    kind: CommandSubscribe.SubType = CommandSubscribe.Shared
    hashes: tuple[int, int] | None = None

    def put_into(self, subscribe: CommandSubscribe) -> None:
        """Fill in what it says."""
        subscribe.subscription, subscribe.consumer_name = self.subscription, self.consumer
        subscribe.subType, subscribe.initialPosition = self.kind, CommandSubscribe.Earliest
        if self.hashes is not None:
            subscribe.keySharedMeta.keySharedMode = KeySharedMode.STICKY
            subscribe.keySharedMeta.hashRanges.add(start=self.hashes[0], end=self.hashes[1])


class Consumer:
    """Consumes one subscription, alone or with others, and comes back whenever it is sent away."""

    def __init__(self, urls: list[str], topic: str, asks: Asks, account: Account, chance: random.Random) -> None:
        """`urls`: bridges."""
        self.wire: Wire | None = None
        self.thoughtless = 0.0
        """How many of what comes it does not ack: nacks, or forgets."""
        self.pause_s = 0.0
        """How long it takes to ack."""
        self.usual_pause_s = 0.0
        """How long it does unless something slows it down."""
        self.away = False
        """Not to come back for a while."""
        self._urls = urls
        self._topic = topic
        self._asks = asks
        self._account = account
        self._chance = chance
        self._stay = Stay(asks.consumer)
        self._closed: asyncio.Future[None] | None = None
        self._unread = 0
        self._topping_up = False
        self._stopping = False

    async def run(self) -> None:
        """Until stopped."""
        while not self._stopping:
            if self.away:
                await asyncio.sleep(0.2)
                continue
            try:
                await self._attend()
            except Lost:
                await asyncio.sleep(self._chance.uniform(0.05, 1.0))

    def vanish(self) -> None:
        """Without a word: the other side has to find out."""
        end = None if self.wire is None else self.wire.end
        if end is not None:
            end.connection.silent[:] = [True, True]
            end.lose(None)

    def leave(self) -> None:
        """In order."""
        if self.wire is not None:
            self.wire.close()

    def hang_up(self) -> None:
        """Its connection is reset."""
        if self.wire is not None and self.wire.end is not None:
            self.wire.end.abort()

    async def stop(self) -> None:
        """Leave for good."""
        self._stopping = True
        if self.wire is not None:
            self.wire.close()

    async def _attend(self) -> None:
        wire = await at_owner(self._urls, self._topic, self._chance, self._on_command)
        try:
            command = BaseCommand(type=BaseCommand.SUBSCRIBE)
            command.subscribe.topic, command.subscribe.consumer_id = self._topic, 1
            self._asks.put_into(command.subscribe)
            self._closed = asyncio.get_running_loop().create_future()
            self._stay = Stay(self._asks.consumer, unheard=wire.is_dead)
            self.wire = wire
            await wire.succeed(command, "subscribe")
            self._account.here(self._asks.consumer, True)
            self._unread, self._topping_up = 0, False
            self._flow(wire, PERMITS)
            await asyncio.wait([wire.lost, self._closed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._account.here(self._asks.consumer, False)
            self._stay.over = True
            self.wire = None
            wire.close()

    def _top_up(self, wire: Wire) -> None:
        self._topping_up = False
        if wire is self.wire:
            self._flow(wire, PERMITS - max(self._unread, 0))

    def _flow(self, wire: Wire, permits: int) -> None:
        command = BaseCommand(type=BaseCommand.FLOW)
        command.flow.consumer_id, command.flow.messagePermits = 1, permits
        self._unread += permits
        wire.send(command)

    def _on_command(self, command: BaseCommand, frame: Frame) -> None:
        wire = self.wire
        if command.type == BaseCommand.CLOSE_CONSUMER:
            self._stay.over = True
            if self._closed is not None and not self._closed.done():
                self._closed.set_result(None)
        elif command.type == BaseCommand.MESSAGE and wire is not None and wire.end is not None:
            self._on_message(wire, command, frame)

    def _on_message(self, wire: Wire, command: BaseCommand, frame: Frame) -> None:
        message_id = command.message.message_id
        place = message_id.ledgerId, message_id.entryId
        assert wire.end is not None
        if self._unread <= 0:
            raise Broken(f"a message without a permit for it: {self._unread} are left")
        sender = wire.end.addresses["peername"][0]
        batch = self._account.received(frame.entry(), place, wire.end.sent_ms, sender, self._stay)
        self._unread -= batch
        if self._unread <= PERMITS // 2 and not self._topping_up:
            self._topping_up = True
            asyncio.get_running_loop().call_later(self._chance.uniform(0, 0.1), self._top_up, wire)
        if self._chance.random() < self.thoughtless:
            if self._chance.random() < 0.7:
                self._nack(wire, place)
            return
        if self.pause_s:
            asyncio.get_running_loop().call_later(self._chance.uniform(0, self.pause_s), self._ack, wire, place)
        else:
            self._ack(wire, place)

    def _ack(self, wire: Wire, place: tuple[int, int]) -> None:
        if wire is not self.wire or wire.end is None:
            return
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id, command.ack.ack_type = 1, CommandAck.Individual
        command.ack.message_id.add(ledgerId=place[0], entryId=place[1])
        wire.send(command)
        self._account.acked(place)

    def _nack(self, wire: Wire, place: tuple[int, int]) -> None:
        self._account.nacked(place)
        command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        command.redeliverUnacknowledgedMessages.consumer_id = 1
        command.redeliverUnacknowledgedMessages.message_ids.add(ledgerId=place[0], entryId=place[1])
        wire.send(command)

    async def seek(self, place: tuple[int, int]) -> bool:
        """Whether it is certain that the cursor was set."""
        wire = self.wire
        if wire is None:
            return False
        command = BaseCommand(type=BaseCommand.SEEK)
        command.seek.consumer_id = 1
        command.seek.message_id.ledgerId, command.seek.message_id.entryId = place
        try:
            await wire.succeed(command, "seek")
        except Lost:
            return False
        return True
