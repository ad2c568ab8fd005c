"""Clients that lie, in virtual time: `python -m tests.simulation.fuzz --frames 1000000`.

Neighbours publish and consume on the same bridge meanwhile, and their account has to be right. Nothing that the liars
had stays behind, nothing fails that nobody thought of, and they are sent no message of a topic that is not for them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import os
import random
import sys
import time
from typing import Any, NamedTuple, cast

from bridge.gateway.session import ClientSession
from bridge.protocol.errors import ProtocolError
from bridge.protocol.frames import FrameDecoder, encode_frame
from bridge.protocol.pulsar_pb2 import BaseCommand
from tests.simulation.cluster import PORT
from tests.simulation.liar import OWN_TOPIC, Liar, connect_command
from tests.simulation.messages import Broken
from tests.simulation.network import End
from tests.simulation.scenario import told_to
from tests.simulation.world import TOPIC, World

ROLE = "liar"
FRAMES_A_WORLD = 5_000
LIARS = 3
"""At a time."""
SETTLES_S = 200.0


class Fuzzed(NamedTuple):
    """What became of a seed."""

    seed: int
    broken: str | None
    frames: int
    sessions: int
    received: int
    history: list[str]


class LiarWire(asyncio.Protocol):
    """A connection that says what it likes, and looks at what it is told."""

    def __init__(self, world: World) -> None:
        """Not connected yet."""
        self.end: End | None = None
        self.connected = False
        self.received = 0
        self._topics = world.cluster.topics
        self._decoder = FrameDecoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say who it is."""
        self.end = cast(End, transport)

    def data_received(self, data: bytes) -> None:
        """What it is sent is well formed, and nobody else's."""
        try:
            frames = list(self._decoder.feed(data))
        except ProtocolError as error:
            raise Broken(f"a liar was sent what is no frame: {error}") from error
        for frame in frames:
            self.received += 1
            command = frame.command()
            self.connected |= command.type == BaseCommand.CONNECTED
            place = command.message.message_id.ledgerId, command.message.message_id.entryId
            if command.type == BaseCommand.MESSAGE and self._topics[TOPIC].number_of(place) is not None:
                raise Broken(f"a liar got a message of a topic that it may not read: {place}")

    def connection_lost(self, exc: Exception | None) -> None:
        """It was sent away."""
        self.end = None


class Attack:
    """So many frames, over as many connections as it takes."""

    def __init__(self, world: World, frames: int) -> None:
        """Not begun yet."""
        self.left = frames
        self.sessions = self.received = 0
        self._world = world
        self._chance = random.Random(f"{world.seed} attack")
        self._liar = Liar(self._chance, TOPIC)

    async def run(self) -> None:
        """Until no frame is left."""
        while self.left > 0:
            await self._session()

    async def _session(self) -> None:
        chance, loop = self._chance, asyncio.get_running_loop()
        self.sessions += 1
        bridge = chance.choice(self._world.bridges)
        _, wire = await loop.create_connection(lambda: LiarWire(self._world), bridge.host.name, PORT)
        if chance.random() < 0.95:
            self._say(wire, encode_frame(cast(BaseCommand, connect_command(ROLE))))
            for _ in range(100):
                if wire.connected or wire.end is None:
                    break
                await asyncio.sleep(0.01)
        if wire.end is not None and chance.random() < 0.1:
            wire.end.pause_reading()
        for _ in range(chance.choice((3, 30, 100, 300))):
            if wire.end is None or self.left <= 0:
                break
            self.left -= 1
            self._say(wire, self._liar.frame())
            if chance.random() < 0.5:
                await asyncio.sleep(chance.choice((0.0, 0.001, 0.01, 0.01, 0.5)))
        self._leave(wire)
        self.received += wire.received

    def _say(self, wire: LiarWire, raw: bytes) -> None:
        if wire.end is not None:
            wire.end.write(raw)

    def _leave(self, wire: LiarWire) -> None:
        if wire.end is None:
            return
        if self._chance.random() < 0.5:
            wire.end.close()
        else:
            wire.end.abort()


