"""A client's connection to a simulated broker: the commands that the bridge and the simulated clients use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from bridge.protocol.errors import ProtocolError
from bridge.protocol.frames import Frame, FrameDecoder, MessageFramer, encode_frame
from bridge.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandLookupTopicResponse,
    CommandSubscribe,
    MessageIdData,
    ServerError,
)
from bridge.protocol.sticky_keys import KeySharing, ranges_of
from tests.simulation.hosts import Process
from tests.simulation.ledgers import Topic
from tests.simulation.network import End

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster, Node

BY_BROKER = 2**64 - 1
"""The request id of what no client asked for."""
NOWHERE = 2**64 - 1
KEEP_ALIVE_S = 30.0
Ranges = tuple[tuple[int, int], ...]
"""Of hashes of keys, both ends included."""


class Refused(Exception):
    """An ERROR for the client."""

    def __init__(self, code: ServerError, message: str) -> None:
        """As the broker words it."""
        super().__init__(message)
        self.code = code


class Consumer:
    """A durable consumer without permits, or a reader."""

    def __init__(self, broker: Broker, subscribe: CommandSubscribe) -> None:
        """As it was asked for."""
        self.broker = broker
        self.topic = subscribe.topic
        self.subscription = subscribe.subscription
        self.id = subscribe.consumer_id
        self.name = subscribe.consumer_name or f"c-{subscribe.consumer_id}"
        self.kind = subscribe.subType
        self.priority_level = subscribe.priority_level
        self.sharing = KeySharing.of(subscribe)
        self.ranges: Ranges = ranges_of(subscribe)
        self.metadata = {each.key: each.value for each in subscribe.metadata}
        self.connected_ms = broker.now_ms()
        self.reads = not subscribe.durable
        self.permits = 0
        self.next = 0
        """Of a reader: the number of the entry to send next."""
        self.forgotten = False
        """A reader that the broker does not wake any more: it has permits and gets nothing until it is opened anew."""
        self._framer = MessageFramer(self.id)

    def tell_active(self, active: bool) -> None:
        """ACTIVE_CONSUMER_CHANGE."""
        command = BaseCommand(type=BaseCommand.ACTIVE_CONSUMER_CHANGE)
        command.active_consumer_change.consumer_id = self.id
        command.active_consumer_change.is_active = active
        self.broker.send(command)

    def close(self) -> None:
        """CLOSE_CONSUMER."""
        self.broker.consumers.pop(self.id, None)
        command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = self.id
        command.close_consumer.request_id = BY_BROKER
        self.broker.send(command)

    def read(self, topic: Topic) -> None:
        """Send as many entries as there are permits. A batch takes as many as it has messages: they go below zero."""
        self.next = max(self.next, topic.trimmed)
        out = []
        while not self.forgotten and self.permits > 0 and self.next < topic.end:
            entries = topic.entries[self.next : self.next + self.permits]
            self.permits -= sum(entry.messages for entry in entries)
            self.next += len(entries)
            out += [self._framer.head(*entry.place, 0, len(entry.raw)) + entry.raw for entry in entries]
        if out:
            self.broker.write(b"".join(out))


class Broker(asyncio.Protocol):
    """The broker's end of one connection."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        """Of one of the cluster's machines."""
        self.consumers: dict[int, Consumer] = {}
        self.client_process: Process | None = None
        """Who is at the other end."""
        self._cluster = cluster
        self._node = node
        self._may_have: set[str] | None = None
        """The only topics that the client is allowed."""
        self._producers: dict[int, str] = {}
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._heard = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def now_ms(self) -> int:
        """By the clock of its machine."""
        return self._node.host.now_ms()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Watch over the client."""
        self._transport = cast(asyncio.Transport, transport)
        self.client_process = cast(End, transport).peer.process
        loop = asyncio.get_running_loop()
        self._heard = loop.time()
        self._timer = loop.call_later(KEEP_ALIVE_S, self._watch)

    def data_received(self, data: bytes) -> None:
        """Handle commands in order."""
        self._heard = asyncio.get_running_loop().time()
        try:
            for frame in self._decoder.feed(data):
                if self._transport is None:
                    return
                self._handle(frame)
        except (ProtocolError, LookupError):
            if self._may_have is None:
                raise
            cast(asyncio.Transport, self._transport).abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """All that the client had is gone."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        for consumer in self.consumers.values():
            self._cluster.leave(consumer)
        for producer_id, topic in self._producers.items():
            found = self._cluster.producers.get(topic, [])
            if (self, producer_id) in found:
                found.remove((self, producer_id))
        self.consumers.clear()

    # -- towards the client

    def write(self, data: bytes) -> None:
        """Send, if it is still there."""
        if self._transport is not None:
            self._transport.write(data)

    def send(self, command: BaseCommand) -> None:
        """Send a command."""
        self.write(encode_frame(command))

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        """In this broker's process."""
        asyncio.get_running_loop().call_later(seconds, work)

    def close_producer(self, producer_id: int) -> None:
        """CLOSE_PRODUCER."""
        self._producers.pop(producer_id, None)
        command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        command.close_producer.producer_id, command.close_producer.request_id = producer_id, BY_BROKER
        self.send(command)

    def _watch(self) -> None:
        """A client that says nothing for two intervals is cut off."""
        loop = asyncio.get_running_loop()
        if self._transport is None:
            return
        if loop.time() - self._heard > 2 * KEEP_ALIVE_S:
            self._transport.abort()
            return
        self.send(BaseCommand(type=BaseCommand.PING, ping={}))
        self._timer = loop.call_later(KEEP_ALIVE_S, self._watch)

    def _refuse(self, request_id: int, refused: Refused) -> None:
        command = BaseCommand(type=BaseCommand.ERROR)
        command.error.request_id, command.error.error, command.error.message = request_id, refused.code, str(refused)
        self.send(command)

    def _succeed(self, request_id: int) -> None:
        command = BaseCommand(type=BaseCommand.SUCCESS)
        command.success.request_id = request_id
        self.send(command)

    # -- commands

    def _handle(self, frame: Frame) -> None:
        command = frame.command()
        handler = _HANDLERS.get(command.type)
        if handler is None:
            assert self._may_have is not None, f"the simulated broker does not know commands of type {command.type}"
            cast(asyncio.Transport, self._transport).abort()
            return
        name, work = handler
        body = getattr(command, name)
        try:
            work(self, body, frame)
        except Refused as refused:
            self._refuse(body.request_id, refused)

    def _require_allowed(self, topic: str) -> None:
        if self._may_have is not None and topic not in self._may_have:
            raise Refused(ServerError.AuthorizationError, f"Client is not authorized to have {topic}")

    def _on_connect(self, body: Any, frame: Frame) -> None:
        self._may_have = self._cluster.allowed.get(body.auth_data.decode(errors="replace"))
        command = BaseCommand(type=BaseCommand.CONNECTED)
        command.connected.server_version = "simulated"
        command.connected.protocol_version = body.protocol_version
        command.connected.max_message_size = 5 * 1024 * 1024
        self.send(command)

    def _on_ping(self, body: Any, frame: Frame) -> None:
        self.send(BaseCommand(type=BaseCommand.PONG, pong={}))

    def _on_pong(self, body: Any, frame: Frame) -> None:
        pass

    def _on_lookup(self, body: Any, frame: Frame) -> None:
        command = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
        self._require_allowed(body.topic)
        response = command.lookupTopicResponse
        response.request_id = body.request_id
        response.response = CommandLookupTopicResponse.Connect
        response.brokerServiceUrl = self._cluster.node_of(body.topic).url
        response.authoritative = True
        self.send(command)

    def _on_metadata(self, body: Any, frame: Frame) -> None:
        self._require_allowed(body.topic)
        command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
        command.partitionMetadataResponse.request_id = body.request_id
        command.partitionMetadataResponse.partitions = 0
        self.send(command)

    def _on_producer(self, body: Any, frame: Frame) -> None:
        self._require_own(body.topic)
        self._cluster.topic(body.topic)
        self._producers[body.producer_id] = body.topic
        self._cluster.producers.setdefault(body.topic, []).append((self, body.producer_id))
        command = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
        command.producer_success.request_id = body.request_id
        command.producer_success.producer_name = f"p-{body.producer_id}"
        self.send(command)

    def _on_send(self, body: Any, frame: Frame) -> None:
        name = self._producers.get(body.producer_id)
        if name is None or self._cluster.owners.get(name) is not self._node:
            return
        topic = self._cluster.topic(name)
        entry = topic.append(frame.entry())
        command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
        command.send_receipt.producer_id = body.producer_id
        command.send_receipt.sequence_id = body.sequence_id
        command.send_receipt.message_id.ledgerId, command.send_receipt.message_id.entryId = entry.place
        self.send(command)
        for reader in list(self._cluster.readers.get(name, [])):
            reader.read(topic)

    def _on_close_producer(self, body: Any, frame: Frame) -> None:
        name = self._producers.pop(body.producer_id, None)
        if name is not None:
            self._cluster.producers[name].remove((self, body.producer_id))
        self._succeed(body.request_id)

    def _on_subscribe(self, body: CommandSubscribe, frame: Frame) -> None:
        self._require_own(body.topic)
        if body.consumer_id in self.consumers:
            self._succeed(body.request_id)
            return
        consumer = Consumer(self, body)
        topic = self._cluster.topic(body.topic, body.force_topic_creation)
        if consumer.reads:
            start = body.start_message_id
            at_end = topic.number_of((start.ledgerId, start.entryId)) in (None, topic.end)
            consumer.next = topic.end if at_end else topic.first_from((start.ledgerId, start.entryId))
            if start.ledgerId < topic.ledgers[0][0]:
                consumer.next = topic.trimmed
            self._cluster.readers.setdefault(body.topic, []).append(consumer)
        else:
            self._cluster.subscribe(consumer, body)
        self.consumers[body.consumer_id] = consumer
        self._succeed(body.request_id)

    def _on_flow(self, body: Any, frame: Frame) -> None:
        consumer = self.consumers.get(body.consumer_id)
        if consumer is not None and consumer.reads:
            consumer.permits += body.messagePermits
            consumer.read(self._cluster.topic(consumer.topic))

    def _on_ack(self, body: CommandAck, frame: Frame) -> None:
        consumer = self.consumers.get(body.consumer_id)
        if consumer is None or consumer.reads:
            return  # without any response
        topic = self._cluster.topics[consumer.topic]
        cursor = topic.cursors[consumer.subscription]
        if body.ack_type == CommandAck.Cumulative:
            if consumer.kind not in (CommandSubscribe.Shared, CommandSubscribe.Key_Shared):
                number = self._number_acked(topic, body.message_id[0])
                if number is not None:
                    if self._cluster.on_kept is not None:
                        self._cluster.on_kept(consumer.topic, consumer.subscription, consumer, number)
                    cursor.ack_upto(number, {each.key: each.value for each in body.properties})
        else:
            for message_id in body.message_id:
                number = self._number_acked(topic, message_id)
                if number is None:
                    break  # an id beyond the end takes those behind it along
                takes_empty_sets = self._cluster.version >= "4.2"
                if not message_id.ack_set or (takes_empty_sets and not any(message_id.ack_set)):
                    cursor.ack(number)
        self._cluster.open_soon(cursor)
        if body.HasField("request_id"):
            command = BaseCommand(type=BaseCommand.ACK_RESPONSE)
            command.ackResponse.consumer_id, command.ackResponse.request_id = body.consumer_id, body.request_id
            self.send(command)

    def _number_acked(self, topic: Topic, message_id: MessageIdData) -> int | None:
        entry = message_id.entryId
        place = message_id.ledgerId, -1 if entry == NOWHERE else entry  # before the first entry of a ledger
        if place < (topic.ledgers[0][0], 0):
            return topic.trimmed - 1
        number = topic.number_of(place)
        return number if number is not None and number < topic.end else None

    def _on_redeliver(self, body: Any, frame: Frame) -> None:
        """Nothing was dispatched by this broker."""

    def _on_seek(self, body: Any, frame: Frame) -> None:
        consumer = self._consumer(body.consumer_id)
        topic = self._cluster.topics[consumer.topic]
        if body.HasField("message_id"):
            number = topic.first_from((_signed(body.message_id.ledgerId), _signed(body.message_id.entryId)))
        else:
            number = first_published(topic, body.message_publish_time)
        self._cluster.seek(consumer.topic, consumer.subscription, number)
        self._succeed(body.request_id)

    def _on_unsubscribe(self, body: Any, frame: Frame) -> None:
        consumer = self._consumer(body.consumer_id)
        present = self._cluster.consumers.get((consumer.topic, consumer.subscription), [])
        if len(present) > 1:
            raise Refused(ServerError.MetadataError, "Unconnected or shared consumer attempting to unsubscribe")
        self.consumers.pop(body.consumer_id)
        self._cluster.leave(consumer)
        self._cluster.unsubscribe(consumer.topic, consumer.subscription)
        self._succeed(body.request_id)

    def _on_close_consumer(self, body: Any, frame: Frame) -> None:
        consumer = self.consumers.pop(body.consumer_id, None)
        if consumer is not None:
            self._cluster.leave(consumer)
        self._succeed(body.request_id)

    def _on_last_message_id(self, body: Any, frame: Frame) -> None:
        consumer = self._consumer(body.consumer_id)
        topic = self._cluster.topic(consumer.topic)
        command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
        response = command.getLastMessageIdResponse
        response.request_id = body.request_id
        last = topic.place_of(topic.end - 1) if topic.end else (NOWHERE, NOWHERE)
        response.last_message_id.ledgerId, response.last_message_id.entryId = last[0], last[1] % 2**64
        if not consumer.reads:
            ledger, entry = topic.place_of(topic.cursors[consumer.subscription].state.first - 1)
            response.consumer_mark_delete_position.ledgerId = ledger
            response.consumer_mark_delete_position.entryId = entry % 2**64
        self.send(command)

    def _consumer(self, consumer_id: int) -> Consumer:
        consumer = self.consumers.get(consumer_id)
        if consumer is None:
            raise Refused(ServerError.MetadataError, "Consumer not found")
        return consumer

    def _require_own(self, topic: str) -> None:
        self._require_allowed(topic)
        if self._cluster.owners.get(topic) is not self._node:
            raise Refused(ServerError.ServiceNotReady, f"Topic {topic} is not served by this broker")
        if topic in self._cluster.fenced:
            raise Refused(ServerError.ServiceNotReady, f"Topic {topic} is temporarily unavailable")


