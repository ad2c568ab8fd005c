"""The faults, one after the other, and which a seed gives."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from tests.bridge_process import now_ms
from tests.fault_run.history import Move
from tests.fault_run.stage import Node, Stage, call, told
from tests.fault_run.wire import Way

PAUSES_S = (1.0, 5.0)
FROZEN_S = (1.0, 15.0)
GHOSTS_S = 2.0
"""So long after a freeze those who came meanwhile stay."""
BROKER_FROZEN_S = (1.0, 5.0)
CUT_S = (0.0, 4.0)
HALF_CUT_S = (1.0, 8.0)
DISK_FULL_S = (3.0, 8.0)
CLOCK_STEP_MS = 3_000
CLOCK_STEPPED_S = (2.0, 6.0)
DOWN_S = (0.0, 2.0)
SOUGHT_MS = 90_000
"""A machine that is too slow for the load is behind; to give it again all that since would put it further behind."""


class Fault(NamedTuple):
    """One of a run: `seed` is of what is drawn when it happens; `pause_s` comes before."""

    kind: str
    seed: int
    pause_s: float


def drawn(seed: int, count: int, kinds: tuple[str, ...] = ()) -> list[Fault]:
    """The faults of a seed: every kind about as often, in any order."""
    chance = random.Random(seed)
    names = list(kinds or FAULTS)
    bag: list[str] = []
    faults = []
    for _ in range(count):
        if not bag:
            bag = list(names)
            chance.shuffle(bag)
        faults.append(Fault(bag.pop(), chance.randrange(1 << 30), chance.uniform(*PAUSES_S)))
    return faults


# -- processes


def kill_owner(stage: Stage, chance: random.Random) -> str:
    node = stage.owner(chance)
    return _killed(stage, [node], chance)


def kill_other(stage: Stage, chance: random.Random) -> str:
    owner = stage.owner(chance)
    return _killed(stage, [node for node in stage.nodes if node is not owner], chance)


def kill_both_bridges(stage: Stage, chance: random.Random) -> str:
    return _killed(stage, stage.nodes, chance)


def _killed(stage: Stage, nodes: list[Node], chance: random.Random) -> str:
    names = ", ".join(node.name for node in nodes)
    stage.history.moment(f"kill {names}")
    for node in nodes:
        node.bridge.kill()
    stage.history.moment(f"killed {names}")
    time.sleep(chance.uniform(*DOWN_S))
    stage.start_bridges()
    stage.history.moment(f"started {names}")
    return names


def kill_broker(stage: Stage, chance: random.Random) -> str:
    with stage.history.span("broker killed"):
        _kill_broker(stage)
        time.sleep(chance.uniform(*DOWN_S))
        stage.broker.start()
        stage.start_bridges()
    return "broker"


def kill_broker_and_bridge(stage: Stage, chance: random.Random) -> str:
    """In a random order, with nothing between them."""
    nodes = stage.nodes if chance.random() < 0.5 else [stage.owner(chance)]
    with stage.history.span("broker and bridges killed"):
        works: list[Callable[[], None]] = [lambda: _kill_broker(stage), *[node.bridge.kill for node in nodes]]
        chance.shuffle(works)
        for work in works:
            work()
        time.sleep(chance.uniform(*DOWN_S))
        stage.broker.start()
        stage.start_bridges()
    return "broker and " + ", ".join(node.name for node in nodes)


def _kill_broker(stage: Stage) -> None:
    stage.broker.kill()
    stage.history.crashes.append(time.monotonic())


def freeze_bridge(stage: Stage, chance: random.Random) -> str:
    """Its consumers stay with it, but for those who lose their connection; others come to the bridge that succeeds it.

    So what the next owner has delivered was acked when the former one goes on, which does not know of it.
    """
    node, seconds, with_cut = stage.owner(chance), chance.uniform(*FROZEN_S), chance.random() < 0.5
    topics, until = node.owned(), time.monotonic() + seconds
    others = [each for each in stage.nodes if each is not node]
    stage.history.moment(f"freeze {node.name}")
    with contextlib.ExitStack() as ends:
        node.freeze()
        ends.callback(node.thaw)
        if with_cut:
            node.from_clients.refuse(True)
            node.from_clients.cut(0.5, chance.randrange(1 << 30))
        succeeded = ends.enter_context(stage.guests(others[0], topics, until))
        time.sleep(max(until - time.monotonic(), 0.0))
        stage.history.moment(f"thaw {node.name}")
        node.thaw()
        node.from_clients.heal()
        time.sleep(GHOSTS_S if succeeded else 0.0)
        stage.history.moment("guests leave")
    cut = ", half of its clients cut" if with_cut else ""
    return f"{node.name} {seconds:.1f} s{cut}{', succeeded meanwhile' if succeeded else ''}"


def freeze_broker(stage: Stage, chance: random.Random) -> str:
    seconds, pid = chance.uniform(*BROKER_FROZEN_S), stage.broker.pid
    assert pid is not None
    with stage.history.span("broker frozen"):
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)
    return f"{seconds:.1f} s"


# -- networks


def cut_clients(stage: Stage, chance: random.Random) -> str:
    node = chance.choice(stage.nodes)
    share, seconds = chance.choice([0.5, 1.0]), chance.uniform(*CUT_S)
    with stage.history.span("clients cut"):
        node.from_clients.refuse(True)
        node.from_clients.cut(share, chance.randrange(1 << 30))
        time.sleep(seconds)
        node.from_clients.heal()
    return f"{node.name} {share:.0%} for {seconds:.1f} s"


def cut_broker(stage: Stage, chance: random.Random) -> str:
    node = stage.owner(chance)
    share, seconds = chance.choice([0.3, 1.0]), chance.uniform(*CUT_S)
    with stage.history.span("broker cut"):
        node.to_broker.refuse(seconds > 1.0)
        node.to_broker.cut(share, chance.randrange(1 << 30))
        time.sleep(seconds)
        node.to_broker.heal()
    return f"{node.name} {share:.0%} for {seconds:.1f} s"


def half_cut_clients(stage: Stage, chance: random.Random) -> str:
    node = chance.choice(stage.nodes)
    return _half_cut(stage, node, 1, chance)


def half_cut_broker(stage: Stage, chance: random.Random) -> str:
    return _half_cut(stage, stage.owner(chance), 0, chance)


def _half_cut(stage: Stage, node: Node, number: int, chance: random.Random) -> str:
    wire, seconds = node.wires[number], chance.uniform(*HALF_CUT_S)
    way: Way = "there" if chance.random() < 0.5 else "back"
    swallows = chance.random() < 0.5
    with stage.history.span("half cut"):
        (wire.swallow if swallows else wire.hold)(way)
        time.sleep(seconds)
        wire.heal()
    return f"{node.name} {way} {'swallowed' if swallows else 'held'} for {seconds:.1f} s"


# -- topics, disks, clocks


def unload(stage: Stage, chance: random.Random) -> str:
    account = chance.choice(stage.accounts)
    with stage.history.span("unload"):
        error = call(stage, "PUT", account.topic, "unload")
    return f"{stage.accounts.index(account)} {error or ''}"


def seek(stage: Stage, chance: random.Random) -> str:
    """To a time before which everything is acked: what a seek passes over is gone, with or without a bridge."""
    number = chance.randrange(len(stage.accounts))
    account, by_client = stage.accounts[number], chance.random() < 0.5
    to_ms = account.oldest_unacked_ms(now_ms()) - 3_000 - chance.randrange(10_000)
    if to_ms < now_ms() - SOUGHT_MS:
        return f"{number}: an unload instead, it is {(now_ms() - to_ms) / 1000:.0f} s behind; {unload(stage, chance)}"
    began = time.monotonic()
    if by_client:
        consumers = [each.consumer for each in stage.subscribers if each.account is account]
        error = told(lambda: chance.choice(consumers).seek(to_ms))
    else:
        error = call(stage, "POST", account.topic, f"subscription/s/resetcursor/{to_ms}")
    stage.history.moves.append(Move(account.topic, began, time.monotonic(), error is None, to_ms))
    how = "by a consumer" if by_client else "by an operator"
    return f"{number} {how}, {(now_ms() - to_ms) / 1000:.1f} s back {error or ''}"


def disk_full(stage: Stage, chance: random.Random) -> str:
    """The log of the bridge is on that disk too, and has room."""
    node, seconds = stage.owner(chance), chance.uniform(*DISK_FULL_S)
    logs = [file.stat().st_size for file in node.bridge.data_dir.glob("*.log")]
    before = node.bridge.log().count("nothing can be stored")
    stage.history.moment("disk full")
    node.limit_files(max([*logs, node.bridge.log_file.stat().st_size + 20_000]) + 10_000)
    try:
        time.sleep(seconds)
    finally:
        node.limit_files(None)
    noticed = node.bridge.log().count("nothing can be stored") > before
    stage.history.moment("disk has room")
    return f"{node.name} {seconds:.1f} s{', noticed' if noticed else ''}"


def step_clock(stage: Stage, chance: random.Random) -> str:
    node, seconds = stage.owner(chance), chance.uniform(*CLOCK_STEPPED_S)
    step_ms = chance.choice([-1, 1]) * chance.randrange(100, CLOCK_STEP_MS)
    assert node.bridge.clock is not None
    began = time.monotonic()
    # Open while it is so, for what comes is held against it.
    stage.history.clocks.append((began, float("inf"), step_ms))
    stage.history.moment("clock stepped")
    node.bridge.clock.offset_ms = step_ms
    time.sleep(seconds)
    node.bridge.clock.offset_ms = 0
    stage.history.clocks[-1] = (began, time.monotonic(), step_ms)
    stage.history.moment("clock set right")
    return f"{node.name} {step_ms:+} ms for {seconds:.1f} s"


FAULTS: dict[str, Callable[[Stage, random.Random], str]] = {
    "kill the owner": kill_owner,
    "kill the other bridge": kill_other,
    "kill both bridges": kill_both_bridges,
    "kill the broker": kill_broker,
    "kill broker and bridges": kill_broker_and_bridge,
    "freeze a bridge": freeze_bridge,
    "freeze the broker": freeze_broker,
    "cut clients": cut_clients,
    "cut the broker": cut_broker,
    "half-cut clients": half_cut_clients,
    "half-cut the broker": half_cut_broker,
    "unload": unload,
    "seek": seek,
    "disk full": disk_full,
    "step the clock": step_clock,
}
