"""What passes between one client and its brokers, once it is connected: which frame goes where, and who hears of it."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from bridge.broker.connection import BrokerError
from bridge.clock import RandBits
from bridge.gateway.client_commands import Tracking
from bridge.gateway.consumers import CONSUMER_HANDLERS, SessionConsumers, TrackedTopics
from bridge.gateway.lookups import Lookups
from bridge.gateway.openings import Opener, Openings
from bridge.gateway.producers import SessionProducers
from bridge.gateway.requests import (
    ANSWERS,
    REQUESTS,
    Answered,
    RequestsInFlight,
    is_gateways_own,
    is_refusal,
    request_id_of,
)
from bridge.gateway.stamping import STAMP_CONSUMER_ID_BASE, OwnRequests
from bridge.gateway.tracked_consumer import ClientWriter, TrackedConsumer
from bridge.gateway.upstream import Upstream
from bridge.gateway.upstreams import SessionUpstreams
from bridge.limits import ConnectionLimits
from bridge.protocol.errors import ProtocolError
from bridge.protocol.frames import RUN, Frame, encode_frame
from bridge.protocol.named_requests import TOPIC_OF
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe
from tracker import Position

Shown = bytes | memoryview | None
"""What the client gets in place of a frame; None: nothing."""


class Client(Opener, ClientWriter, Protocol):
    """The client's session."""


