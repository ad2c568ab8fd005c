"""All tracked topic partitions of this bridge, and the one loop that makes their writes durable."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, ParamSpec

import structlog

from bridge.broker.admin import AdminError
from bridge.broker.candidates import Candidates, Elected
from bridge.dispatch.acks.pending_acks import Transaction
from bridge.dispatch.admission import Admission, Early
from bridge.dispatch.consumer_stats import complete
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.limits import TopicLimits
from bridge.net.backoff import Backoff
from bridge.net.failures import Failures, Part
from bridge.protocol.names import HIDDEN_SUBSCRIPTION, TopicName
from bridge.protocol.pulsar_pb2 import CommandAck, CommandConsumerStatsResponse
from bridge.protocol.service_url import ServiceUrls
from bridge.topics.context import BridgeContext, Durable
from bridge.topics.marks import Marks
from bridge.topics.tracked_topic import TrackedTopic
from tracker import Store, StoreError

P = ParamSpec("P")

log = structlog.get_logger(__name__)


class SyncLoop:
    """Syncs the store's log in a thread, once for everything written since the last time.

    When the store has failed it is opened anew as soon as there is room again. Whoever cannot write marks itself dirty:
    that is how the failure is noticed.
    """

    def __init__(self, store: Store, failures: Failures, backoff: Backoff, limits: TopicLimits) -> None:
        """Nothing runs before `run`. `backoff`: the pauses before the store is opened anew."""
        self.failure: str | None = None
        """Why nothing is stored at the moment; None when all is well."""
        self.on_recovered: list[Callable[[], None]] = []
        """Called when the store was opened anew: what was not synced before may be gone."""
        self._store = store
        self._failures = failures
        self._backoff = backoff
        self._limits = limits
        self._dirty: dict[Durable, None] = {}  # a set whose order is not by chance
        self._waiting: list[asyncio.Future[bool]] = []
        self._wake = asyncio.Event()
        self._recovered_at = -math.inf

    def mark_dirty(self, topic: Durable) -> None:
        """Have the topic's writes synced soon."""
        self._dirty[topic] = None
        self._wake.set()

    async def synced(self) -> bool:
        """Wait until what is written by now is on disk; False when it cannot be."""
        waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._wake.set()
        return await waiting

    async def run(self) -> None:
        """Until cancelled. A sync that fails is tried again: positions do not move on meanwhile."""
        now = asyncio.get_running_loop().time
        while True:
            await self._wake.wait()
            await asyncio.sleep(self._limits.sync_interval_s)
            self._wake.clear()
            if await self._is_synced():
                continue
            if now() - self._recovered_at > self._limits.recovery_lasts_s:
                self._backoff.reset()
            await asyncio.sleep(self._backoff.next_s())
            await self._recover()
            self._wake.set()

    async def _is_synced(self) -> bool:
        try:
            return await self.sync()
        except Exception as error:
            self._failures.note(Part.storage, "a sync failed", error)
            return False

    async def sync(self) -> bool:
        """Sync once what is dirty now; False when that cannot be done."""
        dirty, self._dirty = self._dirty, {}
        waiting, self._waiting = self._waiting, []
        synced = False
        try:
            synced = await self._sync(dirty)
        finally:
            if not synced:
                self._dirty = dirty | self._dirty
            _answer(waiting, synced)
        return synced

    async def _sync(self, dirty: Iterable[Durable]) -> bool:
        positions = [(topic, topic.harvested_unsynced()) for topic in dirty]
        try:
            if not self._store.is_synced:  # of an idle topic nothing is written between two checkpoints
                await asyncio.to_thread(self._store.sync)
        except StoreError as error:
            if self.failure is None:
                self.failure = self._store.failure or str(error)
                log.error("nothing can be stored, what is due goes out all the same", reason=self.failure)
            return False
        if self.failure is not None:
            self.failure = None
            log.info("the data directory can be written again")
        for topic, position in positions:
            topic.on_synced(position)
        return True

    async def _recover(self) -> None:
        try:
            await asyncio.to_thread(self._store.probe)
            self._store.recover()
            self._recovered_at = asyncio.get_running_loop().time()
            for call in self.on_recovered:
                call()
        except StoreError as error:
            log.debug("the data directory cannot be written yet", reason=str(error))
        except Exception as error:
            self._failures.note(Part.storage, "the data directory cannot be opened anew", error)


def _answer(waiting: list[asyncio.Future[bool]], synced: bool) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(synced)


