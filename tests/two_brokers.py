"""A cluster of two brokers: ZooKeeper, bookies and the brokers as processes of the distribution, on loopback.

Whoever started it may die in any way: each process has a watchdog, which ends it and removes its folder.
"""

import contextlib
import json
import os
import socket
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from bridge.embedded import StartError, ensure_distribution, find_java
from bridge.embedded.child import ChildProcess
from bridge.embedded.instance import HOST, Instance, loopback_interface, override
from bridge.embedded.ports import free_ports
from tests.clients import rest_path, some_topic
from tests.cluster import PulsarCluster, healthy
from tests.helpers import wait_until

COORDINATORS: Final = 4
"""Of transactions."""
_NAME = "two-brokers"
_START_SECONDS = 150.0
# Little memory, little to compile: they live for a minute or two.
_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_CONFIG = {
    "zookeeper": ("PULSAR_ZK_CONF", "zookeeper.conf"),
    "bookie": ("PULSAR_BOOKKEEPER_CONF", "bookkeeper.conf"),
    "broker": ("PULSAR_BROKER_CONF", "broker.conf"),
}
"""By command: the variable that names its settings, and the distribution's own."""


class PulsarProcess:
    """One command of `bin/pulsar`, in a folder of its own that goes with it."""

    def __init__(self, command: str, heap_mb: int, direct_mb: int = 64) -> None:
        """Nothing runs yet."""
        self._command = command
        self._memory = f"-Xmx{heap_mb}m -XX:MaxDirectMemorySize={direct_mb}m"
        self.folder = Path(tempfile.gettempdir()).absolute() / f"{_NAME}-{command}-{uuid.uuid4().hex[:12]}"
        self._instance = Instance(ensure_distribution(progress=False), self.folder)
        self._child: ChildProcess | None = None

    def start(self, settings: Mapping[str, str], arguments: Sequence[str] = ()) -> None:
        """`settings` are put in place of the distribution's."""
        home = self._instance.home
        environment = self._instance.environment(find_java(), os.environ, self._memory)
        environment |= {"PULSAR_GC": _JAVA, "BOOKIE_GC": _JAVA, "BOOKIE_MEM": self._memory}
        variable, template = _CONFIG.get(self._command, ("", ""))
        if variable:
            environment[variable] = str(self.folder / template)
        command = [str(home / "bin" / "pulsar"), self._command, *arguments]
        self._child = ChildProcess(command, environment, self._instance.log, remove=self.folder)
        for name in ("logs", "tmp"):
            (self.folder / name).mkdir(parents=True)
        if variable:
            (self.folder / template).write_text(override((home / "conf" / template).read_text(), settings))
        self._child.start()

    def until(self, ready: Callable[[], bool], what: str) -> None:
        """Wait until it is ready. Raises StartError with its log when it ends before, or takes too long."""
        assert self._child is not None
        deadline = time.monotonic() + _START_SECONDS
        while not ready():
            if not self._child.running() or time.monotonic() > deadline:
                raise StartError(f"{self._command} of two brokers: not {what}", self._instance.log_tail(60))
            time.sleep(0.1)

    def until_done(self) -> None:
        """Wait for the end of a command that ends by itself. Raises StartError when it failed."""
        assert self._child is not None
        if not self._child.wait(_START_SECONDS) or self._child.exit_code != 0:
            raise StartError(f"{self._command} of two brokers failed", self._instance.log_tail(60))

    def close(self) -> None:
        """SIGKILL, and the folder is removed."""
        if self._child is not None:
            self._child.close()
            self._child = None


