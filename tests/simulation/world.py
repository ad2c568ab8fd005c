"""A simulated world: brokers, bridges with disks and clocks of their own, a producer, consumers, and an account."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from bridge.broker.pool import BrokerPool
from bridge.config import Settings
from bridge.core import Core, Machine
from bridge.members.membership import Member
from bridge.members.plan import Owned
from bridge.protocol.pulsar_pb2 import CommandSubscribe
from bridge.protocol.sticky_keys import HASHES
from tests.simulation.account import Account
from tests.simulation.admin import SimulatedAdmin
from tests.simulation.clients import Asks, Consumer, Producer
from tests.simulation.cluster import PORT, Cluster, Node
from tests.simulation.disk import SimulatedStore
from tests.simulation.hosts import EPOCH_MS, Host, Process
from tests.simulation.key_account import KeyAccount
from tests.simulation.loop import VirtualLoop
from tests.simulation.messages import Broken
from tests.simulation.network import Network
from tests.simulation.small import SMALL
from tests.simulation.watcher import NEAR_TERM_BYTES, Watcher
from tracker import StoreError

TOPIC = "persistent://public/default/t"
T = TypeVar("T")
BROKERS = "brokers"
"""Stands for any broker that runs."""
_SETTINGS = Settings(
    broker_service_url=f"pulsar://{BROKERS}:{PORT}",
    broker_web_url=f"http://{BROKERS}:8080",
    data_dir=Path("/simulated"),
    rebuild_from_entries=10**9,
    partition_width_ms=30_000,
    near_term_bytes=NEAR_TERM_BYTES,
)


class BridgeNode:
    """A bridge's machine."""

    def __init__(self, host: Host, world: World) -> None:
        """Not started."""
        self.host = host
        self.process: Process | None = None
        self.core: Core | None = None
        self.admin: SimulatedAdmin | None = None
        self.mood = "well"
        self._world = world

    @property
    def alive(self) -> bool:
        """Whether a bridge runs."""
        return self.process is not None and self.process.alive

    @property
    def url(self) -> str:
        """Its service URL."""
        return f"pulsar://{self.host.name}:{PORT}"

    def start(self) -> None:
        """Run a bridge on what is on the disk."""
        if not self.alive:
            self.process = Process(self.host)
            self.process.start(self._serve())

    async def _serve(self) -> None:
        world, chance = self._world, self.host.chance
        store = await self._opened()
        admin = self.admin = SimulatedAdmin(world.cluster, chance)
        admin.mood = self.mood
        pool = BrokerPool(_SETTINGS.broker_service_url, SMALL.connections, None, chance.getrandbits)
        machine = Machine(self.host.now_ms, self.host.now_ns, chance.getrandbits)
        urls = self.url, lambda: f"http://{self.host.name}"
        self.core = Core(_SETTINGS, SMALL, store, admin, pool, urls, machine, ask=self._ask)
        bound: Any = world.network.bind(self.host.name, PORT)
        await self.core.start([bound])
        await asyncio.Event().wait()

    async def _ask(self, member: Member) -> Owned:
        """What another bridge owns, by its REST, which is not simulated."""
        await asyncio.sleep(self.host.chance.uniform(0.001, 0.05))
        asked = next((bridge for bridge in self._world.bridges if bridge.url == member.url), None)
        unheard = {self.host.name, "" if asked is None else asked.host.name} & {*self._world.network.cut_off}
        if asked is None or asked.core is None or unheard:
            raise OSError("nobody answers")
        draining = asked.core.balance is not None and asked.core.balance.draining
        return Owned(await asked.core.topics.owned(), draining)

    async def _opened(self) -> SimulatedStore:
        """A bridge that cannot open its data directory ends, and is started again by whoever watches over it."""
        while True:
            try:
                return SimulatedStore(self.host.disk)
            except StoreError:
                await asyncio.sleep(1)

    def kill(self, power: bool) -> None:
        """At once; with the power goes what was not synced."""
        if self.process is not None:
            self.process.kill()
        self.core = self.process = None
        if power:
            self.host.disk.lose_power(self._world.chance.randint(0, self.host.disk.unsynced))

    async def stop(self) -> None:
        """In order."""
        core, process = self.core, self.process
        if core is None or process is None:
            return
        stopping = process.start(core.stop())
        await asyncio.wait([stopping], timeout=60)
        self.kill(power=False)

    def feel(self, mood: str) -> None:
        """How the admin interface answers it from now on."""
        self.mood = mood
        if self.admin is not None:
            self.admin.mood = mood