class Router:
    """The parts of one session that know commands. What is said of credentials, and CONNECTED, is the session's."""

    def __init__(
        self,
        session: Client,
        topics: TrackedTopics,
        service_url: str,
        upstreams: SessionUpstreams,
        limits: ConnectionLimits,
        randbits: RandBits,
        tracking: Tracking,
    ) -> None:
        """`service_url`: where lookups start."""
        self._tracking = tracking
        self._session = session
        self._topics = topics
        self._upstreams = upstreams
        self._limits = limits
        self._requests = RequestsInFlight(limits.max_pending_requests)
        self._producers = SessionProducers(self.relay)
        self._consumers = SessionConsumers(
            session, topics, self.relay, limits.max_pending_requests, randbits, self._is_tracked
        )
        self._own_requests = OwnRequests(limits.stamp_timeout_s, randbits)
        self._lookups = Lookups(service_url, upstreams.get, limits)
        self._openings = Openings(
            session,
            topics,
            self._lookups,
            self._requests,
            self._producers,
            self._consumers,
            self._own_requests,
            self.relay,
            limits,
        )

    def end(self) -> None:
        """The client is gone."""
        with contextlib.ExitStack() as steps:  # both, whatever becomes of the first
            steps.callback(self._requests.end)
            steps.callback(self._consumers.end)

    def let_go(self) -> None:
        """Of the parts that refer to this one, when nothing of the client goes on any more."""
        del self._producers, self._consumers, self._openings

    def _is_tracked(self, subscribe: CommandSubscribe) -> bool:
        connect = self._upstreams.connect
        return self._tracking.takes(subscribe, 0 if connect is None else connect.connect.protocol_version)

    # -- what the client says

    def from_client(self, frame: Frame) -> None:
        """Handle a frame, or relay it. Raises ProtocolError, ValueError."""
        if frame.type == RUN:
            self.relay(self._upstreams.only, frame)
            return
        if frame.type in REQUESTS:
            self._requests.begin(frame.type, request_id_of(frame))
        if (handler := _CLIENT_HANDLERS.get(frame.type)) is not None:
            handler(self, frame)
        elif (consumers_handler := CONSUMER_HANDLERS.get(frame.type)) is not None:
            consumers_handler(self._consumers, frame)
        elif (opening := _OPENINGS.get(frame.type)) is not None:
            opening(self._openings, frame)
        else:
            self.relay(None, frame)

    def relay(self, upstream: Upstream | None, frame: Frame, answered: Answered | None = None) -> None:
        """What concerns no handle that is known here goes to the first broker.

        `answered`: called with whether the broker agreed, once its answer has gone to the client.
        """
        upstream = upstream or self._upstreams.first
        assert upstream is not None
        if frame.type in REQUESTS:
            self._requests.sent(request_id_of(frame), upstream, answered)
        upstream.write(frame.data)

    def on_connect(self, frame: Frame) -> None:
        """Once is enough."""
        raise ProtocolError("CONNECT on a connection that is connected")

    def on_ping(self, frame: Frame) -> None:
        """Answered by the broker, so that a broker lost without a word is noticed by the client's own keep-alive."""
        for upstream in self._upstreams.all():
            upstream.ping()

    def on_pong(self, frame: Frame) -> None:
        """A sign of life for all of its brokers."""
        for upstream in self._upstreams.all():
            upstream.write(frame.data)

    def on_send(self, frame: Frame) -> None:
        """Relayed to where the producer lives."""
        self._producers.on_send(frame)

    def on_close_producer(self, frame: Frame) -> None:
        """The same."""
        self._producers.on_close(frame)

    # -- what brokers say

    def shown(self, upstream: Upstream, frame: Frame) -> Shown:
        """What the client is to see of a broker's frame. Raises ProtocolError."""
        handler = _SERVER_HANDLERS.get(frame.type)
        return frame.data if handler is None else handler(self, upstream, frame)

    def note_answers(self, upstream: Upstream, frames: Sequence[Frame]) -> None:
        """What follows from a broker's frames, now that the client has got them. Raises ProtocolError."""
        for frame in frames:
            if frame.type in ANSWERS:
                refused = is_refusal(frame)
                if refused:
                    self._lookups.doubt(upstream.url)
                answered = self._requests.on_answer(upstream, frame)
                if answered is not None:
                    answered(not refused)

    def on_server_pong(self, upstream: Upstream, frame: Frame) -> Shown:
        """The client's PING went to all of its brokers; it waits for one answer."""
        if self._upstreams.on_pong(upstream):
            self.tell_writable()
        return frame.data if upstream is self._upstreams.first else None

    def on_lookup_response(self, upstream: Upstream, frame: Frame) -> Shown:
        """Lookups are asked by the gateway, and answered by it."""
        self._lookups.answered(frame.command().lookupTopicResponse)
        return None

    def on_error(self, upstream: Upstream, frame: Frame) -> Shown:
        """Before CONNECTED it is the answer to that."""
        if not upstream.connected.done():
            error = frame.command().error
            upstream.connected.set_exception(BrokerError(error.message, error.error))
            upstream.connected.exception()
            return frame.data if upstream is self._upstreams.first else None
        return self.unless_own(upstream, frame)

    def on_last_message_id(self, upstream: Upstream, frame: Frame) -> Shown:
        """The gateway asks, too: where cursors are."""
        command = frame.command()
        if self._own_requests.answered(upstream, command.getLastMessageIdResponse.request_id, command):
            return None
        own = self._consumers.last_message_id(command.getLastMessageIdResponse)
        return None if own else frame.data

    def on_consumer_stats(self, upstream: Upstream, frame: Frame) -> Shown:
        """Of a consumer that the bridge dispatches to the broker does not know all."""
        command = frame.command()
        completed = self._consumers.consumer_stats(command.consumerStatsResponse)
        return encode_frame(command) if completed else frame.data

    def on_active_consumer_change(self, upstream: Upstream, frame: Frame) -> Shown:
        """The client's; whoever dispatches has to know, too."""
        self._consumers.active_changed(upstream, frame.command().active_consumer_change)
        return frame.data

    def on_ack_response(self, upstream: Upstream, frame: Frame) -> Shown:
        """The client's; of acks in transactions the bridge has to know, too."""
        self._consumers.ack_answered(upstream, frame.command().ackResponse)
        return frame.data

    def unless_own(self, upstream: Upstream, frame: Frame) -> Shown:
        """An answer to the client, or to the gateway itself."""
        request_id = request_id_of(frame)
        if not is_gateways_own(request_id):
            return frame.data
        self._own_requests.answered(upstream, request_id, frame.command())
        return None

    def on_server_close(self, upstream: Upstream, frame: Frame) -> Shown:
        """A broker's CLOSE_… names the next broker; without it the client looks up, and stays with the bridge."""
        command = frame.command()
        producer = command.type == BaseCommand.CLOSE_PRODUCER
        if not producer and command.close_consumer.consumer_id >= STAMP_CONSUMER_ID_BASE:
            return None  # none of the client's
        close = command.close_producer if producer else command.close_consumer
        close.ClearField("assignedBrokerServiceUrl")
        close.ClearField("assignedBrokerServiceUrlTls")
        self._lookups.doubt(upstream.url)
        if producer:
            self._producers.closed_by_broker(upstream, command.close_producer.producer_id)
        else:
            self._consumers.closed_by_broker(upstream, command.close_consumer.consumer_id)
        return encode_frame(command)

    @property
    def relayed(self) -> frozenset[int]:
        """Types of a broker's frames that go to the client unseen."""
        return _RELAYED_BUT_ACKS if self._consumers.awaits_acks else RELAYED_FROM_BROKER

    # -- what the bridge itself says

    def resume(self) -> None:
        """The client reads again, and its brokers are heard again.

        One of them may have closed a consumer meanwhile, or given the client up: it has to say so before more is sent.
        """
        if self._consumers.tracked:
            self._upstreams.catch_up()
        self.tell_writable()

    def tell_writable(self) -> None:
        """Whether the client may be sent more has changed: its subscriptions are to know at once."""
        for consumer in self._consumers.tracked.values():
            self._topics.flow(consumer, 0)

    def send(self, consumer_id: int, command: BaseCommand) -> None:
        """Send a command to the broker of a consumer."""
        self._consumers.send(consumer_id, command)

    def request_mark_delete(self, consumer_id: int, answer: Callable[[Position], None]) -> None:
        """Ask the broker of a consumer for the mark-delete position."""
        self._consumers.request_mark_delete(consumer_id, self._lookups.next_request_id(), answer)

    def close_consumer(self, consumer: TrackedConsumer) -> bool:
        """Close a tracked consumer in the broker; False when it is not (any more) this client's."""
        return self._consumers.close(consumer, self._lookups.next_request_id())