class Topics:
    """Tells each tracked topic what its clients do; see `bridge.gateway.consumers.TrackedTopics`."""

    def __init__(self, context: BridgeContext, syncing: SyncLoop) -> None:
        """`context.mark_dirty` is `syncing`'s."""
        self._context = context
        self._syncing = syncing
        syncing.on_recovered.append(self._on_recovered)
        self._topics: dict[str, TrackedTopic] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sync_task = asyncio.get_running_loop().create_task(syncing.run())
        self._closing = False
        self._owned_elsewhere: Collection[str] = frozenset()
        self._admission = Admission(
            context.admin.listed_marks,
            self._admit,
            self._on_admission_trouble,
            context.failures,
            context.backoff,
            context.limits.dispatch,
        )
        self._marks = Marks(context.admin, context.failures, context.limits.connections.stamp_timeout_s)

    def resume(self) -> None:
        """Go on with every topic the data directory knows, before any client asks for it."""
        for name in self._context.store.topics():
            self._topic(name)

    def all(self) -> list[TrackedTopic]:
        """The tracked topics."""
        return list(self._topics.values())

    def get(self, topic: str) -> TrackedTopic | None:
        """A tracked topic by its full name."""
        return self._topics.get(topic)

    # -- what other bridges are told, and ask for

    async def owned(self) -> dict[str, float]:
        """The topic partitions that this bridge owns, and how much work each is: 0 of those it has let go of.

        There may be thousands: others get their turn in between.
        """
        found: dict[str, float] = {}
        for number, topic in enumerate(self.all(), 1):
            if topic.is_known:
                found[topic.topic] = topic.load if topic.role == "owner" else 0.0
            if number % self._context.limits.operators.topics_slice == 0:
                await asyncio.sleep(0)
        return found

    def invite(self, names: Collection[str], owned_elsewhere: Mapping[str, float]) -> None:
        """Be ready to take these over, and of those that others own no others.

        What stands by where nobody is connected any more keeps its index. `owned_elsewhere`: by topic, the load.
        """
        if self._closing:
            return
        for name in names:
            self._topic(name).invite()
        for topic in list(self._topics.values()):
            if topic.topic not in names and owned_elsewhere.get(topic.topic, 0.0) > 0:
                topic.uninvite()
        self._owned_elsewhere = frozenset(owned_elsewhere)

    def is_ready(self, name: str) -> bool:
        """Whether this bridge could take a topic partition over at once."""
        topic = self._topics.get(name)
        return topic is not None and topic.standby_position is not None

    def take_over(self, name: str) -> bool:
        """Become the owner of a topic partition; False if this bridge is not ready to."""
        topic = self._topics.get(name)
        return not self._closing and topic is not None and topic.take_over()

    @property
    def storage_failure(self) -> str | None:
        """Why nothing is stored at the moment; what is due is delivered all the same."""
        return self._syncing.failure

    async def close(self) -> None:
        """Stop dispatching, persist, give up ownership."""
        self._closing = True
        await self._admission.close()
        for topic in self._topics.values():
            self._do(topic, topic.close)
        if self._tasks:
            timeout_s = 2 * self._context.limits.connections.close_timeout_s
            await asyncio.wait(self._tasks.values(), timeout=timeout_s)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._marks.close()
        self._sync_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sync_task
        await self._syncing.sync()

    # -- what the gateway tells

    @contextlib.asynccontextmanager
    async def attaching(self, topic: str, subscription: str) -> AsyncIterator[Callable[[], Coroutine[Any, Any, bool]]]:
        """What tells whether the cursor of a subscription is to be marked before a consumer is attached."""

        async def is_unmarked() -> bool:
            known = self._topics.get(topic)
            served = None if known is None else known.subscriptions.get(subscription)
            if served is not None and served.has_consumers and not served.in_doubt:
                return False  # too late, or done
            return await self._marks.is_wanted(topic, subscription)

        async with self._marks.alone(topic, subscription):
            yield is_unmarked

    def attach(self, consumer: TrackedConsumer) -> None:
        """The broker accepted a consumer; it takes part once the broker lists it."""
        if not self._closing:
            self._topic(consumer.topic)
            self._admission.ask(consumer)

    def _admit(self, consumer: TrackedConsumer, early: Early) -> None:
        consumer.admitted = True
        topic = self._topic(consumer.topic)
        if not self._do(topic, topic.attach, consumer):
            consumer.close()
            return
        if consumer.passed:
            consumer.pass_through(early.permits)
        else:
            self.flow(consumer, early.permits)
        for ack in early.acks:
            self.acked(consumer, ack)

    def _on_admission_trouble(self, name: str, reason: str | None) -> None:
        if (topic := self._topics.get(name)) is not None:
            topic.admission_trouble = reason

    def detach(self, consumer: TrackedConsumer) -> None:
        """The consumer is gone."""
        topic = self._topics.get(consumer.topic)
        waited = self._admission.forget(consumer)
        if topic is not None and waited:
            self._do(topic, topic.left_early, consumer.subscription)
        elif topic is not None:
            self._do(topic, topic.detach, consumer)
        if topic is not None and not self._admission.anybody_for(consumer.topic, consumer.subscription):
            self._do(topic, topic.left, consumer.subscription)

    def flow(self, consumer: TrackedConsumer, permits: int) -> None:
        """More permits."""
        if (early := self._admission.early(consumer)) is not None:
            early.permits += permits
            return
        if (found := self._served(consumer)) is not None:
            topic, subscription = found
            self._do(topic, subscription.flow, consumer, permits)

    def acked(self, consumer: TrackedConsumer, ack: CommandAck) -> None:
        """An ack was relayed."""
        if not consumer.admitted:
            early = self._admission.early(consumer)
            if early is not None and len(early.acks) < self._context.limits.dispatch.early_acks_max:
                early.acks.append(ack)
            return
        if (found := self._served(consumer)) is not None:
            topic, subscription = found
            self._do(topic, subscription.acked, consumer, ack)

    def active_changed(self, consumer: TrackedConsumer) -> None:
        """The broker has elected the consumer, or another one; of one that is not listed yet it is known then."""
        if consumer.admitted and (found := self._served(consumer)) is not None:
            topic, subscription = found
            self._do(topic, subscription.active_changed, consumer)

    def ack_answered(self, consumer: TrackedConsumer, ack: CommandAck, agreed: bool) -> None:
        """An ack in a transaction was answered."""
        if (found := self._served(consumer)) is not None:
            topic, subscription = found
            self._do(topic, subscription.ack_answered, ack, agreed)

    def transaction_ended(self, transaction: tuple[int, int], committed: bool) -> None:
        """A transaction is ended; which of the topics here it was for does not show."""
        for topic in self._topics.values():
            if topic.has_pending_acks:
                self._do(topic, topic.transaction_ended, Transaction(*transaction), committed)

    def redeliver(self, consumer: TrackedConsumer, positions: list[tuple[int, int]] | None) -> None:
        """Deliver again."""
        if (found := self._served(consumer)) is not None:
            topic, subscription = found
            self._do(topic, subscription.redeliver, consumer, positions)

    def seeking(self, consumer: TrackedConsumer) -> Collection[TrackedConsumer]:
        """A seek is on its way; returns the consumers that are attached by now."""
        if (found := self._served(consumer)) is None:
            return ()
        topic, subscription = found
        self._do(topic, subscription.suspend)
        return [state.consumer for state in subscription.dispatcher.consumers]

    def sought(self, topic: str, subscription: str, closed: Collection[TrackedConsumer]) -> None:
        """A seek was answered; `closed`: the consumers that it has closed."""
        known = self._topics.get(topic)
        if known is not None and not self._closing:
            self._do(known, known.sought, subscription, closed)

    def complete_stats(self, consumer: TrackedConsumer, told: CommandConsumerStatsResponse) -> bool:
        """What a client is told of its consumer."""
        found = self._served(consumer)
        state = None if found is None else found[1].dispatcher.state(consumer)
        if state is not None:
            complete(told, state, self._context.now_ms())
        return state is not None

    def unsubscribed(self, topic: str, subscription: str) -> None:
        """The subscription is deleted."""
        known = self._topics.get(topic)
        if known is not None:
            self._do(known, known.unsubscribed, subscription)

    async def owner_urls(self, topic: str) -> ServiceUrls:
        """The bridge that a client of `topic` is to connect to: its owner if it has one, else this bridge."""
        name, own = str(TopicName.parse(topic)), self._context.advertised_url
        known = self._topics.get(name)
        if known is not None:
            await known.look_at_owner()
            owner = Elected(known.owner, tls_url=known.owner_tls_url)
        else:
            owner = await self._owner_elsewhere(name)
        if owner.url is not None and owner.url != own:
            return ServiceUrls.of(owner.url, owner.tls_url)
        return ServiceUrls.of(own, self._context.tls_url)

    async def _owner_elsewhere(self, name: str) -> Elected:
        """Of a topic partition that this bridge has nothing to do with, and another one has as far as it knows."""
        if name not in self._owned_elsewhere:
            return Elected()
        try:
            return self.believed_owner(name, await self._context.admin.candidates(name, HIDDEN_SUBSCRIPTION))
        except AdminError:
            return Elected()

    def believed_owner(self, topic: str, known: Candidates) -> Elected:
        """Who owns a topic partition by what the broker lists of it, whether it is tracked here or not."""
        return self._context.peers.judge(topic, self._context.advertised_url, known, settled=False)

    def _on_recovered(self) -> None:
        for topic in self._topics.values():
            self._do(topic, topic.on_recovered)

    def _do(self, topic: TrackedTopic, act: Callable[P, object], *args: P.args, **named: P.kwargs) -> bool:
        """Whatever goes wrong in a topic is the topic's alone; returns whether nothing did."""
        try:
            act(*args, **named)
        except Exception as error:
            topic.fail(error)
            return False
        return True

    def _served(self, consumer: TrackedConsumer) -> tuple[TrackedTopic, TrackedSubscription] | None:
        topic = self._topics.get(consumer.topic)
        subscription = None if topic is None else topic.subscriptions.get(consumer.subscription)
        return None if topic is None or subscription is None else (topic, subscription)

    def _topic(self, name: str) -> TrackedTopic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = TrackedTopic(name, self._context)
            task = asyncio.get_running_loop().create_task(topic.run())
            self._tasks[name] = task
            task.add_done_callback(lambda done: self._ended(name, done))
        return topic

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._context.failures.note(Part.topic, "the topic failed, and is not tracked any more", error, topic=name)
        if self._closing:
            return
        del self._tasks[name]
        topic = self._topics.pop(name)
        topic.send_consumers_away()
        if topic.unneeded or topic.dismissed:
            log.info("topic is not tracked any more", topic=name)
            with contextlib.suppress(StoreError):
                self._context.store.drop_topic(name)
