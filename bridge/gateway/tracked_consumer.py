"""A client's consumer on a tracked subscription: the broker sees it with 0 permits, the bridge dispatches to it."""

from collections.abc import Callable, Iterable
from typing import Protocol

from bridge.protocol import commands
from bridge.protocol.frames import MessageFramer, without_broker_metadata
from bridge.protocol.names import TopicName
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandAck
from bridge.protocol.sent import Sent
from bridge.protocol.service_url import ServiceUrls
from bridge.protocol.single_active import Sharing, SingleActive
from tracker import Position


class ClientWriter(Protocol):
    """The client's connection."""

    @property
    def writable(self) -> bool:
        """Whether its write buffer has room."""

    @property
    def peer(self) -> str:
        """Its address, for logs and stats."""

    @property
    def knows_broker_metadata(self) -> bool:
        """Whether it said that it knows what to do with what brokers note of entries."""

    def write_client(self, data: bytes) -> None:
        """Send bytes."""

    def send_upstream(self, consumer_id: int, command: BaseCommand) -> None:
        """Send a command of the gateway's own for a consumer of this client."""

    def request_mark_delete(self, consumer_id: int, answer: Callable[[Position], None]) -> None:
        """Ask the broker for the mark-delete position of a consumer's subscription; no answer on errors."""

    def close_consumer(self, consumer: "TrackedConsumer", to: ServiceUrls | None) -> None:
        """Close the consumer on both sides; `to`: where it is to subscribe anew."""


class TrackedConsumer:
    """Identity is the object: the same client may subscribe anew with the same consumer id."""

    def __init__(
        self,
        writer: ClientWriter,
        topic: str,
        subscription: str,
        consumer_id: int,
        name: str,
        priority_level: int,
        mark: str,
        sharing: Sharing = None,
        ranges: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """`topic`: the full name of a topic partition; `priority_level`: 0 is served first, as in Pulsar.

        `mark`: what the broker lists of this consumer and of no other. `sharing`: what the type of the
        subscription is; `ranges`: of hashes of keys that the consumer asks for, if it does.
        """
        self.topic = topic
        self.subscription = subscription
        self.consumer_id = consumer_id
        self.name = name
        self.priority_level = priority_level
        self.cut_off = False
        """Its client's connection is gone, and perhaps acks with it that were on their way."""
        self.passed = False
        """The broker dispatches to it: what it says goes there."""
        self.mark = mark
        self.sharing = sharing
        self.ranges = ranges
        self.active = isinstance(sharing, SingleActive) and not sharing.failover
        """Where one consumer gets everything: whether it is this one, by the broker's word."""
        self.admitted = False
        """Whether the broker lists it."""
        self.closed_by_broker = False
        """Whether the broker took it away: because it unloads the topic, or because it sets the cursor anew."""
        self._writer = writer
        self.sent = Sent()
        self.left_history = 0
        """Once it is gone: of which history the cursor was when it was served last; 0 when nobody knows."""
        self._framer = MessageFramer(consumer_id, TopicName.parse(topic).partition)

    @property
    def writable(self) -> bool:
        """Whether the client's connection has room for more."""
        return self._writer.writable

    @property
    def peer(self) -> str:
        """The client's address."""
        return self._writer.peer

    def send(self, entries: Iterable[tuple[int, int, int, tuple[int, ...], bytes]]) -> None:
        """Write MESSAGE frames for `(ledger, entry, redelivery_count, ack_set, raw)`, in one go."""
        head, as_it_is = self._framer.head, self._writer.knows_broker_metadata
        parts: list[bytes] = []
        for ledger, entry, redelivery_count, ack_set, stored in entries:
            raw = stored if as_it_is else without_broker_metadata(stored)
            parts.append(head(ledger, entry, redelivery_count, len(raw), ack_set))
            parts.append(raw)
        self._writer.write_client(b"".join(parts))

    def note_epoch(self, epoch: int) -> None:
        """What is sent from now on is of this consumer epoch: the client drops what it was sent before."""
        self._framer.set_epoch(epoch)

    def relay_ack(self, ack: CommandAck) -> None:
        """Give the broker an ack of the client's, as it is by now."""
        self._writer.send_upstream(self.consumer_id, commands.ack_as(ack))

    def acknowledge(self, positions: Iterable[tuple[int, int]]) -> None:
        """Acknowledge in the broker on the consumer's behalf, without asking for an answer."""
        self._writer.send_upstream(self.consumer_id, commands.ack(self.consumer_id, positions))

    def request_mark_delete(self, answer: Callable[[Position], None]) -> None:
        """Ask the broker where the subscription's cursor is; `answer` is not called when it does not say."""
        self._writer.request_mark_delete(self.consumer_id, answer)

    def pass_through(self, permits: int) -> None:
        """Let the broker dispatch to it, with the permits that it has left (0 or less: none)."""
        self.passed = True
        if permits > 0:
            self._writer.send_upstream(self.consumer_id, commands.flow(self.consumer_id, permits))

    def close(self, to: ServiceUrls | None = None) -> None:
        """Close it on both sides; the client subscribes anew by itself, at `to` or where a lookup leads it."""
        self._writer.close_consumer(self, to)