_CLIENT_HANDLERS: dict[int, Callable[[Router, Frame], None]] = {
    BaseCommand.CONNECT: Router.on_connect,
    BaseCommand.PING: Router.on_ping,
    BaseCommand.PONG: Router.on_pong,
    BaseCommand.SEND: Router.on_send,
    BaseCommand.CLOSE_PRODUCER: Router.on_close_producer,
}

_OPENINGS: dict[int, Callable[[Openings, Frame], None]] = {
    BaseCommand.LOOKUP: Openings.on_lookup,
    BaseCommand.PRODUCER: Openings.on_producer,
    BaseCommand.SUBSCRIBE: Openings.on_subscribe,
    **dict.fromkeys(TOPIC_OF, Openings.on_named),
}

_SERVER_HANDLERS: dict[int, Callable[[Router, Upstream, Frame], Shown]] = {
    BaseCommand.PONG: Router.on_server_pong,
    BaseCommand.LOOKUP_RESPONSE: Router.on_lookup_response,
    BaseCommand.SUCCESS: Router.unless_own,
    BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: Router.on_last_message_id,
    BaseCommand.ERROR: Router.on_error,
    BaseCommand.ACK_RESPONSE: Router.on_ack_response,
    BaseCommand.CONSUMER_STATS_RESPONSE: Router.on_consumer_stats,
    BaseCommand.ACTIVE_CONSUMER_CHANGE: Router.on_active_consumer_change,
    BaseCommand.CLOSE_PRODUCER: Router.on_server_close,
    BaseCommand.CLOSE_CONSUMER: Router.on_server_close,
}

RELAYED_FROM_BROKER = frozenset(BaseCommand.Type.values()) - {
    BaseCommand.CONNECTED,
    BaseCommand.AUTH_CHALLENGE,
    *(_SERVER_HANDLERS.keys() - {BaseCommand.ACK_RESPONSE}),
    *ANSWERS,
}
"""Types of a broker's frames that go to the client unseen, unless an ack in a transaction waits for its answer."""
_RELAYED_BUT_ACKS = RELAYED_FROM_BROKER - {BaseCommand.ACK_RESPONSE}
