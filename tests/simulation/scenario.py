"""One life of a world: it begins, is used, suffers its faults, is left in peace, and everything owed has to come."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import structlog

from bridge.dispatch.tracked_subscription import TrackedSubscription
from spark_jobs.stages.garbage import no_collections
from tests.simulation.faults import Fault, inflict, plan
from tests.simulation.hosts import process_of
from tests.simulation.messages import Broken
from tests.simulation.world import TOPIC, World
from tracker import TopicIndex

BEGIN_S = 15.0
"""By then brokers have stored what bridges put into their cursors first."""
SETTLES_S = 240.0
"""Longer than it takes to notice that a connection is dead, three keep-alive intervals, and to be elected."""
PRESENT_S = 100.0
"""By then a bridge knows its consumer, has read the cursor, and has noticed that former connections are dead."""
PROMPT_MS = 1_500
KEYS = ("a", "b", "c", "d", "e", "f", "g")


class Size(NamedTuple):
    """How long a life lasts, and what happens in it."""

    seconds: float = 600.0
    faults: int = 24
    messages: int = 400
    bridges: tuple[int, ...] = (2, 2, 3)
    """One of these numbers."""
    kind: str | None = None
    """Of the subscription, `Shared` or `Key_Shared`; None: as the seed says, one in three shares keys."""


WHOLE = Size()


class Outcome(NamedTuple):
    """What became of a seed; `broken` is None when all promises were kept."""

    seed: int
    faults: list[Fault]
    broken: str | None
    history: list[str]
    messages: int
    redelivered: int


def live(seed: int, size: Size = WHOLE, faults: list[Fault] | None = None) -> Outcome:
    """Run a seed, with its own faults or others."""
    chance = random.Random(f"{seed} scenario")
    keyed = random.Random(f"{seed} kind").random() < 1 / 3 if size.kind is None else size.kind == "Key_Shared"
    world = World(seed, bridges=chance.choice(size.bridges), brokers=2, keyed=keyed)
    if faults is None:
        faults = plan(random.Random(f"{seed} faults"), BEGIN_S, BEGIN_S + size.seconds, size.faults)
    broken: str | None = None
    # Finalizers of what is in cycles would run at moments that no seed decides.
    with told_to(world), no_collections():
        try:
            world.run(_life(world, size, faults))
        except Broken as error:
            broken = str(error)
            world.tell(f"BROKEN {error}")
        gc.collect()
    world.tell(f"digest of all that was sent: {world.network.digest.hexdigest()}")
    account = world.account
    return Outcome(seed, faults, broken, world.history, len(account.messages), account.redelivered)


async def _life(world: World, size: Size, faults: list[Fault]) -> None:
    world.start()
    consuming = [world.client(consumer.run()) for consumer in world.consumers]
    await asyncio.sleep(BEGIN_S)
    publishing = world.client(_publish(world, size))
    watching = asyncio.ensure_future(_watch(world))
    counting = asyncio.ensure_future(_keep_books(world))
    coming = asyncio.ensure_future(_come_and_go(world))
    await inflict(world, faults)
    coming.cancel()
    world.tell("PEACE")
    _heal(world)
    await _within(world, publishing.done, "everything is published", world.loop.time() + SETTLES_S + size.seconds)
    await _within(world, lambda: not world.account.owed(), "what is owed comes")
    await _within(world, lambda: _is_settled(world), "one bridge dispatches to the consumer")
    # A reader that the broker has forgotten is noticed when there is something to read.
    await world.client(world.producer.publish(None))
    await _within(world, lambda: not world.account.owed(), "what is published in peace comes")
    await _probe(world)
    await _within(world, lambda: _left_at_the_broker(world) == 0, "the broker has every ack")
    watching.cancel()
    counting.cancel()
    _close_ledger(world)
    await _close_books(world)
    for consumer in world.consumers:
        await consumer.stop()
    await _within(world, lambda: all(each.done() for each in consuming), "the consumers have left")


async def _come_and_go(world: World) -> None:
    """Where keys are shared they move with the consumers, which have something in hand meanwhile."""
    chance = random.Random(f"{world.seed} comes and goes")
    for consumer in world.consumers if world.keyed else ():
        consumer.usual_pause_s = consumer.pause_s = chance.choice((0.0, 1.0, 5.0))
    while world.keyed:
        await asyncio.sleep(chance.uniform(1, 40))
        chance.choice(world.consumers).leave()


async def _watch(world: World) -> None:
    """All the way through."""
    try:
        while True:
            await asyncio.sleep(0.7)
            world.check()
    except Broken as error:
        world.loop.call_exception_handler({"message": "watched", "exception": error})


def _served(world: World) -> list[tuple[TopicIndex, TrackedSubscription]]:
    """Where the consumer's subscription is dispatched, and from which index."""
    return [
        (topic.index, subscription)
        for bridge in world.bridges
        for topic in ([] if bridge.core is None else bridge.core.topics.all())
        for name, subscription in topic.subscriptions.items()
        if name == "s" and topic.role == "owner" and topic.index is not None and subscription.view is not None
    ]


