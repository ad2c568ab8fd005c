"""What takes a lookup before it can be relayed: lookups themselves, producers, consumers, what names a topic."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from bridge.broker.connection import BrokerError
from bridge.gateway.client_commands import refuse_reserved
from bridge.gateway.consumers import SessionConsumers, TrackedTopics
from bridge.gateway.lookups import Lookups
from bridge.gateway.producers import Relay, SessionProducers
from bridge.gateway.requests import RequestsInFlight, body_of
from bridge.gateway.stamping import OwnRequests, Stamped, stamp
from bridge.gateway.upstream import Upstream
from bridge.limits import ConnectionLimits
from bridge.protocol import commands
from bridge.protocol.errors import ProtocolError
from bridge.protocol.frames import Frame, encode_frame
from bridge.protocol.lookup import Found, Refused, led_to
from bridge.protocol.named_requests import TOPIC_OF, refusal
from bridge.protocol.names import TopicName
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandEndTxn, CommandSubscribe, ServerError, TxnAction

Work = Callable[[], Coroutine[Any, Any, None]]
Refusal = Callable[[int, ServerError, str], BaseCommand]
"""The answer to the request of this id, for this reason, in these words."""


class Opener(Protocol):
    """The client's session."""

    by_tls: bool
    """Whether the client's connection is one with TLS."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> object:
        """Run work for as long as the client is there."""

    def write_client(self, data: bytes) -> None:
        """Send bytes."""

    def note_refusal(self, request_id: int, name: str, reason: str) -> None:
        """Log that a request was refused."""

    def end(self, reason: str, error: bool = False) -> None:
        """Close the client's connection."""


class Openings:
    """Handlers of LOOKUP, PRODUCER and SUBSCRIBE, and of requests that name a topic."""

    def __init__(
        self,
        session: Opener,
        topics: TrackedTopics,
        lookups: Lookups,
        requests: RequestsInFlight,
        producers: SessionProducers,
        consumers: SessionConsumers,
        own_requests: OwnRequests,
        relay: Relay,
        limits: ConnectionLimits,
    ) -> None:
        """The parts of one session."""
        self._session = session
        self._topics = topics
        self._lookups = lookups
        self._requests = requests
        self._producers = producers
        self._consumers = consumers
        self._own_requests = own_requests
        self._relay = relay
        self._limits = limits

    def on_lookup(self, frame: Frame) -> None:
        """Answered with the address of the bridge that owns the topic."""
        request = frame.command().lookupTopic

        async def answer() -> None:
            request_id = request.request_id
            found = await self._lookups.resolve(request)
            if isinstance(found, Found):
                owner = await self._topics.owner_urls(request.topic)
                found = led_to(found, owner, self._session.by_tls, request.topic)
                if isinstance(found, Refused):
                    self._session.note_refusal(request_id, ServerError.Name(found.code), found.message)
            if isinstance(found, Refused):
                command = commands.lookup_failed(request_id, found.code, found.message)
            else:
                command = commands.lookup_connect(request_id, found.url, found.authoritative)
            self._requests.done(request_id)
            self._session.write_client(encode_frame(command))

        self._spawn(request.request_id, answer)

    def on_producer(self, frame: Frame) -> None:
        """Relayed to the topic's broker."""
        producer = frame.command().producer
        producer_id, request_id = producer.producer_id, producer.request_id
        self._producers.begin(producer_id, request_id)

        async def relay() -> None:
            try:
                upstream = await self._lookups.upstream_of(producer.topic)
            except BaseException:
                self._producers.failed(producer_id, request_id)
                raise
            if not self._producers.open(upstream, frame, producer_id, request_id):
                self._requests.done(request_id)

        self._spawn(request_id, relay)

    def on_subscribe(self, frame: Frame) -> None:
        """Relayed to the topic's broker, unless the subscription is the bridge's own."""
        subscribe = frame.command().subscribe
        consumers = self._consumers
        try:
            refuse_reserved(subscribe)
            joining = consumers.join(subscribe)
        except BrokerError as error:
            self._refuse(subscribe.request_id, error)
            return
        if joining is None:
            consumers.subscribe_again(frame, subscribe.consumer_id)
            return

        async def relay() -> None:
            try:
                upstream = await self._lookups.upstream_of(subscribe.topic)
                async with self._marked(upstream, subscribe):
                    sent = consumers.subscribe(upstream, frame, joining)
            except BaseException:
                consumers.not_joined(joining)
                raise
            if not sent:
                self._requests.done(subscribe.request_id)

        self._spawn(subscribe.request_id, relay)

    def on_named(self, frame: Frame) -> None:
        """Relayed to the broker of the topic that it names, though no producer or consumer may live there."""
        command, request_id = frame.command(), int(body_of(frame).request_id)

        answered = partial(self._on_ended, command.endTxn) if frame.type == BaseCommand.END_TXN else None

        async def relay() -> None:
            self._relay(await self._lookups.upstream_of(TOPIC_OF[frame.type](command)), frame, answered)

        self._spawn(request_id, relay, partial(refusal, command))

    def _on_ended(self, end: CommandEndTxn, agreed: bool) -> None:
        """What was acked in a transaction counts from now on, or comes again."""
        if agreed:
            transaction = end.txnid_most_bits, end.txnid_least_bits
            self._topics.transaction_ended(transaction, end.txn_action == TxnAction.COMMIT)

    @contextlib.asynccontextmanager
    async def _marked(self, upstream: Upstream, subscribe: CommandSubscribe) -> AsyncIterator[None]:
        """While the client's consumer is subscribed: the cursor bears its mark, if it can be given one."""
        if not self._consumers.is_tracked(subscribe):
            yield
            return
        topic = str(TopicName.parse(subscribe.topic))
        async with self._topics.attaching(topic, subscribe.subscription) as is_unmarked:
            for _ in range(self._limits.stamp_tries):
                if not await is_unmarked():
                    break
                stamped = await stamp(self._own_requests, upstream, subscribe, self._lookups.next_request_id)
                if stamped is Stamped.yes:
                    await self._until_shown(is_unmarked)
                if stamped is not Stamped.busy:
                    break
                await asyncio.sleep(self._limits.stamp_pause_s)
            yield

    async def _until_shown(self, is_unmarked: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """Wait, as far as that helps, until a mark is in its cursor.

        A cursor that has no ledger makes one first, and acks of single messages that move it meanwhile take the mark
        away: no consumer is to send any before.
        """
        for _ in range(self._limits.stamp_tries):
            if not await is_unmarked():
                break
            await asyncio.sleep(self._limits.stamp_pause_s)

    def _spawn(self, request_id: int, work: Work, refusal: Refusal = commands.error) -> None:
        self._session.spawn(self._answering(request_id, work, refusal))

    async def _answering(self, request_id: int, work: Work, refusal: Refusal) -> None:
        """Run `work`; what goes wrong becomes the answer to the client's request, as a broker would word it."""
        try:
            await work()
        except BrokerError as error:
            self._refuse(request_id, error, refusal)
        except (ProtocolError, ValueError) as error:
            self._session.end(str(error), error=True)

    def _refuse(self, request_id: int, error: BrokerError, refusal: Refusal = commands.error) -> None:
        self._requests.done(request_id)
        code = error.code or ServerError.ServiceNotReady
        self._session.note_refusal(request_id, ServerError.Name(code), str(error))
        self._session.write_client(encode_frame(refusal(request_id, code, error.message)))
