"""The bridge in front of the real broker: one for most tests, others to kill or to look into."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bridge.app import Bridge
from bridge.config import Settings
from bridge.embedded import EmbeddedError, EmbeddedPulsar
from tests.bridge_process import BridgeProcess, Broker
from tests.changed_limits import changed
from tests.clients import Clients
from tests.cluster import PulsarCluster, start_with_options
from tests.conftest import ClusterFactory
from tests.java_tools import Tools
from tests.raw_client import open_clients
from tests.secured import set_up_roles, start_secured
from tests.two_brokers import TwoBrokers

BridgeFactory = Callable[..., BridgeProcess]
InProcessFactory = Callable[..., Awaitable[Bridge]]


@pytest.fixture(scope="session")
def bridge(pulsar: PulsarCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeProcess]:
    """A bridge for all tests of this process; do not stop it, use topics of your own."""
    process = BridgeProcess(pulsar, tmp_path_factory.mktemp("bridge")).start()
    yield process
    process.stop()


@pytest.fixture(scope="session")
def secured(shared_cluster: ClusterFactory) -> PulsarCluster:
    """A broker with authentication and authorization for the whole test run, with a tenant for each of its workers."""
    broker = shared_cluster("secured", start_secured)
    set_up_roles(broker)
    return broker


@pytest.fixture(scope="session")
def configured_broker(shared_cluster: ClusterFactory) -> PulsarCluster:
    """A broker for the whole test run, set up as `OPTIONS` says."""
    return shared_cluster("configured", start_with_options)


@pytest.fixture(scope="module")
def two_brokers() -> Iterator[TwoBrokers]:
    """A cluster of two brokers; it takes half a minute, and a gigabyte or more until the end of the module."""
    try:
        with TwoBrokers() as cluster:
            yield cluster
    except EmbeddedError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="module")
def configured_bridge(
    configured_broker: PulsarCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BridgeProcess]:
    """A bridge in front of it, for all tests of the module."""
    process = BridgeProcess(configured_broker, tmp_path_factory.mktemp("bridge")).start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def mortal_pulsar() -> Iterator[EmbeddedPulsar]:
    """A broker that tests of this module may kill, if they start it again; use topics of your own."""
    try:
        with EmbeddedPulsar(progress=False) as broker:
            yield broker
    except EmbeddedError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def private_bridge(pulsar: PulsarCluster, tmp_path: Path) -> Iterator[BridgeFactory]:
    """Starts bridges for this test alone: `private_bridge(broker=…, limits={…}, **settings)`."""
    started: list[BridgeProcess] = []

    def make(
        broker: Broker | None = None, limits: dict[str, Any] | None = None, *, ready: bool = True, **settings: Any
    ) -> BridgeProcess:
        process = BridgeProcess(broker or pulsar, tmp_path / f"bridge-{len(started)}", limits, **settings)
        started.append(process)
        return process.start(ready=ready)

    yield make
    for process in started:
        process.stop()


@pytest_asyncio.fixture
async def bridge_here(pulsar: PulsarCluster, tmp_path: Path) -> AsyncIterator[InProcessFactory]:
    """Starts bridges on the test's own event loop, to look inside, as `private_bridge` does."""
    started: list[Bridge] = []

    async def make(broker: Broker = pulsar, limits: dict[str, Any] | None = None, **settings: Any) -> Bridge:
        values: dict[str, Any] = {
            "broker_service_url": broker.service_url,
            "broker_web_url": broker.web_url,
            "data_dir": tmp_path / f"data-{len(started)}",
            "host": "127.0.0.1",
            "port": 0,
            "advertised_address": "127.0.0.1",
            "web_port": 0,
            "members_topic": "off",  # many tests share a broker
        }
        here = Bridge(Settings(**(values | settings)), changed(**(limits or {})))
        await here.start()
        started.append(here)
        return here

    yield make
    for here in started:
        await here.stop()


@pytest.fixture(autouse=True)
def _raw_clients_of_async_tests(request: pytest.FixtureRequest) -> None:
    if pytest_asyncio.is_async_test(request.node):
        request.getfixturevalue("_no_raw_client_left")


@pytest_asyncio.fixture
async def _no_raw_client_left() -> AsyncIterator[None]:
    yield
    for client in list(open_clients):
        await client.close()


@pytest.fixture
def clients() -> Iterator[Clients]:
    """Makes official clients, closed when the test ends."""
    made = Clients()
    yield made
    made.close()


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Tools]:
    """Pulsar's own tools; what still runs at the end is killed."""
    made = Tools(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def client(bridge: BridgeProcess, clients: Clients) -> Any:
    """An official client of the bridge."""
    return clients.connect(bridge.service_url)


@pytest.fixture
def direct(pulsar: PulsarCluster, clients: Clients) -> Any:
    """An official client of the broker itself."""
    return clients.connect(pulsar.service_url)
