"""The simulated broker answers as the real one: both live the same history, one in virtual time."""

import asyncio
import difflib
import urllib.request

from bridge.broker.admin import AdminClient
from bridge.clock import wall_clock_ms
from bridge.limits import ConnectionLimits
from tests.clients import admin, rest_path
from tests.cluster import PulsarCluster
from tests.raw_client import RawClient, raw_client
from tests.simulation.admin import SimulatedAdmin
from tests.simulation.cluster import PORT
from tests.simulation.history import History
from tests.simulation.world import BROKERS, TOPIC, World


class RealSite:
    """A real broker."""

    def __init__(self, pulsar: PulsarCluster, topic: str) -> None:
        self.topic = topic
        self.admin = AdminClient(pulsar.web_url, ConnectionLimits())
        self._pulsar = pulsar

    async def connect(self) -> RawClient:
        return await raw_client(self._pulsar.service_url)

    def now_ms(self) -> int:
        return wall_clock_ms()

    async def unload(self) -> None:
        await self._call("PUT", "/unload")

    async def expire(self, subscription: str, seconds: int) -> None:
        await self._call("POST", f"/subscription/{subscription}/expireMessages/{seconds}")

    async def delete(self) -> None:
        await self._call("DELETE", "?force=true")

    async def _call(self, method: str, path: str) -> None:
        await asyncio.to_thread(admin, self._pulsar, method, rest_path(self.topic) + path)


class SimulatedSite:
    """A broker of a simulated world."""

    topic = TOPIC

    def __init__(self, world: World) -> None:
        self.admin: AdminClient = SimulatedAdmin(world.cluster, world.chance)
        self._world = world

    async def connect(self) -> RawClient:
        return await raw_client(f"pulsar://{BROKERS}:{PORT}")

    def now_ms(self) -> int:
        return self._world.account.now_ms()

    async def unload(self) -> None:
        self._world.cluster.unload(TOPIC)

    async def expire(self, subscription: str, seconds: int) -> None:
        self._world.cluster.expire(TOPIC, self.now_ms() - seconds * 1000, subscription)

    async def delete(self) -> None:
        self._world.cluster.delete(TOPIC)


def simulated(version: str) -> list[str]:
    """The history in a world of one broker."""
    world, lines = World(1, bridges=0, brokers=1), list[str]()
    world.cluster.version = version

    async def live() -> None:
        lines.extend(await History(SimulatedSite(world)).live())

    async def begin() -> None:
        world.start()
        await world.client(live())

    world.run(begin())
    return lines


def real(pulsar: PulsarCluster, topic: str) -> list[str]:
    """The history at a real broker."""

    async def live() -> list[str]:
        site = RealSite(pulsar, topic)
        try:
            return await History(site).live()
        finally:
            await site.admin.close()

    return asyncio.run(live())


def test_both_answer_alike(pulsar: PulsarCluster, topic: str) -> None:
    with urllib.request.urlopen(f"{pulsar.web_url}/admin/v2/brokers/version", timeout=30) as answer:
        version = answer.read().decode()
    there, here = real(pulsar, topic), simulated(version)
    assert len(there) > 100
    differences = list(difflib.unified_diff(there, here, "real", "simulated", lineterm="", n=3))
    assert not differences, "\n".join(differences)
