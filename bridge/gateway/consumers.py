"""The consumers of one client: where each lives, and what becomes of their commands.

Consumers of tracked subscriptions are the bridge's to serve: what they say of permits and redelivery ends here,
what changes the broker's cursor is relayed and noted. Everything else goes to the broker.
"""

from collections.abc import Callable, Collection, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from bridge.broker.connection import BrokerError
from bridge.clock import RandBits
from bridge.gateway.client_commands import marked
from bridge.gateway.producers import Relay
from bridge.gateway.stamping import STAMP_CONSUMER_ID_BASE
from bridge.gateway.tracked_consumer import ClientWriter, TrackedConsumer
from bridge.gateway.upstream import Upstream
from bridge.protocol import commands
from bridge.protocol.errors import ProtocolError
from bridge.protocol.frames import Frame, encode_frame
from bridge.protocol.names import TopicName
from bridge.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandAckResponse,
    CommandActiveConsumerChange,
    CommandConsumerStatsResponse,
    CommandGetLastMessageIdResponse,
    CommandSubscribe,
    ServerError,
)
from bridge.protocol.service_url import ServiceUrls
from bridge.protocol.single_active import SingleActive, sharing_of
from bridge.protocol.sticky_keys import ranges_of
from tracker import Position


class TrackedTopics(Protocol):
    """What the gateway tells the tracked topics; every call returns at once."""

    def attach(self, consumer: TrackedConsumer) -> None:
        """The broker accepted a consumer of a tracked subscription."""

    def detach(self, consumer: TrackedConsumer) -> None:
        """The consumer is gone; what it has not acked is free again."""

    def flow(self, consumer: TrackedConsumer, permits: int) -> None:
        """The client takes `permits` more messages."""

    def acked(self, consumer: TrackedConsumer, ack: CommandAck) -> None:
        """An ack was relayed to the broker, but for cumulative ones where one consumer gets everything."""

    def active_changed(self, consumer: TrackedConsumer) -> None:
        """The broker has said of a Failover consumer whether it is the active one."""

    def ack_answered(self, consumer: TrackedConsumer, ack: CommandAck, agreed: bool) -> None:
        """The broker has answered an ack in a transaction."""

    def transaction_ended(self, transaction: tuple[int, int], committed: bool) -> None:
        """A coordinator has told a client that a transaction is ended."""

    def redeliver(self, consumer: TrackedConsumer, positions: list[tuple[int, int]] | None) -> None:
        """The client wants these unacked entries again, or all of the consumer's (None)."""

    def seeking(self, consumer: TrackedConsumer) -> Collection[TrackedConsumer]:
        """A SEEK is on its way to the broker: nothing may be dispatched until the cursor is read anew.

        Returns whom it is to close.
        """

    def sought(self, topic: str, subscription: str, closed: Collection[TrackedConsumer]) -> None:
        """The SEEK was answered, one way or the other; `closed`: those that it has closed, if it succeeded."""

    def unsubscribed(self, topic: str, subscription: str) -> None:
        """The broker deleted the subscription."""

    def complete_stats(self, consumer: TrackedConsumer, told: CommandConsumerStatsResponse) -> bool:
        """Have the broker's word on a consumer say what is true; whether it is dispatched to here."""

    def attaching(
        self, topic: str, subscription: str
    ) -> AbstractAsyncContextManager[Callable[[], Coroutine[Any, Any, bool]]]:
        """Enter before SUBSCRIBE is sent, leave after it; gives what tells whether the cursor is to be marked."""

    def owner_urls(self, topic: str) -> Coroutine[Any, Any, ServiceUrls]:
        """The addresses of the bridge that a client of `topic` is to connect to."""


@dataclass(slots=True, eq=False)
class Joining:
    """A SUBSCRIBE under way. `abandoned`: the client has closed the consumer before it was there."""

    subscribe: CommandSubscribe
    abandoned: bool = False
    active: bool = False
    """Whether the broker has said already that it is the active one of a Failover subscription."""


