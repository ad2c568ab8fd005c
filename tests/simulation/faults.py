"""What is done to a world: each fault a name with numbers, so that a plan can be printed, shortened and done again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tests.simulation.clients import Consumer, Producer
from tests.simulation.cluster import Node
from tests.simulation.world import TOPIC, World

EARLIEST = (0, 0)


class Fault(NamedTuple):
    """At a second of the world's time; `number` chooses whom, `for_s` how long it lasts."""

    at_s: float
    kind: str
    number: int
    for_s: float

    def __str__(self) -> str:
        """A line of the history."""
        return f"{self.kind} {self.number} for {self.for_s:g} s"


def plan(chance: random.Random, begin_s: float, end_s: float, count: int) -> list[Fault]:
    """So many faults of any kind, in order."""
    kinds = list(KINDS)
    return sorted(
        Fault(
            round(chance.uniform(begin_s, end_s), 3),
            chance.choice(kinds),
            chance.randrange(1_000),
            round(chance.choice((0.05, 0.5, 2.0, 8.0, 30.0)) * chance.uniform(0.5, 1.5), 3),
        )
        for _ in range(count)
    )


def _consumer(world: World, fault: Fault) -> Consumer:
    return world.consumers[fault.number % len(world.consumers)]


async def inflict(world: World, faults: list[Fault]) -> None:
    """Do them at their times; those that last end by themselves."""
    running = []
    for fault in faults:
        await asyncio.sleep(max(fault.at_s - world.loop.time(), 0))
        world.tell(f"FAULT {fault}")
        running.append(asyncio.ensure_future(KINDS[fault.kind](world, fault)))
        world.check()
    await asyncio.gather(*running)


async def _kill_bridge(world: World, fault: Fault) -> None:
    await _bridge_down(world, fault, power=False)


async def _power_off_bridge(world: World, fault: Fault) -> None:
    await _bridge_down(world, fault, power=True)


async def _bridge_down(world: World, fault: Fault, power: bool) -> None:
    bridge = world.bridges[fault.number % len(world.bridges)]
    with world.account.disturbance():
        bridge.kill(power)
        world.account.owner_changed()
        await asyncio.sleep(fault.for_s)
    bridge.start()


async def _stop_bridge(world: World, fault: Fault) -> None:
    bridge = world.bridges[fault.number % len(world.bridges)]
    with world.account.disturbance():
        await bridge.stop()
    await asyncio.sleep(fault.for_s)
    bridge.start()


async def _lose_disk(world: World, fault: Fault) -> None:
    bridge = world.bridges[fault.number % len(world.bridges)]
    with world.account.disturbance():
        bridge.kill(power=False)
        bridge.host.disk.wipe()
        world.account.owner_changed()
        await asyncio.sleep(fault.for_s)
    bridge.start()


async def _kill_broker(world: World, fault: Fault) -> None:
    nodes = world.cluster.nodes
    await _broker_down(world, nodes[fault.number % len(nodes)], fault.for_s)


async def _broker_down(world: World, node: Node, for_s: float) -> None:
    with world.account.disturbance():
        world.cluster.kill(node)
        await asyncio.sleep(min(for_s, 10.0))
        if not node.alive:
            world.cluster.start(node)


async def _perhaps_at_once_down(world: World, fault: Fault) -> None:
    """A broker that is killed before it has stored all of what it has answered."""
    node = world.cluster.owners.get(TOPIC)
    if fault.number % 3 == 0 and node is not None and node.alive:
        await asyncio.sleep(fault.for_s / 60)
        await _broker_down(world, node, fault.for_s)


async def _unload(world: World, _: Fault) -> None:
    with world.account.disturbance():
        world.cluster.unload(TOPIC)


async def _roll(world: World, _: Fault) -> None:
    world.cluster.roll(TOPIC)


async def _forget_readers(world: World, _: Fault) -> None:
    for reader in world.cluster.readers.get(TOPIC, []):
        reader.forgotten = True


async def _seek(world: World, fault: Fault) -> None:
    began = world.loop.time()
    consumer = _consumer(world, fault)
    if consumer.wire is None:
        return
    world.account.moved(began, False)
    if await world.client(consumer.seek(EARLIEST)):
        world.account.moved(began, True)
    await _perhaps_at_once_down(world, fault)


async def _reset(world: World, fault: Fault) -> None:
    _move(world, lambda: world.cluster.seek(TOPIC, "s", world.cluster.topics[TOPIC].trimmed))
    await _perhaps_at_once_down(world, fault)


async def _make_anew(world: World, _: Fault) -> None:
    _move(world, lambda: world.cluster.unsubscribe(TOPIC, "s"))


async def _delete_topic(world: World, fault: Fault) -> None:
    """By force, while clients are connected; whoever comes back first makes it anew."""
    cluster = world.cluster
    if TOPIC not in cluster.topics or TOPIC in cluster.fenced:
        return
    with world.account.disturbance():
        cluster.fenced.add(TOPIC)
        cluster.delete(TOPIC)
        world.account.deleted()
        await asyncio.sleep(min(fault.for_s / 10, 1.0))
        cluster.fenced.discard(TOPIC)


async def _expire(world: World, fault: Fault) -> None:
    """Once; what is younger than the time to live stays."""
    world.cluster.expire(TOPIC, world.account.now_ms() - (5_000, 30_000, 120_000)[fault.number % 3])


def _move(world: World, work: Callable[[], None]) -> None:
    topic = world.cluster.topics.get(TOPIC)
    if topic is not None and "s" in topic.cursors:
        began = world.loop.time()
        work()
        world.account.moved(began, True)