class TwoBrokers:
    """Running within `with`; `service_url` and `web_url` are the first broker's."""

    def __init__(self, host: str = HOST, bookies: int = 1, write_quorum: int = 1) -> None:
        """`host`: the address of the brokers. Every ledger is spread over all bookies, each entry on `write_quorum`."""
        self._host = host
        self._bookies = bookies
        self._write_quorum = write_quorum
        self.bookies: list[PulsarProcess] = []
        self.brokers: tuple[PulsarCluster, ...] = ()
        self._processes = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._processes.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.close()

    @property
    def service_url(self) -> str:
        return self.brokers[0].service_url

    @property
    def web_url(self) -> str:
        return self.brokers[0].web_url

    # -- topics and their brokers

    def owner(self, topic: str) -> PulsarCluster:
        """The broker of a topic, which gets one if it has none."""

        def looked_up() -> PulsarCluster | None:
            try:
                found = json.loads(_get(f"{self.web_url}/lookup/v2/topic/{rest_path(topic)}"))["brokerUrl"]
            except urllib.error.HTTPError as error:
                error.close()
                if error.code < 500:
                    raise
                return None  # clients look it up too, and brokers that acquire it at once get in each other's way
            return next(broker for broker in self.brokers if broker.service_url == found)

        owner = wait_until(looked_up, f"an owner of {topic}", timeout=30)
        assert owner is not None
        return owner

    def other(self, broker: PulsarCluster) -> PulsarCluster:
        first, second = self.brokers
        return second if broker == first else first

    def topic_on(self, broker: PulsarCluster, prefix: str) -> str:
        """The name of a new topic that `broker` owns."""
        for _ in range(20):
            topic = some_topic(prefix)
            if self.owner(topic) == broker:
                return topic
        self.move(topic, broker)
        return topic

    def move(self, topic: str, to: PulsarCluster) -> None:
        """Unload the topic (its bundle) from its broker such that `to` owns it."""
        namespace = "/".join(topic.split("://")[1].split("/")[:2])
        bundle = _get(f"{self.web_url}/lookup/v2/topic/{rest_path(topic)}/bundle").decode()
        unload = f"/admin/v2/namespaces/{namespace}/{bundle}/unload"

        def moved() -> bool:
            owner = self.owner(topic)
            if owner == to:
                return True
            # The leader chooses who is next: it is told first, and unloads right away if it is the owner itself.
            leader = json.loads(_get(f"{self.web_url}/admin/v2/brokers/leaderBroker"))["serviceUrl"]
            _put(f"{leader}{unload}?destinationBroker={to.web_url.removeprefix('http://')}")
            if leader != owner.web_url:
                _put(owner.web_url + unload)
            return False

        wait_until(moved, f"{topic} on {to.service_url}", timeout=60)

    # -- start

    def _start(self) -> None:
        zookeeper, *ports = free_ports(5 + self._bookies)
        store = f"zk:{HOST}:{zookeeper}"
        self.brokers = tuple(
            PulsarCluster(f"pulsar://{self._host}:{binary}", f"http://{self._host}:{web}")
            for binary, web in zip(ports[:2], ports[2:4], strict=True)
        )
        self._run_zookeeper(zookeeper)
        self._initialize(store)
        self.bookies = [self._run_bookie(store, port) for port in ports[4:]]
        running = [self._run_broker(store, broker) for broker in self.brokers]
        for process, broker in zip(running, self.brokers, strict=True):
            process.until(lambda broker=broker: healthy(broker), "healthy")  # type: ignore[misc]

    def _process(self, command: str, heap_mb: int, direct_mb: int = 64) -> PulsarProcess:
        process = PulsarProcess(command, heap_mb, direct_mb)
        self._processes.callback(process.close)
        return process

    def _run_zookeeper(self, port: int) -> None:
        process = self._process("zookeeper", heap_mb=96)
        settings = {
            "dataDir": str(process.folder / "data"),
            "clientPort": str(port),
            "clientPortAddress": HOST,
            "admin.enableServer": "false",
            "metricsProvider.className": "org.apache.zookeeper.metrics.impl.NullMetricsProvider",
            "forceSync": "no",
        }
        process.start(settings)
        process.until(lambda: _listens(port), "listening")

    def _initialize(self, store: str) -> None:
        first = self.brokers[0]
        process = self._process("initialize-cluster-metadata", heap_mb=128)
        process.start(
            {},
            [
                *("--cluster", _NAME),
                *("--metadata-store", store),
                *("--configuration-metadata-store", store),
                *("--web-service-url", first.web_url),
                *("--broker-service-url", first.service_url),
                *("--initial-num-stream-storage-containers", "0"),
                *("--initial-num-transaction-coordinators", str(COORDINATORS)),
            ],
        )
        process.until_done()
        process.close()

    def _run_bookie(self, store: str, port: int) -> PulsarProcess:
        process = self._process("bookie", heap_mb=128, direct_mb=192)
        settings = {
            "metadataServiceUri": f"metadata-store:{store}",
            "bookiePort": str(port),
            "journalDirectory": str(process.folder / "journal"),
            "ledgerDirectories": str(process.folder / "ledgers"),
            "advertisedAddress": HOST,
            "listeningInterface": loopback_interface(),
            "allowLoopback": "true",
            "autoRecoveryDaemonEnabled": "false",
            "journalSyncData": "false",
            "dbStorage_writeCacheMaxSizeMb": "16",
            "dbStorage_readAheadCacheMaxSizeMb": "16",
            "dbStorage_rocksDB_blockCacheSize": str(8 * 1024 * 1024),
            "statsProviderClass": "org.apache.bookkeeper.stats.NullStatsProvider",
        }
        process.start(settings)
        return process

    def _run_broker(self, store: str, broker: PulsarCluster) -> PulsarProcess:
        process = self._process("broker", heap_mb=256, direct_mb=192)
        settings = {
            "metadataStoreUrl": store,
            "configurationMetadataStoreUrl": store,
            "clusterName": _NAME,
            "brokerServicePort": broker.service_url.rpartition(":")[2],
            "webServicePort": broker.web_url.rpartition(":")[2],
            **self._addresses(broker),
            "managedLedgerDefaultEnsembleSize": str(self._bookies),
            "managedLedgerDefaultWriteQuorum": str(self._write_quorum),
            "managedLedgerDefaultAckQuorum": str(self._write_quorum),
            "transactionCoordinatorEnabled": "true",
            # Topics move when a test says so.
            "loadBalancerSheddingEnabled": "false",
            "loadBalancerAutoBundleSplitEnabled": "false",
        }
        process.start(settings)
        return process

    def _addresses(self, broker: PulsarCluster) -> dict[str, str]:
        return {"bindAddress": self._host, "advertisedAddress": self._host}


class BrokersThatName(TwoBrokers):
    """Clients connect at `outer_urls`, and are told to go to another address; inside brokers name themselves."""

    def __init__(self, host: str, named: str) -> None:
        """`host`: an address of this machine that is none of loopback, for brokers tell clients of such to stay.

        `named`: the service URL that clients are told.
        """
        super().__init__(host)
        self._named = named
        self._outer: dict[PulsarCluster, str] = {}

    @property
    def outer_urls(self) -> list[str]:
        return list(self._outer.values())

    def _addresses(self, broker: PulsarCluster) -> dict[str, str]:
        outer = self._outer[broker] = f"pulsar://{self._host}:{free_ports(1)[0]}"
        return {
            "bindAddress": self._host,
            "bindAddresses": f"outer:{outer}",
            "advertisedListeners": f"inner:{broker.service_url},inner:{broker.web_url},outer:{self._named}",
            "internalListenerName": "inner",
        }


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Whoever asks knows whom."""


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read())


def _put(url: str) -> None:
    """A refusal is no error: whoever asks looks at what came of it."""
    request = urllib.request.Request(url, method="PUT")
    try:
        urllib.request.build_opener(_NoRedirect).open(request, timeout=60).close()
    except urllib.error.HTTPError as error:
        error.close()
