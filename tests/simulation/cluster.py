"""A simulated Pulsar cluster: which broker has which topic, and what every broker does with topics at any time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from bridge.ledgers.cursor_history import UNKNOWN, history_of
from bridge.protocol.pulsar_pb2 import CommandSubscribe, ServerError
from tests.simulation.broker import Broker, Consumer, Ranges, Refused, first_published
from tests.simulation.hosts import Host, Process
from tests.simulation.ledgers import Cursor, CursorState, Place, Topic
from tests.simulation.network import Address

PORT = 6650
FAILOVER_DELAY_S = 1.0
"""Between a Failover consumer's election and the news of it."""
LEDGER_S = (0.002, 0.1)
"""How long it takes to make a ledger for a cursor."""
STORED_RANGES = 40
"""Ranges of acks that are stored of a cursor, 10,000 by default at a real broker."""


class Node:
    """A broker's machine."""

    def __init__(self, host: Host) -> None:
        """Not started."""
        self.host = host
        self.process: Process | None = None
        self.store_every_s = host.chance.choice((1.0, 10.0))
        """Once a second by default, every ten seconds in standalone's."""

    @property
    def alive(self) -> bool:
        """Whether a broker runs."""
        return self.process is not None and self.process.alive

    @property
    def url(self) -> str:
        """Its service URL."""
        return f"pulsar://{self.host.name}:{PORT}"


def _overlap(some: Ranges, others: Ranges) -> bool:
    return any(first <= end and start <= last for first, last in some for start, end in others)


