"""The Pulsar cluster the tests talk to: a given one, one in Docker, or one embedded broker for the whole test run."""

import json
import os
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil
from filelock import FileLock

from bridge.embedded import EmbeddedError, EmbeddedPulsar
from bridge.embedded.instance import DEFAULT_MEMORY
from bridge.embedded.ports import free_ports
from tests.helpers import wait_until

SERVICE_URL_VARIABLE = "DELAY_BRIDGE_TEST_SERVICE_URL"
WEB_URL_VARIABLE = "DELAY_BRIDGE_TEST_WEB_URL"
DOCKER_VARIABLE = "DELAY_BRIDGE_TEST_DOCKER"
IMAGE = "apachepulsar/pulsar:4.0.8"
_INTERCEPTORS = "org.apache.pulsar.common.intercept"
OPTIONS = {
    "transactionCoordinatorEnabled": "true",
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "exposingBrokerEntryMetadataToClientEnabled": "true",
    "brokerEntryMetadataInterceptors": f"{_INTERCEPTORS}.AppendIndexMetadataInterceptor,"
    f"{_INTERCEPTORS}.AppendBrokerTimestampMetadataInterceptor",
}
"""Of the broker that is shared by tests of what is off by default."""
_LEAVE_SECONDS = 24 * 3600.0


class PulsarCluster(NamedTuple):
    """Where a cluster is: `pulsar://HOST:PORT` and `http://HOST:PORT`."""

    service_url: str
    web_url: str


Started = tuple[PulsarCluster, Callable[[], None]]  # a cluster and what stops it


def given_cluster() -> PulsarCluster | None:
    """The cluster named in the environment, if one is."""
    service_url, web_url = os.environ.get(SERVICE_URL_VARIABLE), os.environ.get(WEB_URL_VARIABLE)
    return PulsarCluster(service_url, web_url.rstrip("/")) if service_url and web_url else None


def docker_wanted() -> bool:
    return os.environ.get(DOCKER_VARIABLE) == "1"


def start_embedded() -> Started:
    # The one that serves all tests runs long enough for the compiler that `tests.conftest` takes from the others.
    pulsar = EmbeddedPulsar(progress=False, memory=f"{DEFAULT_MEMORY} -XX:TieredStopAtLevel=4")
    pulsar.start()
    return PulsarCluster(pulsar.service_url, pulsar.web_url), pulsar.stop


def start_with_options() -> Started:
    """A broker with what is off by default: transactions, acks within batches, and what it notes of each entry."""
    pulsar = EmbeddedPulsar(config=OPTIONS, progress=False)
    pulsar.start()
    return PulsarCluster(pulsar.service_url, pulsar.web_url), pulsar.stop


def start_docker() -> Started:
    """The official image. Inside and outside ports are the same, or lookups would lead clients nowhere."""
    from docker.errors import DockerException  # type: ignore[import-untyped]
    from testcontainers.core.container import DockerContainer

    broker, web = free_ports(2)
    try:
        container = DockerContainer(IMAGE)
    except DockerException as error:
        raise EmbeddedError(f"{DOCKER_VARIABLE} is set, but no Docker engine answers: {error}") from error
    container = (
        container.with_env("PULSAR_PREFIX_brokerServicePort", str(broker))
        .with_env("PULSAR_PREFIX_webServicePort", str(web))
        .with_env("PULSAR_STANDALONE_USE_ZOOKEEPER", "0")
        .with_bind_ports(broker, broker)
        .with_bind_ports(web, web)
        .with_command(
            'sh -c "bin/apply-config-from-env.py conf/standalone.conf'
            ' && exec bin/pulsar standalone -nfw -nss -a 127.0.0.1"'
        )
    )
    container.start()
    cluster = PulsarCluster(f"pulsar://127.0.0.1:{broker}", f"http://127.0.0.1:{web}")
    try:
        wait_until(lambda: healthy(cluster), f"{IMAGE} healthy", timeout=150, interval=0.25)
    except BaseException:
        container.stop()
        raise
    return cluster, container.stop


def healthy(cluster: PulsarCluster) -> bool:
    """Whether the broker calls itself healthy and has its default namespace."""
    try:
        with urllib.request.urlopen(f"{cluster.web_url}/admin/v2/brokers/health", timeout=5) as answer:
            if answer.read().strip() != b"ok":
                return False
        with urllib.request.urlopen(f"{cluster.web_url}/admin/v2/namespaces/public", timeout=5) as answer:
            return "public/default" in json.load(answer)
    except (OSError, ValueError):
        return False


class SharedCluster:
    """One started cluster of a name for all processes of a test run that have `folder` in common.

    The first process that joins starts it and, when it leaves, waits until the others have left before stopping it.
    """

    def __init__(self, folder: Path, start: Callable[[], Started], name: str = "pulsar") -> None:
        self._lock = FileLock(folder / f"{name}.lock")
        self._state = folder / f"{name}.json"
        self._users = folder / f"{name}-users"
        self._start = start
        self._stop: Callable[[], None] | None = None

    def join(self) -> PulsarCluster:
        """The cluster, started if need be. Raises what starting it raises."""
        with self._lock:
            cluster = self._running()
            if cluster is None:
                cluster, self._stop = self._start()
                self._state.write_text(json.dumps({"owner": os.getpid(), "urls": cluster}))
            self._users.mkdir(exist_ok=True)
            (self._users / str(os.getpid())).touch()
        return cluster

    def leave(self) -> None:
        """Gives the cluster up; stops it if this process started it and once nobody else uses it."""
        self.give_up()
        self.end()

    def give_up(self) -> None:
        """Uses it no more."""
        (self._users / str(os.getpid())).unlink(missing_ok=True)

    def end(self) -> None:
        """Stops it if this process started it and once nobody else uses it."""
        if self._stop is None:
            return
        try:
            wait_until(self._closed, "other test processes left the cluster", timeout=_LEAVE_SECONDS, interval=0.1)
        finally:
            stop, self._stop = self._stop, None
            stop()

    def _running(self) -> PulsarCluster | None:
        try:
            state = json.loads(self._state.read_text())
        except FileNotFoundError:
            return None
        # A crashed owner has taken its cluster with it.
        return PulsarCluster(*state["urls"]) if psutil.pid_exists(state["owner"]) else None

    def _closed(self) -> bool:
        """Takes the cluster off the list when it has no users, so that nobody joins while it stops."""
        with self._lock:
            if any(psutil.pid_exists(int(path.name)) for path in self._users.iterdir()):
                return False
            self._state.unlink(missing_ok=True)
            return True


class SharedClusters:
    """The shared clusters that this process has joined."""

    def __init__(self) -> None:
        self._joined: dict[str, SharedCluster] = {}

    def join(self, folder: Path, name: str, start: Callable[[], Started]) -> PulsarCluster:
        """See `SharedCluster`. Raises what starting it raises."""
        return self._joined.setdefault(name, SharedCluster(folder, start, name)).join()

    def leave(self) -> None:
        """Leaves all of them, whatever becomes of one."""
        joined, self._joined = list(self._joined.values()), {}
        # All are given up before one is waited for: two processes may each have started what the other one uses.
        for each in joined:
            each.give_up()
        with ExitStack() as ends:
            for each in joined:
                ends.callback(each.end)