async def _cut(world: World, fault: Fault) -> None:
    connections = list(world.network.connections)
    if connections:
        with world.account.disturbance():
            connections[fault.number % len(connections)].cut()


async def _silence(world: World, fault: Fault) -> None:
    """A line that swallows one direction, or both, for good."""
    connections = list(world.network.connections)
    if connections:
        connection = connections[fault.number % len(connections)]
        connection.silent[:] = [fault.number % 3 != 0, fault.number % 3 != 1]
        with world.account.disturbance():
            await asyncio.sleep(100)


async def _partition(world: World, fault: Fault) -> None:
    """A host nobody reaches for a while; what was sent meanwhile is lost."""
    hosts = [bridge.host for bridge in world.bridges] + [node.host for node in world.cluster.nodes]
    host = hosts[fault.number % len(hosts)]
    with world.account.disturbance():
        world.network.cut_off[host.name] = None
        await asyncio.sleep(fault.for_s)
        world.network.cut_off.pop(host.name, None)
        # Lost packets are sent again by the systems below, or their connections end.
        for connection in list(world.network.connections):
            if host.name in (connection.ends[0].addresses["sockname"][0], connection.ends[0].addresses["peername"][0]):
                connection.cut()


async def _admin(world: World, fault: Fault) -> None:
    bridge = world.bridges[fault.number % len(world.bridges)]
    with world.account.disturbance():
        bridge.feel(("down", "silent", "slow", "html")[fault.number % 4])
        await asyncio.sleep(fault.for_s)
        bridge.feel("well")


async def _clock_step(world: World, fault: Fault) -> None:
    """Wrong from now on, or until it is set right."""
    host = world.bridges[fault.number % len(world.bridges)].host
    step_ns = round((fault.number % 2 * 2 - 1) * fault.for_s * 1e9)
    host.offset_ns += step_ns
    if fault.number % 3:
        await asyncio.sleep(fault.for_s)
        host.offset_ns -= step_ns


async def _clock_drift(world: World, fault: Fault) -> None:
    world.bridges[fault.number % len(world.bridges)].host.drift_by((fault.number % 21 - 10) / 10_000)


async def _disk_full(world: World, fault: Fault) -> None:
    bridge = world.bridges[fault.number % len(world.bridges)]
    with world.account.disturbance():
        bridge.host.disk.full = True
        await asyncio.sleep(fault.for_s)
        bridge.host.disk.full = False


async def _slow_disk(world: World, fault: Fault) -> None:
    host = world.bridges[fault.number % len(world.bridges)].host
    before, host.calls_s = host.calls_s, (0.05, 1.0)
    await asyncio.sleep(fault.for_s)
    host.calls_s = before


async def _slow_network(world: World, fault: Fault) -> None:
    before, world.network.latency_s = world.network.latency_s, (0.01, 0.3)
    with world.account.disturbance():
        await asyncio.sleep(fault.for_s)
    world.network.latency_s = before


async def _consumer_dies(world: World, fault: Fault) -> None:
    _consumer(world, fault).hang_up()


async def _consumer_vanishes(world: World, fault: Fault) -> None:
    _consumer(world, fault).vanish()


async def _everybody_leaves(world: World, fault: Fault) -> None:
    """Clients of the topic, for long enough that bridges let go of it; where keys are shared often one consumer."""
    clients: list[Consumer | Producer] = [*world.consumers, world.producer]
    if world.keyed and fault.number % 3:
        clients = [_consumer(world, fault)]  # its keys are others' meanwhile
    for client in clients:
        client.away = True
        client.leave()
    await asyncio.sleep(max(fault.for_s, 10.0))
    for client in clients:
        client.away = False


async def _thoughtless(world: World, fault: Fault) -> None:
    consumer = _consumer(world, fault)
    consumer.thoughtless = (fault.number % 9 + 1) / 10
    await asyncio.sleep(fault.for_s)
    consumer.thoughtless = 0.0


async def _take_over(world: World, fault: Fault) -> None:
    """A bridge that is ready takes the topic from its owner, which is well."""
    ready = [bridge.core for bridge in world.bridges if bridge.core is not None and bridge.core.topics.is_ready(TOPIC)]
    if ready:
        ready[fault.number % len(ready)].topics.take_over(TOPIC)


async def _slow_consumer(world: World, fault: Fault) -> None:
    consumer = _consumer(world, fault)
    consumer.pause_s = fault.for_s / 4
    await asyncio.sleep(fault.for_s)
    consumer.pause_s = consumer.usual_pause_s


KINDS: dict[str, Callable[[World, Fault], Awaitable[None]]] = {
    "kill-bridge": _kill_bridge,
    "power-off-bridge": _power_off_bridge,
    "stop-bridge": _stop_bridge,
    "lose-disk": _lose_disk,
    "kill-broker": _kill_broker,
    "unload": _unload,
    "roll": _roll,
    "forget-readers": _forget_readers,
    "seek": _seek,
    "reset": _reset,
    "make-anew": _make_anew,
    "delete-topic": _delete_topic,
    "expire": _expire,
    "cut": _cut,
    "silence": _silence,
    "partition": _partition,
    "admin": _admin,
    "clock-step": _clock_step,
    "clock-drift": _clock_drift,
    "disk-full": _disk_full,
    "slow-disk": _slow_disk,
    "slow-network": _slow_network,
    "consumer-dies": _consumer_dies,
    "consumer-vanishes": _consumer_vanishes,
    "everybody-leaves": _everybody_leaves,
    "thoughtless": _thoughtless,
    "slow-consumer": _slow_consumer,
    "take-over": _take_over,
}