def attack(seed: int, frames: int = FRAMES_A_WORLD) -> Fuzzed:
    """Run a seed."""
    world = World(seed, bridges=1 + seed % 2, brokers=2)
    world.cluster.allowed[ROLE] = {OWN_TOPIC}
    attacks = [Attack(world, frames // LIARS) for _ in range(LIARS)]
    broken: str | None = None
    with told_to(world):
        try:
            world.run(_attacked(world, attacks))
        except Broken as error:
            broken = str(error)
            world.tell(f"BROKEN {error}")
    told = sum(each.sessions for each in attacks), sum(each.received for each in attacks)
    return Fuzzed(seed, broken, sum(frames // LIARS - each.left for each in attacks), *told, world.history)


async def _attacked(world: World, attacks: list[Attack]) -> None:
    world.start()
    consuming = world.client(world.consumers[0].run())
    await asyncio.sleep(15)
    await world.client(world.producer.publish(None))
    neighbours = world.client(_publish(world))
    before, in_memory = _left(world), _in_memory()
    running = [world.client(each.run()) for each in attacks]
    while not all(each.done() for each in running):
        await asyncio.sleep(0.5)
        world.check()
    for each in running:
        each.result()
    neighbours.cancel()
    ends = world.loop.time() + SETTLES_S
    while world.account.owed() or _left(world) != before:
        await asyncio.sleep(0.5)
        world.check()
        if world.loop.time() > ends:
            owed = [each.text for each in world.account.owed()]
            raise Broken(f"liars left, and {SETTLES_S:g} s later {_left(world)}, not {before}, and owed is {owed[:5]}")
    if _in_memory() > in_memory:
        raise Broken(f"{_in_memory()} sessions are in memory, {in_memory} were before the liars came")
    await world.consumers[0].stop()
    await consuming


def _in_memory() -> int:
    gc.collect()
    return sum(isinstance(each, ClientSession) for each in gc.get_objects())


def _left(world: World) -> dict[str, Any]:
    """What clients make a bridge hold: sessions, consumers of the neighbours' and of the liars' subscriptions."""
    cores = [bridge.core for bridge in world.bridges if bridge.core is not None]
    topics = [topic for core in cores for topic in core.topics.all()]
    return {
        "sessions": sum(len(core.gateway._sessions) for core in cores),
        "consumers": sorted(
            f"{name} of {topic.topic}"
            for topic in topics
            for name, subscription in topic.subscriptions.items()
            for _ in subscription.dispatcher.consumers
        ),
    }


async def _publish(world: World) -> None:
    """As others do, now and then delayed."""
    chance = random.Random(f"{world.seed} neighbours")
    while True:
        delay_ms = chance.choice((0, 0, 500, 5_000))
        await world.producer.publish(world.account.now_ms() + delay_ms if delay_ms else None)
        await asyncio.sleep(chance.uniform(0, 1.0))


def main() -> int:
    """Return 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="tests.simulation.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, help="this one alone, with its history")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if given.seed is not None:
        fuzzed = _quietly(given.seed)
        print(*fuzzed.history, sep="\n")
        return fuzzed.broken is not None
    seeds = range(given.first, given.first + -(-given.frames // FRAMES_A_WORLD))
    began, broken, frames, sessions, received = time.monotonic(), 0, 0, 0, 0
    with multiprocessing.Pool(given.processes, maxtasksperchild=10) as pool:
        for fuzzed in pool.imap_unordered(_quietly, seeds):
            frames, sessions = frames + fuzzed.frames, sessions + fuzzed.sessions
            received += fuzzed.received
            if fuzzed.broken is not None:
                broken += 1
                print(f"seed {fuzzed.seed}: {fuzzed.broken}", flush=True)
    took = time.monotonic() - began
    print(
        f"{frames:,} frames of liars in {sessions:,} sessions, who were told {received:,}; {broken} worlds broken; "
        f"{took:.0f} s on {given.processes} processors"
    )
    return int(broken > 0)


def _quietly(seed: int) -> Fuzzed:
    sys.unraisablehook = lambda _: None
    return attack(seed)


if __name__ == "__main__":
    sys.exit(main())
