"""What becomes of a topic partition on which the broker's policies leave the bridge no place: the broker dispatches it.

Its consumers are attached to the broker already, with 0 permits. The permits they still have are handed on, and from
then on whatever they say goes to the broker and whatever it sends to them, as without a bridge. When the bridge gets
its place after all they are closed first: they subscribe anew, and what they had not acked comes again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import structlog

from bridge.answers.values import Severity
from bridge.broker.admin import AdminClient, AdminError
from bridge.broker.candidates import Elected
from bridge.broker.connection import BrokerConnection, BrokerError
from bridge.broker.reader import open_reader
from bridge.dispatch.dispatcher import ConsumerState
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.operate.warnings import OperatorWarning
from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from bridge.protocol.pulsar_pb2 import ServerError
from bridge.topics.context import BridgeContext
from bridge.topics.standing.ownership import Ownership
from tracker import EARLIEST

log = structlog.get_logger(__name__)

T = TypeVar("T")

REFUSALS = frozenset({ServerError.NotAllowedError, ServerError.ConsumerBusy, ServerError.SubscriptionNotFound})
"""What brokers say when a policy is in the way (`maxConsumersPerTopic`, `maxSubscriptionsPerTopic`,
`subscriptionTypesEnabled`, …): asking again does not help as long as the policy stands."""


def is_refusal(error: Exception | None) -> bool:
    """Whether it is a policy of the broker that stands in the way."""
    return isinstance(error, BrokerError) and error.code in REFUSALS


class PassThrough:
    """One per tracked topic partition."""

    def __init__(
        self,
        topic: str,
        subscriptions: Mapping[str, TrackedSubscription],
        context: BridgeContext,
        give_up: Callable[[str], None],
    ) -> None:
        """`subscriptions` may change at any time; `give_up`: be the owner no more. Nothing is passed through yet."""
        self.reason: str | None = None
        """Why the broker dispatches; None while it does not."""
        self._topic = topic
        self._subscriptions = subscriptions
        self._context = context
        self._limits = context.limits.topics
        self._give_up = give_up
        self._refused_since: float | None = None
        self._held: tuple[BrokerError, float] | None = None

    async def begin_unless_owned(self, reason: str) -> Elected | None:
        """Let the broker dispatch to all consumers; this bridge must not own the topic partition.

        Nothing is done where another bridge owns it, or that is not known. Returns the other one.
        """
        try:
            known = await self._context.admin.candidates(self._topic, HIDDEN_SUBSCRIPTION)
        except AdminError:
            return None
        own_url = self._context.advertised_url
        elected = self._context.peers.judge(self._topic, own_url, known, settled=False)
        if elected.url not in (None, own_url):
            self.end()
            return elected
        if reason != self.reason:
            log.warning("topic is passed through, the broker dispatches it", topic=self._topic, reason=reason)
        self.reason = reason
        for subscription in self._subscriptions.values():
            self.attached(subscription)
        return None

    def attached(self, subscription: TrackedSubscription) -> None:
        """A consumer came."""
        if self.reason is not None:
            for state in subscription.dispatcher.consumers:
                _pass(state)

    def end(self) -> None:
        """Close whom the broker dispatches to, before anybody else does."""
        if self.reason is None:
            return
        log.info("topic is passed through no more", topic=self._topic)
        self.reason = None
        for subscription in self._subscriptions.values():
            for state in list(subscription.dispatcher.consumers):
                if state.consumer.passed:
                    state.consumer.close()

    async def reading(self, work: Awaitable[T]) -> T:
        """Wait for a reader, and give up where policies have left no place for one for too long. Raises BrokerError."""
        try:
            found = await work
        except BrokerError as error:
            if is_refusal(error):
                self._note_refused(error, asyncio.get_running_loop().time())
            raise
        self._refused_since = None
        return found

    def _note_refused(self, error: BrokerError, now_s: float) -> None:
        since = self._refused_since = now_s if self._refused_since is None else self._refused_since
        if now_s - since >= self._limits.reading_refused_s:
            self._refused_since, self._held = None, (error, now_s + self._limits.refused_again_s)
            self._give_up(f"the broker refuses readers: {error}")

    def hold(self) -> None:
        """Raise the BrokerError that kept the bridge from reading, as long as it is not to be tried again."""
        if self._held is not None and asyncio.get_running_loop().time() < self._held[1]:
            raise self._held[0]
        self._held = None

    def warnings(self) -> list[OperatorWarning]:
        """Say so, as long as it lasts."""
        if self.reason is None:
            return []
        text = f"the broker leaves the bridge no place and dispatches this topic itself: {self.reason}"
        return [OperatorWarning(Severity.critical, "passed-through", text)]


def _pass(state: ConsumerState[TrackedConsumer]) -> None:
    if not state.consumer.passed:
        permits, state.permits = state.permits, 0
        state.consumer.pass_through(permits)


async def stand(ownership: Ownership, admin: AdminClient, level: int, *, create: bool = False) -> None:
    """Become a candidate; where subscriptions do not come into being by themselves, make it. Raises BrokerError."""
    try:
        await ownership.stand(level, create=create)
    except BrokerError as error:
        if error.code != ServerError.SubscriptionNotFound:
            raise
        try:
            await admin.create_subscription(ownership.topic, HIDDEN_SUBSCRIPTION)
        except AdminError as refused:
            raise BrokerError(f"{HIDDEN_SUBSCRIPTION} cannot be made: {refused}", error.code) from refused
        await ownership.stand(level)


async def try_to_read(connection: BrokerConnection, topic: str) -> None:
    """See whether there is a place for the readers that an owner needs at least. Raises BrokerError."""
    readers = []
    try:
        for _ in range(2):  # the harvester's, and one that reads further back
            readers.append(await open_reader(connection, topic, EARLIEST, lambda _: None, lambda _: None))
    finally:
        for reader in readers:
            reader.close()
