"""Random orders of seeks, resets, unloads, deletions, and ends of two bridges and their broker.

DELAY_BRIDGE_LONG=1 runs a hundred; DELAY_BRIDGE_SEED begins with another seed.
"""

import contextlib
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.embedded import EmbeddedPulsar
from tests.bridge_process import BridgeProcess
from tests.broker.conftest import BridgeFactory
from tests.clients import backlog, some_topic
from tests.helpers import wait_until
from tests.interleavings import World

LONG = os.environ.get("DELAY_BRIDGE_LONG") == "1"
WORLDS = 5 if LONG else 3
ROUNDS = 20 if LONG else 1
STEPS = 5 if LONG else 3
SEED = int(os.environ.get("DELAY_BRIDGE_SEED", "1"))
BROKER = {
    # As brokers have it by themselves; standalone's own setting is once in ten seconds.
    "managedLedgerDefaultMarkDeleteRateLimit": "1.0",
    # What is sought again has to be there.
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}


class Stage:
    """Two bridges and a broker, and what may happen to them."""

    def __init__(self, broker: EmbeddedPulsar, bridges: list[BridgeProcess]) -> None:
        self.broker = broker
        self.bridges = bridges
        self.worlds: list[World] = []

    def kill_bridge(self, chance: random.Random) -> None:
        with self._all_disturbed():
            chance.choice(self.bridges).kill()
        self._start_bridges(chance)

    def stop_bridge(self, chance: random.Random) -> None:
        with self._all_disturbed():
            chance.choice(self.bridges).stop()
        self._start_bridges(chance)

    def kill_broker(self, chance: random.Random) -> None:
        with self._all_disturbed():
            self.broker.kill()
            for world in self.worlds:
                world.account.crashed.append(time.monotonic())
            time.sleep(chance.random())
            self.broker.start()

    def _start_bridges(self, chance: random.Random) -> None:
        time.sleep(chance.random() * 2)
        for bridge in self.bridges:
            if not bridge.running:
                bridge.start(ready=False)

    def _all_disturbed(self) -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        for world in self.worlds:
            stack.enter_context(world.disturbance())
        return stack

    def step(self, chance: random.Random) -> str:
        """Something happens to the whole stage, or something of its own to each world."""
        whole: list[Callable[[random.Random], None]] = [self.kill_bridge, self.stop_bridge, self.kill_broker]
        if chance.random() < 0.4:
            work = chance.choice(whole)
            work(chance)
            return work.__name__
        done = []
        for world in self.worlds:
            move = chance.choice([world.seek, world.reset, world.make_anew, world.unload])
            move()
            done.append(move.__name__)
        return ",".join(done)


@pytest.mark.timeout(3_600 if LONG else 240)
@pytest.mark.parametrize("private_pulsar", [BROKER], indirect=True, ids=["stored-once-a-second"])
def test_any_order_of_moves_and_ends(
    private_pulsar: EmbeddedPulsar, private_bridge: BridgeFactory, tmp_path: Path
) -> None:
    """Nothing is lost, nothing is early, and what was acked comes again only where a decision says so."""
    bridges = [private_bridge(private_pulsar), private_bridge(private_pulsar)]
    stage = Stage(private_pulsar, bridges)
    failures = []
    for seed in range(SEED, SEED + ROUNDS):
        failures += one_round(stage, seed)
    assert not failures, "\n".join(failures)


def one_round(stage: Stage, seed: int) -> list[str]:
    """Five worlds with the same ends of processes and moves of their own; returns what went wrong."""
    chance = random.Random(seed)
    urls = ",".join(bridge.service_url.removeprefix("pulsar://") for bridge in stage.bridges)
    stage.worlds = [
        World(some_topic(f"interleaved-{seed}"), stage.broker, f"pulsar://{urls}", seed * WORLDS + number)
        for number in range(WORLDS)
    ]
    history: list[str] = []
    try:
        for _ in range(STEPS):
            time.sleep(0.2 + chance.random() * 2)
            history.append(stage.step(chance))
        time.sleep(1)
        for world in stage.worlds:
            world.stop_publishing()
        return _reckon(stage, seed, history)
    finally:
        for world in stage.worlds:
            world.close()


def _reckon(stage: Stage, seed: int, history: list[str]) -> list[str]:
    failures = []
    told = f"seed {seed}: {' | '.join(history)}"
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not any(world.account.owed() for world in stage.worlds), timeout=60, interval=0.2)
    for number, world in enumerate(stage.worlds):
        account = world.account
        owed, again = account.owed(), account.came_again()
        if owed:
            failures.append(f"{told}: world {number} {world.topic} lost {len(owed)}: {sorted(owed, key=int)[:10]}")
            failures.append(
                f"  connected: {world.consumer.is_connected()}, {world.account.last_heard(sorted(owed, key=int))}"
            )
            failures += [f"  {bridge.service_url}: {bridge.topic(world.topic)}" for bridge in stage.bridges]
        if account.early:
            failures.append(f"{told}: world {number} {world.topic} early: {account.early[:10]}")
        if again:
            failures.append(f"{told}: world {number} {world.topic} acked and returned {len(again)}: {_some(again)}")
        if not owed:
            left = _left_at_the_broker(stage.broker, world.topic)
            if left:
                failures.append(f"{told}: world {number} {world.topic} has a backlog of {left} at the broker")
    print(told, failures or "ok", [len(world.account.stored) for world in stage.worlds])
    return failures


def _left_at_the_broker(broker: EmbeddedPulsar, topic: str) -> int:
    with contextlib.suppress(AssertionError):
        wait_until(lambda: backlog(broker, topic) == 0, timeout=20, interval=0.2)
    return backlog(broker, topic)


def _some(again: dict[str, float]) -> list[str]:
    return [f"{text} after {seconds:.1f} s" for text, seconds in list(again.items())[:10]]