def _signed(number: int) -> int:
    """Positions may begin before the first entry, and before the first ledger."""
    return number - 2**64 if number >= 2**63 else number


def first_published(topic: Topic, publish_ms: int) -> int:
    """The number of the first entry published at a time or later."""
    for number in range(topic.trimmed, topic.end):
        if topic.entries[number].publish_ms >= publish_ms:
            return number
    return topic.end


_HANDLERS: dict[int, tuple[str, Callable[[Broker, Any, Frame], None]]] = {
    BaseCommand.CONNECT: ("connect", Broker._on_connect),
    BaseCommand.PING: ("ping", Broker._on_ping),
    BaseCommand.PONG: ("pong", Broker._on_pong),
    BaseCommand.LOOKUP: ("lookupTopic", Broker._on_lookup),
    BaseCommand.PARTITIONED_METADATA: ("partitionMetadata", Broker._on_metadata),
    BaseCommand.PRODUCER: ("producer", Broker._on_producer),
    BaseCommand.SEND: ("send", Broker._on_send),
    BaseCommand.CLOSE_PRODUCER: ("close_producer", Broker._on_close_producer),
    BaseCommand.SUBSCRIBE: ("subscribe", Broker._on_subscribe),
    BaseCommand.FLOW: ("flow", Broker._on_flow),
    BaseCommand.ACK: ("ack", Broker._on_ack),
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: ("redeliverUnacknowledgedMessages", Broker._on_redeliver),
    BaseCommand.SEEK: ("seek", Broker._on_seek),
    BaseCommand.UNSUBSCRIBE: ("unsubscribe", Broker._on_unsubscribe),
    BaseCommand.CLOSE_CONSUMER: ("close_consumer", Broker._on_close_consumer),
    BaseCommand.GET_LAST_MESSAGE_ID: ("getLastMessageId", Broker._on_last_message_id),
}
