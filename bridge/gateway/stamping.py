"""Gives a subscription's cursor the mark of its history before a first consumer is there.

See `bridge.ledgers.cursor_history` for what the mark is.

Only a cumulative ack carries properties into a cursor, and Shared consumers' cumulative acks mean nothing. So the
client's own SUBSCRIBE is sent ahead as Exclusive, for a moment, with the client's rights and nobody else attached: it
acks what is acked anyway, with the mark, and is closed. A subscription that others consume from has its mark already,
or does without; then the broker's word about acks is all there is.
"""

import asyncio
from collections.abc import Callable
from enum import Enum, auto

import structlog

from bridge.broker.connection import BrokerError
from bridge.clock import RandBits
from bridge.gateway.upstream import Upstream
from bridge.ledgers.cursor_history import PROPERTY, new_history
from bridge.protocol import commands
from bridge.protocol.frames import encode_frame
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe, ServerError

log = structlog.get_logger(__name__)

STAMP_CONSUMER_ID_BASE = 1 << 62
"""Consumer ids of the gateway's own on a client's connection; clients count from 0."""


class Unanswered(BrokerError):
    """The broker may do yet, or have done, what it was asked."""


class Stamped(Enum):
    """What became of a try to mark a cursor."""

    yes = auto()
    """It is on its way."""
    no = auto()
    busy = auto()
    """Another bridge is about to do the same: look again in a moment."""


class OwnRequests:
    """The gateway's own requests on one client's connections to brokers."""

    def __init__(self, timeout_s: float, randbits: RandBits) -> None:
        """`timeout_s`: for each of them; `randbits`: what marks are made of."""
        self._timeout_s = timeout_s
        self.randbits = randbits
        self._waiting: dict[tuple[Upstream, int], asyncio.Future[BaseCommand]] = {}

    async def ask(self, upstream: Upstream, command: BaseCommand, request_id: int) -> BaseCommand:
        """Send, and return the answer. Raises BrokerError when it is a refusal, Unanswered when it does not come."""
        answer: asyncio.Future[BaseCommand] = asyncio.get_running_loop().create_future()
        self._waiting[upstream, request_id] = answer
        upstream.write(encode_frame(command))
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await answer
        except TimeoutError:
            raise Unanswered(f"{upstream.url} did not answer within {self._timeout_s:g} s") from None
        finally:
            del self._waiting[upstream, request_id]
        if found.type == BaseCommand.ERROR:
            raise BrokerError(found.error.message, found.error.error)
        return found

    def answered(self, upstream: Upstream, request_id: int, command: BaseCommand) -> bool:
        """Take an answer; False when nobody here waits for it."""
        waiting = self._waiting.get((upstream, request_id))
        if waiting is None:
            return False
        if not waiting.done():
            waiting.set_result(command)
        return True


async def stamp(
    requests: OwnRequests, upstream: Upstream, subscribe: CommandSubscribe, next_request_id: Callable[[], int]
) -> Stamped:
    """Mark the cursor of the subscription that a client is about to consume from.

    A refusal is none of the client's business: its own SUBSCRIBE follows, and is answered by the broker.
    """
    request_id = next_request_id()
    consumer_id = STAMP_CONSUMER_ID_BASE + request_id % STAMP_CONSUMER_ID_BASE
    try:
        await requests.ask(upstream, commands.subscribe_alone(subscribe, consumer_id, request_id), request_id)
    except Unanswered as error:
        # Left open, it would keep everybody from subscribing for as long as this client is there.
        log.warning("cannot mark cursor", topic=subscribe.topic, subscription=subscribe.subscription, reason=str(error))
        await _close(requests, upstream, consumer_id, next_request_id())
        return Stamped.no
    except BrokerError as error:
        log.debug("cursor is not marked", topic=subscribe.topic, subscription=subscribe.subscription, reason=str(error))
        busy = error.code == ServerError.ConsumerBusy and "different type" not in str(error)
        return Stamped.busy if busy else Stamped.no
    stamped = Stamped.no
    try:
        position = await _mark_delete_position(requests, upstream, consumer_id, next_request_id())
        # An ack of what is acked: should the cursor be set anew meanwhile, the broker has closed this consumer first.
        marking = commands.ack_up_to(consumer_id, position, {PROPERTY: new_history(requests.randbits)})
        upstream.write(encode_frame(marking))
        stamped = Stamped.yes
    except BrokerError as error:
        log.warning("cannot mark cursor", topic=subscribe.topic, subscription=subscribe.subscription, reason=str(error))
    # Not when cancelled: the client is gone then, and this consumer with its connection.
    await _close(requests, upstream, consumer_id, next_request_id())
    return stamped


async def _mark_delete_position(
    requests: OwnRequests, upstream: Upstream, consumer_id: int, request_id: int
) -> tuple[int, int]:
    command = commands.last_message_id(consumer_id, request_id)
    answer = (await requests.ask(upstream, command, request_id)).getLastMessageIdResponse
    if not answer.HasField("consumer_mark_delete_position"):
        raise BrokerError("the broker does not say where the cursor is")
    position = answer.consumer_mark_delete_position
    return position.ledgerId, position.entryId


async def _close(requests: OwnRequests, upstream: Upstream, consumer_id: int, request_id: int) -> None:
    try:
        await requests.ask(upstream, commands.close_consumer(consumer_id, request_id), request_id)
    except BrokerError as error:
        log.warning("consumer that marks a cursor may still be there", broker=upstream.url, reason=str(error))
