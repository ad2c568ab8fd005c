"""What all tests share: a real Pulsar, topic names, and the rules that asynchronous tests are held to."""

import asyncio
import os
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings

from bridge.embedded import EmbeddedError, EmbeddedPulsar, ensure_distribution
from tests.cluster import (
    PulsarCluster,
    SharedClusters,
    Started,
    docker_wanted,
    given_cluster,
    start_docker,
    start_embedded,
)

BROKER_TESTS = Path(__file__).parent / "broker"
BROKER_FIXTURES = {"pulsar", "make_pulsar", "private_pulsar", "two_brokers"}
# Code that may run on an event loop: a blocking call made below it fails the test.
NEVER_BLOCKING = ["bridge", "tracker"]

# Machines are shared: how long something takes says nothing of the code.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")

# Dozens of brokers, jobs and clients run for less than a minute each: the slow compiler would take half of their time.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
# Of these the last word is needed, after Pulsar's own: a collector that works beside the rest takes a fifth of a start.
os.environ.setdefault("_JAVA_OPTIONS", "-XX:-UseZGC -XX:+UseSerialGC -XX:-AlwaysPreTouch")

PulsarFactory = Callable[..., EmbeddedPulsar]
ClusterFactory = Callable[[str, Callable[[], Started]], PulsarCluster]
_shared = pytest.StashKey[SharedClusters]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(BROKER_TESTS) or BROKER_FIXTURES & _fixtures(item):
            item.add_marker(pytest.mark.broker)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetches Pulsar before the first test, whose time limit a slow download must not use up."""
    needed = set().union(*(_fixtures(item) for item in session.items)) & BROKER_FIXTURES
    if given_cluster() or docker_wanted():
        needed.discard("pulsar")
    if not needed or session.config.option.collectonly:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            ensure_distribution()
    except EmbeddedError:
        pass  # the tests that need it fail with the message; the others can run


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    # Not in the fixture: waiting there for slower workers would count against the last test's time limit.
    if shared := session.config.stash.get(_shared, None):
        shared.leave()


@pytest.fixture(scope="session")
def shared_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ClusterFactory:
    """Joins the cluster of a name that all parallel workers of the test run share, started if need be."""
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent  # common to all workers of this run
    shared = request.config.stash[_shared] = SharedClusters()

    def join(name: str, start: Callable[[], Started]) -> PulsarCluster:
        try:
            return shared.join(folder, name, start)
        except EmbeddedError as error:
            pytest.fail(str(error), pytrace=False)

    return join


@pytest.fixture(scope="session")
def pulsar(request: pytest.FixtureRequest) -> PulsarCluster:
    """One cluster for the whole test run, parallel workers included; use names of your own in it (see `topic`)."""
    if cluster := given_cluster():
        return cluster
    join: ClusterFactory = request.getfixturevalue("shared_cluster")
    return join("pulsar", start_docker if docker_wanted() else start_embedded)


@pytest.fixture
def make_pulsar() -> Iterator[PulsarFactory]:
    """Starts brokers for this test alone, which it may kill; takes the arguments of EmbeddedPulsar."""
    started: list[EmbeddedPulsar] = []

    def make(config: Mapping[str, str] | None = None, **arguments: Any) -> EmbeddedPulsar:
        broker = EmbeddedPulsar(config=config, progress=False, **arguments)
        started.append(broker)
        try:
            broker.start()
        except EmbeddedError as error:
            pytest.fail(str(error), pytrace=False)
        return broker

    yield make
    for broker in started:
        broker.stop()


@pytest.fixture
def private_pulsar(request: pytest.FixtureRequest, make_pulsar: PulsarFactory) -> EmbeddedPulsar:
    """A broker for this test alone; broker settings by `parametrize("private_pulsar", [{...}], indirect=True)`."""
    return make_pulsar(getattr(request, "param", None))


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name nobody else uses."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", request.node.name).strip("-")[:80]
    return f"persistent://public/default/{name}-{uuid.uuid4().hex[:10]}"


@pytest.fixture(autouse=True)
def _rules_for_async_tests(request: pytest.FixtureRequest) -> Iterator[None]:
    """Asynchronous tests leave no task behind and never block the event loop."""
    if not pytest_asyncio.is_async_test(request.node):
        yield
        return
    # Requested first, so checked last: after the fixtures of the test have been closed.
    request.getfixturevalue("_no_task_left")
    with blockbuster_ctx(scanned_modules=NEVER_BLOCKING):
        yield


@pytest_asyncio.fixture
async def _no_task_left() -> AsyncIterator[None]:
    yield
    for _ in range(3):  # tasks cancelled just now get to see it
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        listed = "\n".join(f"  {task!r}" for task in left)
        pytest.fail(f"{len(left)} asyncio tasks left behind by the test:\n{listed}", pytrace=False)


def _fixtures(item: pytest.Item) -> set[str]:
    return set(getattr(item, "fixturenames", ()))