def _left_at_the_broker(world: World) -> int:
    """How many entries the broker holds as not acked: what it forgot in a crash it is to be told again."""
    topic = world.cluster.topics[TOPIC]
    return topic.end - max(topic.cursors["s"].state.first, topic.trimmed)


def _is_settled(world: World) -> bool:
    return world.account.present_s > PRESENT_S and len(_served(world)) == 1


def _close_ledger(world: World) -> None:
    """There is one owner, and published is what is acked: nothing is pending in its index, or on its way."""
    served = _served(world)
    for index, subscription in served:
        assert subscription.view is not None
        pending, unacked = index.counts.pending(subscription.view), len(subscription.dispatcher.unacked)
        if pending or unacked or subscription.waiting:
            raise Broken(f"{pending} pending, {unacked} in flight, {subscription.waiting} ready, and all is acked")
    if len(served) != 1:
        raise Broken(f"{len(served)} bridges dispatch, in peace")


async def _keep_books(world: World) -> None:
    """All the way through, now and then."""
    chance = random.Random(f"{world.seed} books")
    try:
        while True:
            await asyncio.sleep(chance.uniform(1, 12))
            await _close_books(world, known=False)
    except Broken as error:
        world.loop.call_exception_handler({"message": "counted", "exception": error})


async def _close_books(world: World, *, known: bool = True) -> None:
    """Each entry of the topic is in one place for the subscription, by counters and one by one.

    Unless `known`, it may be that this cannot be said at the moment.
    """
    for bridge in world.bridges:
        for topic in [] if bridge.core is None else bridge.core.topics.all():
            if topic.role != "owner" or topic.tenure is None or "s" not in topic.subscriptions:
                continue
            for positions in (False, True):
                balance = await topic.tenure.books.draw("s", positions=positions)
                if balance.unknown is not None and not known:
                    continue
                if not balance.closes:
                    raise Broken(f"the books of {bridge.host.name} do not close: {balance}")


def _heal(world: World) -> None:
    """All is well again, and runs."""
    world.producer.away = False
    world.network.latency_s = (0.0001, 0.002)
    world.network.cut_off.clear()
    for node in world.cluster.nodes:
        if not node.alive:
            world.cluster.start(node)
    for bridge in world.bridges:
        bridge.host.disk.full = False
        bridge.feel("well")
        bridge.start()
    for consumer in world.consumers:
        consumer.thoughtless = consumer.pause_s = 0.0
        consumer.away = False
        # What it neither acked nor asked for is given to another one, which is what comes back.
        consumer.hang_up()


async def _publish(world: World, size: Size) -> None:
    """Alone and in bursts; at once, soon, later, and long after."""
    chance = random.Random(f"{world.seed} messages")
    left = size.messages
    while left > 0:
        burst = min(left, chance.choice((1, 1, 1, 5, 30)))
        left -= burst
        last_due, key = None, ""
        for _ in range(burst):
            delay_ms = chance.choice((0, 0, 0, 500, 5_000, 40_000, 120_000))
            due = world.account.now_ms() + round(delay_ms * chance.uniform(0.1, 1.0)) if delay_ms else None
            if world.keyed:
                due = due if last_due is None or chance.random() < 0.5 else last_due
                last_due, key = due, chance.choice(KEYS)
            await world.producer.publish(due, 1 if due or chance.random() < 0.8 else chance.choice((2, 10)), key)
        await asyncio.sleep(chance.uniform(0, 2) * burst * size.seconds / size.messages)


async def _within(world: World, done: Any, what: str, ends: float | None = None) -> None:
    ends = world.loop.time() + SETTLES_S if ends is None else ends
    while not done():
        await asyncio.sleep(0.5)
        world.check()
        if world.loop.time() > ends:
            owed = [each.text for each in world.account.owed()]
            raise Broken(f"not within {SETTLES_S:g} s: {what}; owed {len(owed)}: {owed[:5]}")


async def _probe(world: World) -> None:
    """One delayed message on a silent topic comes on time."""
    ahead_ms = max(bridge.host.now_ms() - world.account.now_ms() for bridge in world.bridges)
    behind_ms = max(world.account.now_ms() - bridge.host.now_ms() for bridge in world.bridges)
    due = world.account.now_ms() + max(ahead_ms, 0) + 2_000
    await world.client(world.producer.publish(due))
    message = list(world.account.messages.values())[-1]
    await asyncio.sleep((2_000 + max(ahead_ms, 0) + max(behind_ms, 0) + PROMPT_MS) / 1000)
    world.check()
    if not message.received:
        raise Broken(f"a quiet stall: {message.text} on a silent topic did not come")


@contextmanager
def told_to(world: World) -> Iterator[None]:
    """Logs go to the world's history."""

    def note(logger: object, method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
        if world.over:
            raise structlog.DropEvent
        said = " ".join(f"{key}={value}" for key, value in event.items() if key not in ("event", "topic", "exc_info"))
        error = event.get("exc_info")
        process = process_of(None)
        who = "" if process is None else f"{process.host.name} "
        world.tell(f"{who}{method} {event['event']} {said}" + (f" {error!r}" if error else ""))
        if event["event"].startswith("the index is of another topic"):
            # The broker forgot, within seconds, what the topic was called: nothing that is known of it counts.
            world.account.owner_changed()
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[note], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)