class World:
    """Made of a seed: the same seed, the same history."""

    def __init__(self, seed: int, bridges: int = 2, brokers: int = 2, keyed: bool = False) -> None:
        """Nothing runs yet. `keyed`: the subscription is Key_Shared, and has several consumers."""
        self.seed = seed
        self.keyed = keyed
        self.over = False
        """What is thrown away at the end says things as well, which are of no interest."""
        self.chance = random.Random(f"{seed} world")
        self.history: list[str] = []
        self._hosts: list[Host] = []
        self.loop = VirtualLoop(random.Random(f"{seed} loop"))
        self.network = self.loop.network = Network(self.loop, random.Random(f"{seed} network"))
        self.cluster = Cluster([Node(self._host(f"broker-{n}")) for n in range(brokers)], self._chance("cluster"))
        self.bridges = [BridgeNode(self._host(f"bridge-{n}"), self) for n in range(bridges)]
        self.network.aliases[BROKERS] = self._any_broker
        self._clients = self._host("clients")
        self._client_process = Process(self._clients)
        asked = _sharing_keys(self._chance("keys")) if keyed else [Asks()]
        names = [each.consumer for each in asked]
        self.account = Account(self.loop.time, self._clients.now_ms, self._is_stored, names)
        urls = [bridge.url for bridge in self.bridges]
        self.consumers = [Consumer(urls, TOPIC, each, self.account, self._chance(each.consumer)) for each in asked]
        through_bridges = self.chance.random() < 0.5
        at = urls if through_bridges else [f"pulsar://{BROKERS}:{PORT}"]
        self.watcher = Watcher(self, TOPIC)
        if keyed:
            self.account.keys = KeyAccount(self.loop.time, self.watcher.dispatch_at)
        self.producer = Producer(at, TOPIC, self.account, self._chance("producer"))

    def tell(self, what: str) -> None:
        """Write the history."""
        self.history.append(f"{self.loop.time():11.6f} {what}")

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the world until `work` is done. Raises Broken for a promise not kept, or what nobody expected."""
        asyncio.set_event_loop(self.loop)
        try:
            self._run(work)
            self.check()
        finally:
            asyncio.set_event_loop(None)
            self._end()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            self.loop.run_until_complete(work)
        except RuntimeError:
            # A failure stops the loop.
            if not self.loop.failures:
                raise

    def check(self) -> None:
        """Raise what went wrong so far."""
        self.watcher.look()
        if self.account.keys is not None:
            self.account.keys.check()
        for failure in self.loop.failures:
            error = failure.get("exception")
            if isinstance(error, Broken):
                raise error
            if error is not None:
                raise Broken(f"unexpected: {failure['message']}: {error!r}") from error
            raise Broken(f"unexpected: {failure}")

    def start(self) -> None:
        """Everything."""
        for node in self.cluster.nodes:
            self.cluster.start(node)
        for bridge in self.bridges:
            bridge.start()

    def client(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run what a client does."""
        return self._client_process.start(work)

    def _is_stored(self, place: tuple[int, int]) -> bool:
        topic = self.cluster.topics.get(TOPIC)
        return topic is not None and topic.number_of(place) is not None

    def _host(self, name: str) -> Host:
        host = Host(name, self.loop.time, self._chance(name))
        self._hosts.append(host)
        return host

    def _chance(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def _any_broker(self) -> str:
        running = [node for node in self.cluster.nodes if node.alive]
        return self.chance.choice(running or self.cluster.nodes).host.name

    def _end(self) -> None:
        """Throw all away: what waits will wait for ever."""
        self.over = True
        self.loop.set_exception_handler(lambda *_: None)
        for host in self._hosts:
            for process in host.processes:
                process.bury()
        self.loop.close()


def _sharing_keys(chance: random.Random) -> list[Asks]:
    """Two or three consumers; the broker splits the hashes among them, or each names its range."""
    names = [f"consumer-{number}" for number in range(chance.choice((2, 3)))]
    if chance.random() < 0.7:
        return [Asks(consumer=name, kind=CommandSubscribe.Key_Shared) for name in names]
    width = -(-HASHES // len(names))
    return [
        Asks(consumer=name, kind=CommandSubscribe.Key_Shared, hashes=(first, min(first + width, HASHES) - 1))
        for first, name in zip(range(0, HASHES, width), names, strict=True)
    ]


def true_ms(at_s: float) -> int:
    """Epoch ms of a moment of the world."""
    return EPOCH_MS + round(at_s * 1000)
