"""All tracked topic partitions of this bridge, and the one loop that makes their writes durable."""

import asyncio
import contextlib

import structlog

from bridge import limits
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.protocol.pulsar_pb2 import CommandAck
from bridge.protocol.topic_name import TopicName
from bridge.tracked_subscription import TrackedSubscription
from bridge.tracked_topic import Surroundings, TrackedTopic
from tracker import Store, StoreError

log = structlog.get_logger(__name__)


class SyncLoop:
    """Syncs the store's log in a thread, once for everything written since the last time."""

    def __init__(self, store: Store) -> None:
        """Nothing runs before `run`."""
        self._store = store
        self._dirty: set[TrackedTopic] = set()
        self._wake = asyncio.Event()
        self.failing = False

    def mark_dirty(self, topic: TrackedTopic) -> None:
        """Have the topic's writes synced soon."""
        self._dirty.add(topic)
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled. A sync that fails is tried again: positions do not move on meanwhile."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(limits.SYNC_INTERVAL_S)
            self._wake.clear()
            await self.sync()

    async def sync(self) -> None:
        """Sync once what is dirty now."""
        dirty, self._dirty = self._dirty, set()
        positions = [(topic, topic.harvested_unsynced()) for topic in dirty]
        try:
            await asyncio.to_thread(self._store.sync)
        except StoreError as error:
            if not self.failing:
                log.error("cannot sync the data directory", reason=str(error))
            self.failing = True
            self._dirty |= dirty
            await asyncio.sleep(limits.RETRY_BACKOFF_S[-2])
            self._wake.set()
            return
        self.failing = False
        for topic, position in positions:
            topic.on_synced(position)


class Topics:
    """Tells each tracked topic what its clients do; see `bridge.gateway.consumers.TrackedTopics`."""

    def __init__(self, around: Surroundings, syncing: SyncLoop) -> None:
        """`around.mark_dirty` is `syncing`'s."""
        self._around = around
        self._syncing = syncing
        self._topics: dict[str, TrackedTopic] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sync_task = asyncio.get_running_loop().create_task(syncing.run())
        self._closing = False

    def resume(self) -> None:
        """Go on with every topic the data directory knows, before any client asks for it."""
        for name in self._around.store.topics():
            self._topic(name)

    def all(self) -> list[TrackedTopic]:
        """The tracked topics."""
        return list(self._topics.values())

    def get(self, topic: str) -> TrackedTopic | None:
        """A tracked topic by its full name."""
        return self._topics.get(topic)

    async def close(self) -> None:
        """Stop dispatching, persist, give up ownership."""
        self._closing = True
        for topic in self._topics.values():
            topic.close()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=2 * limits.CLOSE_TIMEOUT_S)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._sync_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sync_task
        await self._syncing.sync()

    # -- what the gateway tells

    def attach(self, consumer: TrackedConsumer) -> None:
        """The broker accepted a consumer."""
        self._topic(consumer.topic).attach(consumer)

    def detach(self, consumer: TrackedConsumer) -> None:
        """The consumer is gone."""
        topic = self._topics.get(consumer.topic)
        if topic is not None:
            topic.detach(consumer)

    def closed_by_broker(self, consumer: TrackedConsumer) -> None:
        """The cursor may have been moved."""
        subscription = self._subscription(consumer)
        if subscription is not None:
            subscription.interrupted = True

    def flow(self, consumer: TrackedConsumer, permits: int) -> None:
        """More permits."""
        subscription = self._subscription(consumer)
        if subscription is not None:
            subscription.flow(consumer, permits)

    def acked(self, consumer: TrackedConsumer, ack: CommandAck) -> None:
        """An ack was relayed."""
        subscription = self._subscription(consumer)
        if subscription is not None:
            subscription.acked(ack)

    def redeliver(self, consumer: TrackedConsumer, positions: list[tuple[int, int]] | None) -> None:
        """Deliver again."""
        subscription = self._subscription(consumer)
        if subscription is not None:
            subscription.redeliver(consumer, positions)

    def seeking(self, consumer: TrackedConsumer) -> None:
        """A seek is on its way."""
        subscription = self._subscription(consumer)
        if subscription is not None:
            subscription.suspend()

    def sought(self, topic: str, subscription: str) -> None:
        """A seek was answered."""
        known = self._topics.get(topic)
        if known is not None and not self._closing:
            known.sought(subscription)

    def unsubscribed(self, topic: str, subscription: str) -> None:
        """The subscription is deleted."""
        known = self._topics.get(topic)
        if known is not None:
            known.unsubscribed(subscription)

    async def owner_url(self, topic: str) -> str:
        """The bridge that a client of `topic` is to connect to: its owner if it has one, else this bridge."""
        known = self._topics.get(str(TopicName.parse(topic)))
        if known is not None and known.owner is not None:
            return known.owner
        return self._around.advertised_url

    def _subscription(self, consumer: TrackedConsumer) -> TrackedSubscription | None:
        topic = self._topics.get(consumer.topic)
        return None if topic is None else topic.subscriptions.get(consumer.subscription)

    def _topic(self, name: str) -> TrackedTopic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = TrackedTopic(name, self._around)
            task = asyncio.get_running_loop().create_task(topic.run())
            self._tasks[name] = task
            task.add_done_callback(lambda done: self._ended(name, done))
        return topic

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("a tracked topic failed", topic=name, exc_info=error)
        if self._closing:
            return
        del self._tasks[name]
        topic = self._topics.pop(name)
        topic.send_consumers_away()
        if topic.unneeded:
            log.info("topic is not tracked any more", topic=name)
            with contextlib.suppress(StoreError):
                self._around.store.drop_topic(name)