class SessionConsumers:
    """Handlers of the commands that name a consumer; `tracked` are the consumers the bridge dispatches to."""

    def __init__(
        self,
        writer: ClientWriter,
        topics: TrackedTopics,
        relay: Relay,
        max_pending_requests: int,
        randbits: RandBits,
        is_tracked: Callable[[CommandSubscribe], bool],
    ) -> None:
        """`relay` sends a frame to an upstream connection, the client's first one for None.

        `is_tracked`: as `Tracking.takes`, for this client.
        """
        self.is_tracked = is_tracked
        self.tracked: dict[int, TrackedConsumer] = {}
        self._writer = writer
        self._topics = topics
        self._relay = relay
        self._max_pending_requests = max_pending_requests
        self._randbits = randbits
        self._upstreams: dict[int, Upstream] = {}
        self._joining: dict[int, Joining] = {}
        self._former: dict[int, TrackedConsumer] = {}  # closed by the broker; acks of theirs may still arrive
        self._cursor_requests: dict[int, Callable[[Position], None]] = {}
        self._acks: dict[int, tuple[TrackedConsumer, CommandAck]] = {}  # in transactions, by request id
        self._stats_asked: dict[int, TrackedConsumer] = {}  # by request id

    @property
    def awaits_acks(self) -> bool:
        """Whether answers to acks matter here."""
        return bool(self._acks)

    def upstream(self, consumer_id: int) -> Upstream | None:
        """Where a consumer lives. One nobody knows is the first broker's matter, which answers as a broker does.

        Raises ProtocolError for ids that the gateway's own consumers may have on the client's connection.
        """
        if STAMP_CONSUMER_ID_BASE <= consumer_id < 2 * STAMP_CONSUMER_ID_BASE:
            raise ProtocolError(f"consumer id {consumer_id} is not below {STAMP_CONSUMER_ID_BASE}")
        return self._upstreams.get(consumer_id)

    # -- the client's commands

    def join(self, subscribe: CommandSubscribe) -> Joining | None:
        """A SUBSCRIBE came; None when a consumer has its id.

        Raises BrokerError, as a broker answers, while another one is being opened with its id, and ProtocolError.
        """
        consumer_id = subscribe.consumer_id
        if consumer_id in self._joining:
            raise BrokerError(f"consumer {consumer_id} is being created", ServerError.ServiceNotReady)
        if self.upstream(consumer_id) is not None:
            return None
        joining = self._joining[consumer_id] = Joining(subscribe)
        return joining

    def subscribe(self, upstream: Upstream, frame: Frame, joining: Joining) -> bool:
        """Relay; when the broker accepts a tracked consumer it is attached.

        False when the client has closed the consumer meanwhile, and waits for nothing.
        """
        if joining.abandoned:
            return False
        subscribe = joining.subscribe
        self._upstreams[subscribe.consumer_id] = upstream
        mark = ""
        if self.is_tracked(subscribe):
            frame, mark = marked(frame, self._randbits)
        self._relay(upstream, frame, lambda ok: self._subscribed(upstream, joining, mark, ok))
        return True

    def subscribe_again(self, frame: Frame, consumer_id: int) -> None:
        """Relay a SUBSCRIBE with the id of a consumer that is there: the broker agrees, and nothing changes."""
        self._relay(self.upstream(consumer_id), frame, None)

    def not_joined(self, joining: Joining | None) -> None:
        """The SUBSCRIBE came to nothing."""
        if joining is not None and self._joining.get(joining.subscribe.consumer_id) is joining:
            del self._joining[joining.subscribe.consumer_id]
            self._upstreams.pop(joining.subscribe.consumer_id, None)

    def on_flow(self, frame: Frame) -> None:
        """Permits of a tracked consumer are the bridge's: the broker sees none and dispatches nothing.

        Those for a consumer that is not there yet count for nothing, as at the broker.
        """
        flow = frame.command().flow
        consumer = self.tracked.get(flow.consumer_id)
        if consumer is not None and not consumer.passed:
            self._topics.flow(consumer, flow.messagePermits)
        elif flow.consumer_id not in self._joining:
            self._relay(self.upstream(flow.consumer_id), frame, None)

    def on_ack(self, frame: Frame) -> None:
        """Relayed untouched, and noted. Of an ack up to a position the bridge says what of it the broker is told."""
        ack = frame.command().ack
        upstream = self.upstream(ack.consumer_id)
        consumer = self.tracked.get(ack.consumer_id) or self._former.get(ack.consumer_id)
        if consumer is None or consumer.passed:
            self._relay(upstream, frame, None)
            return
        if not (isinstance(consumer.sharing, SingleActive) and ack.ack_type == CommandAck.Cumulative):
            self._relay(upstream, frame, None)
            self._note_transaction(consumer, ack)
        self._topics.acked(consumer, ack)

    def _note_transaction(self, consumer: TrackedConsumer, ack: CommandAck) -> None:
        if ack.HasField("request_id") and ack.HasField("txnid_most_bits"):
            if len(self._acks) >= self._max_pending_requests:
                self._acks.clear()  # what became of those shows otherwise
            self._acks[ack.request_id] = consumer, ack

    def on_redeliver(self, frame: Frame) -> None:
        """Who dispatches redelivers."""
        redeliver = frame.command().redeliverUnacknowledgedMessages
        consumer = self.tracked.get(redeliver.consumer_id)
        if consumer is None or consumer.passed:
            self._relay(self.upstream(redeliver.consumer_id), frame, None)
            return
        if isinstance(consumer.sharing, SingleActive) and redeliver.HasField("consumer_epoch"):
            consumer.note_epoch(redeliver.consumer_epoch)
        positions = [(position.ledgerId, position.entryId) for position in redeliver.message_ids]
        self._topics.redeliver(consumer, positions or None)

    def on_seek(self, frame: Frame) -> None:
        """Relayed; the subscription waits until the cursor stands."""
        seek = frame.command().seek
        consumer = self.tracked.get(seek.consumer_id)
        answered = None if consumer is None else self._seeking(consumer)
        self._relay(self.upstream(seek.consumer_id), frame, answered)

    def _seeking(self, consumer: TrackedConsumer) -> Callable[[bool], None]:
        topic, subscription = consumer.topic, consumer.subscription
        present = self._topics.seeking(consumer)
        return lambda ok: self._topics.sought(topic, subscription, present if ok else ())

    def on_unsubscribe(self, frame: Frame) -> None:
        """Relayed; when the broker agrees the subscription is forgotten."""
        unsubscribe = frame.command().unsubscribe
        consumer = self.tracked.get(unsubscribe.consumer_id)
        answered = None if consumer is None else lambda ok: self._unsubscribed(consumer, ok)
        self._relay(self.upstream(unsubscribe.consumer_id), frame, answered)

    def on_close(self, frame: Frame) -> None:
        """Relayed; what the consumer has not acked is free."""
        consumer_id = frame.command().close_consumer.consumer_id
        joining = self._joining.pop(consumer_id, None)
        if joining is not None:
            joining.abandoned = True
        self._relay(self.upstream(consumer_id), frame, None)
        self._drop(consumer_id)
        self._former.pop(consumer_id, None)

    def on_consumer_stats(self, frame: Frame) -> None:
        """Relayed; the answer is completed."""
        asked = frame.command().consumerStats
        consumer = self.tracked.get(asked.consumer_id)
        if consumer is not None and not consumer.passed:
            if len(self._stats_asked) >= self._max_pending_requests:
                self._stats_asked.clear()  # then the broker's numbers have to do
            self._stats_asked[asked.request_id] = consumer
        self._relay(self.upstream(asked.consumer_id), frame, None)

    def on_get_last_message_id(self, frame: Frame) -> None:
        """Relayed."""
        self._relay(self.upstream(frame.command().getLastMessageId.consumer_id), frame, None)

    # -- the broker's answers

    def closed_by_broker(self, upstream: Upstream, consumer_id: int) -> None:
        """A CLOSE_CONSUMER of the broker."""
        if self._upstreams.get(consumer_id) is not upstream or consumer_id in self._joining:
            return  # it speaks of one that the client has closed
        consumer = self.tracked.get(consumer_id)
        if consumer is not None:
            self._former[consumer_id] = consumer
            consumer.closed_by_broker = True
        self._drop(consumer_id)

    def active_changed(self, upstream: Upstream, change: CommandActiveConsumerChange) -> None:
        """The broker says whether a Failover consumer is the active one, perhaps before it agrees to its SUBSCRIBE."""
        if self._upstreams.get(change.consumer_id) is not upstream:
            return
        joining, consumer = self._joining.get(change.consumer_id), self.tracked.get(change.consumer_id)
        if joining is not None:
            joining.active = change.is_active
        elif consumer is not None and isinstance(consumer.sharing, SingleActive) and consumer.sharing.failover:
            consumer.active = change.is_active
            self._topics.active_changed(consumer)

    def last_message_id(self, response: CommandGetLastMessageIdResponse) -> bool:
        """Take the answer to a `request_mark_delete`; False when it is the client's."""
        answer = self._cursor_requests.pop(response.request_id, None)
        if answer is None:
            return False
        if response.HasField("consumer_mark_delete_position"):
            position = response.consumer_mark_delete_position
            # Unsigned on the wire: before the first entry of a ledger it says 2^64-1.
            answer(Position(position.ledgerId, -1 if position.entryId >= 1 << 63 else position.entryId))
        return True

    def consumer_stats(self, response: CommandConsumerStatsResponse) -> bool:
        """Complete a broker's word on a consumer that is dispatched to here; False when there is nothing to change."""
        consumer = self._stats_asked.pop(response.request_id, None)
        if (
            consumer is None
            or self.tracked.get(consumer.consumer_id) is not consumer
            or response.HasField("error_code")
        ):
            return False
        return self._topics.complete_stats(consumer, response)

    def ack_answered(self, upstream: Upstream, response: CommandAckResponse) -> None:
        """An answer to an ack; most acks are of no transaction, and nobody waits for what is said of them."""
        consumer, ack = self._acks.get(response.request_id, (None, None))
        if consumer is None or ack is None or response.consumer_id != consumer.consumer_id:
            return
        if self._upstreams.get(consumer.consumer_id) is upstream:
            del self._acks[response.request_id]
            self._topics.ack_answered(consumer, ack, agreed=not response.HasField("error"))

    # -- what the bridge asks for

    def send(self, consumer_id: int, command: BaseCommand) -> None:
        """Send a command of the bridge's own to the broker of a consumer."""
        upstream = self._upstreams.get(consumer_id)
        consumer = self.tracked.get(consumer_id)
        if consumer is not None and command.type == BaseCommand.ACK:
            self._note_transaction(consumer, command.ack)
        if upstream is not None:
            upstream.write(encode_frame(command))

    def request_mark_delete(self, consumer_id: int, request_id: int, answer: Callable[[Position], None]) -> None:
        """Ask the broker; requests that got no answer are forgotten when there are too many."""
        if len(self._cursor_requests) >= self._max_pending_requests:
            self._cursor_requests.clear()
        self._cursor_requests[request_id] = answer
        self.send(consumer_id, commands.last_message_id(consumer_id, request_id))

    def close(self, consumer: TrackedConsumer, request_id: int) -> bool:
        """Close a tracked consumer in the broker; False when it is not (any more) this client's."""
        if self.tracked.get(consumer.consumer_id) is not consumer:
            return False
        self.send(consumer.consumer_id, commands.close_consumer(consumer.consumer_id, request_id))
        self._drop(consumer.consumer_id)
        return True

    def end(self) -> None:
        """The client is gone."""
        tracked, self.tracked = list(self.tracked.values()), {}
        for consumer in tracked:
            consumer.cut_off = True
            self._topics.detach(consumer)

    # -- inside

    def _subscribed(self, upstream: Upstream, joining: Joining, mark: str, ok: bool) -> None:
        if joining.abandoned:
            return
        if not ok:
            self.not_joined(joining)
            return
        subscribe = joining.subscribe
        del self._joining[subscribe.consumer_id]
        self._upstreams[subscribe.consumer_id] = upstream
        if not mark:
            return
        consumer = TrackedConsumer(
            self._writer,
            str(TopicName.parse(subscribe.topic)),
            subscribe.subscription,
            subscribe.consumer_id,
            subscribe.consumer_name,
            subscribe.priority_level,
            mark,
            sharing_of(subscribe),
            ranges_of(subscribe),
        )
        if isinstance(consumer.sharing, SingleActive):
            consumer.active |= joining.active
            if subscribe.HasField("consumer_epoch"):
                consumer.note_epoch(subscribe.consumer_epoch)
        self.tracked[subscribe.consumer_id] = consumer
        self._former.pop(subscribe.consumer_id, None)
        self._topics.attach(consumer)

    def _unsubscribed(self, consumer: TrackedConsumer, ok: bool) -> None:
        if ok:
            self._drop(consumer.consumer_id)
            self._topics.unsubscribed(consumer.topic, consumer.subscription)

    def _drop(self, consumer_id: int) -> None:
        self._upstreams.pop(consumer_id, None)
        consumer = self.tracked.pop(consumer_id, None)
        if consumer is not None:
            self._topics.detach(consumer)


CONSUMER_HANDLERS: dict[int, Callable[[SessionConsumers, Frame], None]] = {
    BaseCommand.FLOW: SessionConsumers.on_flow,
    BaseCommand.ACK: SessionConsumers.on_ack,
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: SessionConsumers.on_redeliver,
    BaseCommand.SEEK: SessionConsumers.on_seek,
    BaseCommand.UNSUBSCRIBE: SessionConsumers.on_unsubscribe,
    BaseCommand.CLOSE_CONSUMER: SessionConsumers.on_close,
    BaseCommand.CONSUMER_STATS: SessionConsumers.on_consumer_stats,
    BaseCommand.GET_LAST_MESSAGE_ID: SessionConsumers.on_get_last_message_id,
}
"""The client's commands that name a consumer."""
