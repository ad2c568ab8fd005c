"""What brokers say on a client's connections: which of it is for the gateway, and what the client gets to see."""

from collections.abc import Callable

from bridge.broker.connection import BrokerError
from bridge.gateway.consumers import SessionConsumers
from bridge.gateway.lookups import Lookups
from bridge.gateway.producers import SessionProducers
from bridge.gateway.requests import is_gateways_own, request_id_of
from bridge.gateway.stamping import STAMP_CONSUMER_ID_BASE, OwnRequests
from bridge.gateway.upstream import Upstream
from bridge.gateway.upstreams import SessionUpstreams
from bridge.protocol.frames import Frame, encode_frame
from bridge.protocol.pulsar_pb2 import BaseCommand

Shown = bytes | memoryview | None
"""What the client gets in place of a frame; None: nothing."""


class ServerFrames:
    """Of one client. CONNECTED and AUTH_CHALLENGE are the session's."""

    def __init__(
        self,
        upstreams: SessionUpstreams,
        lookups: Lookups,
        own_requests: OwnRequests,
        producers: SessionProducers,
        consumers: SessionConsumers,
    ) -> None:
        """The parts of one session."""
        self._upstreams = upstreams
        self._lookups = lookups
        self._own_requests = own_requests
        self._producers = producers
        self._consumers = consumers

    def on_pong(self, upstream: Upstream, frame: Frame) -> Shown:
        """The client's PING went to all of its brokers; it waits for one answer."""
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

    def unless_own(self, upstream: Upstream, frame: Frame) -> Shown:
        """An answer to the client, or to the gateway itself."""
        request_id = request_id_of(frame)
        if not is_gateways_own(request_id):
            return frame.data
        self._own_requests.answered(upstream, request_id, frame.command())
        return None

    def on_close(self, upstream: Upstream, frame: Frame) -> Shown:
        """A broker's CLOSE_… names the next broker; without it the client looks up, and stays with the bridge."""
        command = frame.command()
        producer = command.type == BaseCommand.CLOSE_PRODUCER
        if not producer and command.close_consumer.consumer_id >= STAMP_CONSUMER_ID_BASE:
            return None  # none of the client's
        close = command.close_producer if producer else command.close_consumer
        close.ClearField("assignedBrokerServiceUrl")
        close.ClearField("assignedBrokerServiceUrlTls")
        if producer:
            self._producers.closed_by_broker(upstream, command.close_producer.producer_id)
        else:
            self._consumers.closed_by_broker(upstream, command.close_consumer.consumer_id)
        return encode_frame(command)


SERVER_HANDLERS: dict[int, Callable[[ServerFrames, Upstream, Frame], Shown]] = {
    BaseCommand.PONG: ServerFrames.on_pong,
    BaseCommand.LOOKUP_RESPONSE: ServerFrames.on_lookup_response,
    BaseCommand.SUCCESS: ServerFrames.unless_own,
    BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: ServerFrames.on_last_message_id,
    BaseCommand.ERROR: ServerFrames.on_error,
    BaseCommand.CLOSE_PRODUCER: ServerFrames.on_close,
    BaseCommand.CLOSE_CONSUMER: ServerFrames.on_close,
}
