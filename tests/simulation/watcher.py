"""What is looked at all the way through: who dispatches, what the broker is told, how much everybody holds."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from bridge.topics.tracked_topic import TrackedTopic
from tests.simulation.broker import Consumer
from tests.simulation.messages import Broken
from tests.simulation.small import SMALL
from tracker import Position
from tracker.store.records import TopicKeys, TopicRecord

if TYPE_CHECKING:
    from tests.simulation.world import World

NEAR_TERM_BYTES = 1 << 16
DEPOSED_S = 5.0
"""By then a former owner that nothing disturbs has heard of it, and stopped."""
UNHEARD_S = 10.0
"""By then one that hears nothing has stopped of its own accord."""


class Watcher:
    """Of one world."""

    def __init__(self, world: World, topic: str) -> None:
        """It is told of acks by the cluster, of messages by the account."""
        self._world = world
        self._topic = topic
        self._key = TopicKeys(topic).topic
        self._elected: tuple[str, float] = ("", 0.0)
        world.cluster.on_kept = self.on_kept
        world.account.on_received = self.on_received
        world.cluster.on_forgotten = world.account.forgotten
        world.cluster.on_remembered = world.account.remembered
        world.cluster.on_expired = world.account.expired
        world.cluster.on_elected = self.on_elected

    def on_elected(self, topic: str, name: str) -> None:
        """Whoever dispatches from now on does not know what the one before has noted."""
        if topic == self._topic and name != self._elected[0]:
            self._elected = (name, self._world.loop.time())
            self._world.account.owner_changed()

    def on_kept(self, topic: str, subscription: str, consumer: Consumer, number: int) -> None:
        """The harvested position that the broker's cursor keeps is on the disk of the bridge that says so."""
        if subscription != HIDDEN_SUBSCRIPTION or topic != self._topic:
            return
        bridge = next(each for each in self._world.bridges if each.url == consumer.name)
        if not bridge.alive or bridge.process is not consumer.broker.client_process:
            return  # said before it ended; its disk may have been lost since
        record = bridge.host.disk.synced_value(self._key)
        synced = None if record is None else TopicRecord.decode(record).harvested
        kept = self._world.cluster.topics[topic]
        told = Position(*kept.place_of(number))
        if number >= kept.trimmed and (synced is None or synced < told):
            raise Broken(f"{bridge.host.name} told the broker that it has all up to {told}, on disk is {synced}")

    def on_received(self, sender: str) -> None:
        """Only the bridge that the broker elected dispatches, or one that cannot know of it yet."""
        if self._world.cluster.elected.get((self._topic, HIDDEN_SUBSCRIPTION)) is None:
            return
        name, since = self._elected
        now = self._world.loop.time()
        undisturbed_s = now - max(since, self._world.account.disturbed_until)
        if f"//{sender}:" not in name and (undisturbed_s > DEPOSED_S or now - since > UNHEARD_S):
            raise Broken(f"{sender} dispatches, {now - since:.0f} s after {name} was elected")

    def dispatch_at(self, host: str) -> Hashable:
        """Another one whenever the bridge of a host begins to dispatch anew: None while it does not."""
        bridge = next(each for each in self._world.bridges if each.host.name == host)
        topic = None if bridge.core is None or not bridge.alive else bridge.core.topics.get(self._topic)
        subscription = None if topic is None else topic.subscriptions.get("s")
        return None if subscription is None else (subscription, subscription.generation)

    def look(self) -> None:
        """Nobody holds more than the limits say, and nothing goes wrong in a way that nobody thought of."""
        for bridge in self._world.bridges:
            if bridge.core is not None and bridge.alive and bridge.core.failures.counts:
                raise Broken(f"{bridge.host.name} failed: {dict(bridge.core.failures.counts)}")
            topics = [] if bridge.core is None or not bridge.alive else bridge.core.topics.all()
            for topic in topics:
                for name, held, most in _held(topic):
                    if held > most:
                        raise Broken(f"{bridge.host.name} holds {held} {name}, at most {most} are allowed")


def _held(topic: TrackedTopic) -> list[tuple[str, int, int]]:
    """What is held, how much of it, and how much may be: a read or a batch may go beyond a limit once."""
    found: list[tuple[str, int, int]] = []
    index, tenure = topic.index, topic.tenure
    if index is not None:
        found.append(("bytes of the near term", index.window.bytes_held, 2 * NEAR_TERM_BYTES))
    if tenure is not None:
        found.append(
            ("entries in the tail buffer", len(tenure.harvester._tail._items), SMALL.intake.tail_buffer_entries)
        )
    for subscription in topic.subscriptions.values():
        unacked = len(subscription.dispatcher.unacked)
        found.append(("entries in flight", unacked, SMALL.dispatch.max_unacked_per_subscription))
        if subscription.feed is not None:
            queue = len(subscription.feed._queue)
            most = SMALL.intake.feed_queue_entries + SMALL.intake.feed_permits
            found.append(("entries queued in a feed", queue, most))
    return found