class Cluster:
    """All brokers. What bookies keep survives every one of them."""

    def __init__(self, nodes: list[Node], chance: random.Random) -> None:
        """Nothing runs yet."""
        self.nodes = nodes
        self.version = "4.0.8"
        """What the brokers behave like. From 4.2 on an acknowledgment set without a bit is an ack of the entry."""
        self.topics: dict[str, Topic] = {}
        self.owners: dict[str, Node] = {}
        self.consumers: dict[tuple[str, str], list[Consumer]] = {}
        """Of durable subscriptions, by topic and name, in the order they came."""
        self.readers: dict[str, list[Consumer]] = {}
        self.producers: dict[str, list[tuple[Broker, int]]] = {}
        self.elected: dict[tuple[str, str], Consumer | None] = {}
        self.on_kept: Callable[[str, str, Consumer, int], None] | None = None
        """Told of cumulative acks: topic, subscription, consumer, number."""
        self.on_forgotten: Callable[[str, list[Place], bool], None] | None = None
        """Told of acks that are lost: subscription, places."""
        self.on_remembered: Callable[[str, list[Place]], None] | None = None
        """Told of acks that a seek took back, and that count again: subscription, places."""
        self.on_expired: Callable[[str, list[Place]], None] | None = None
        """Told of entries that a cursor was moved past: subscription, places."""
        self.allowed: dict[str, set[str]] = {}
        """By role, the topics that it may have; whoever is not named here may have all."""
        self.fenced: set[str] = set()
        """Topics that are being deleted: nobody is let in."""
        self.on_elected: Callable[[str, str], None] | None = None
        """Told who is to own a topic."""
        self.chance = chance
        self._ledgers = 0

    # -- machines

    def start(self, node: Node) -> None:
        """Run a broker on a machine."""
        process = node.process = Process(node.host)

        async def serve() -> None:
            bound: Any = Address(node.host.name, PORT)
            await asyncio.get_running_loop().create_server(lambda: Broker(self, node), sock=bound)
            while True:
                await asyncio.sleep(node.store_every_s)
                self._store(node)

        process.start(serve())

    def kill(self, node: Node) -> None:
        """As `kill -9`: what cursors had not stored is forgotten."""
        if node.process is None:
            return
        node.process.kill()
        node.process = None
        for name in [name for name, owner in self.owners.items() if owner is node]:
            del self.owners[name]
            self._forget_clients(name)
            if name in self.topics:
                self._reload(self.topics[name])
                self.topics[name].roll(self._next_ledger())  # who opens it next recovers the ledger and begins another

    def node_of(self, name: str) -> Node:
        """Which broker has a topic; one gets it if none has. Raises Refused."""
        owner = self.owners.get(name)
        if owner is None:
            running = [node for node in self.nodes if node.alive]
            owner = self.owners[name] = self.chance.choice(running)
        return owner

    def _store(self, node: Node) -> None:
        for name, owner in self.owners.items():
            if owner is node and name in self.topics:
                for cursor in self.topics[name].cursors.values():
                    cursor.store(STORED_RANGES)

    # -- topics

    def topic(self, name: str, create: bool = True) -> Topic:
        """A topic that exists, or is made. Raises Refused."""
        topic = self.topics.get(name)
        if topic is None:
            if not create:
                raise Refused(ServerError.TopicNotFound, f"Topic {name} does not exist")
            topic = self.topics[name] = Topic(name, self._next_ledger())
        return topic

    def unload(self, name: str) -> None:
        """Close a topic in order; another broker may have it next."""
        topic = self.topics.get(name)
        if topic is None or name not in self.owners:
            return
        for cursor in topic.cursors.values():
            cursor.store(STORED_RANGES)
        self._close_clients(name)
        del self.owners[name]
        self._reload(topic)
        topic.roll(self._next_ledger())

    def _reload(self, topic: Topic) -> None:
        for subscription, cursor in topic.cursors.items():
            forgotten, remembered = cursor.reload()
            if self.on_forgotten is not None:
                marked = history_of(cursor.state.properties) != UNKNOWN
                self.on_forgotten(subscription, [topic.place_of(number) for number in sorted(forgotten)], marked)
            if self.on_remembered is not None:
                self.on_remembered(subscription, [topic.place_of(number) for number in sorted(remembered)])

    def delete(self, name: str) -> None:
        """Delete a topic by force: clients are closed, and it is made again as soon as one of them comes back."""
        self._close_clients(name)
        self.topics.pop(name, None)

    def expire(self, name: str, published_before_ms: int, only: str | None = None) -> None:
        """Move all cursors past what was published before a time, as brokers do where messages have a time to live.

        `only`: the cursor of this subscription, as an operator may.
        """
        topic = self.topics.get(name)
        if topic is None or name not in self.owners:
            return
        number = first_published(topic, published_before_ms) - 1
        for subscription, cursor in topic.cursors.items():
            passed = [each for each in range(cursor.state.first, number + 1) if each not in cursor.state.acked]
            if passed and only in (None, subscription):
                cursor.ack_upto(number, cursor.state.properties)
                self.open_soon(cursor)
                if self.on_expired is not None:
                    self.on_expired(subscription, [topic.place_of(each) for each in passed])

    def roll(self, name: str) -> None:
        """Begin a new ledger, and let go of those that nobody needs."""
        topic = self.topics.get(name)
        if topic is not None:
            topic.roll(self._next_ledger())
            topic.trim()

    def open_soon(self, cursor: Cursor) -> None:
        """Make a cursor's ledger if it needs one, unless it is loaded or set anew before."""
        state = cursor.state
        if cursor.coming is not None:
            asyncio.get_running_loop().call_later(
                self.chance.uniform(*LEDGER_S), lambda: cursor.open() if cursor.state is state else None
            )

    def _next_ledger(self) -> int:
        self._ledgers += self.chance.randint(1, 3)
        return self._ledgers

    # -- subscriptions

    def subscribe(self, consumer: Consumer, subscribe: CommandSubscribe) -> None:
        """Take a consumer in. Raises Refused."""
        topic = self.topic(consumer.topic)
        key = consumer.topic, consumer.subscription
        present = self.consumers.setdefault(key, [])
        if present:
            if (present[0].kind, present[0].sharing) != (consumer.kind, consumer.sharing):
                raise Refused(ServerError.ConsumerBusy, "Subscription is of different type")
            if any(_overlap(consumer.ranges, each.ranges) for each in present):
                raise Refused(ServerError.ConsumerAssignError, "Range conflict with consumer")
            if consumer.kind == CommandSubscribe.Exclusive:
                raise Refused(ServerError.ConsumerBusy, "Exclusive consumer is already connected")
        if consumer.subscription not in topic.cursors:
            earliest = subscribe.initialPosition == CommandSubscribe.Earliest
            topic.cursors[consumer.subscription] = Cursor(topic.trimmed if earliest else topic.end)
        present.append(consumer)
        self._elect(key)

    def leave(self, consumer: Consumer) -> None:
        """A consumer is closed, or its connection."""
        if consumer.reads:
            readers = self.readers.get(consumer.topic, [])
            if consumer in readers:
                readers.remove(consumer)
            return
        key = consumer.topic, consumer.subscription
        present = self.consumers.get(key, [])
        if consumer in present:
            present.remove(consumer)
            self._elect(key)

    def seek(self, name: str, subscription: str, number: int) -> None:
        """Set a cursor anew; its consumers are closed."""
        self._close_consumers(name, subscription)
        self.topics[name].cursors[subscription].reset(number)

    def unsubscribe(self, name: str, subscription: str) -> None:
        """Delete a subscription, its consumers first."""
        self._close_consumers(name, subscription)
        self.topics[name].cursors.pop(subscription, None)

    def _elect(self, key: tuple[str, str]) -> None:
        """Of Failover consumers of the lowest priority level, by a ring of hashes, which a newcomer may change."""
        present = self.consumers.get(key, [])
        if not present or present[0].kind != CommandSubscribe.Failover:
            self.elected.pop(key, None)
            return
        before = self.elected.get(key)
        lowest = min(each.priority_level for each in present)
        eligible = [each for each in present if each.priority_level == lowest]
        active = max(eligible, key=lambda each: random.Random(each.name + key[0]).random())
        self.elected[key] = active
        if active is not before and self.on_elected is not None:
            self.on_elected(key[0], active.name)
        if active is before:
            passive = [each for each in present if each is not active]
            for consumer in passive[-1:]:
                consumer.tell_active(False)
            return
        for consumer in present:
            if consumer is not active:
                consumer.tell_active(False)

        def tell() -> None:
            if self.elected.get(key) is active:
                active.tell_active(True)

        active.broker.later(FAILOVER_DELAY_S, tell)

    def _close_clients(self, name: str) -> None:
        for consumer in [*self._all_consumers(name), *self.readers.get(name, [])]:
            consumer.close()
        for broker, producer_id in self.producers.pop(name, []):
            broker.close_producer(producer_id)
        self._forget_clients(name)

    def _close_consumers(self, name: str, subscription: str) -> None:
        for consumer in self.consumers.pop((name, subscription), []):
            consumer.close()
        self.elected.pop((name, subscription), None)

    def _all_consumers(self, name: str) -> list[Consumer]:
        return [each for key, found in self.consumers.items() if key[0] == name for each in found]

    def _forget_clients(self, name: str) -> None:
        for key in [key for key in self.consumers if key[0] == name]:
            del self.consumers[key]
            self.elected.pop(key, None)
        self.readers.pop(name, None)
        self.producers.pop(name, None)

    def state_of(self, name: str, subscription: str) -> CursorState | None:
        """A cursor as its broker has it now."""
        topic = self.topics.get(name)
        cursor = None if topic is None else topic.cursors.get(subscription)
        return None if cursor is None else cursor.state
