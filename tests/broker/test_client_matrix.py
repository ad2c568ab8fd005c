"""The official clients, each at the bare broker and through the bridge: what passes there passes here.

DELAY_BRIDGE_LONG=1 takes all clients and versions, TLS and tokens; otherwise those that are there already, plain.
"""

import os
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from bridge.embedded.ports import free_ports
from tests.authority import Authority
from tests.bridge_process import BridgeProcess
from tests.client_programs import CLIENTS, QUICK, MissingTools, Outcome, Program, Run, Service, build
from tests.clients import admin
from tests.cluster import PulsarCluster
from tests.secured import NAMESPACE, allow, token_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
LONG = os.environ.get("DELAY_BRIDGE_LONG") == "1"
LONG_FORM = pytest.mark.skipif(not LONG, reason="part of the long form")
TYPES = ("Shared", "Key_Shared")
TAKEN_OVER = {"Shared"}
"""Subscription types that the bridge dispatches."""
NEVER_EARLY = "never early"
"""The one check that the broker's own tracker does not pass, by up to a tick."""
MAY_BE_LESS = {"batch index acks"}
"""Where a broker of 4.0 forgets, by default, which messages of a batch were acked: the bridge does not."""
SHORT = (
    "immediate",
    "delayed",
    "never early",
    "batches",
    "negative ack",
    "dead letter",
    "order by key",
    "seek earliest",
    "reader",
)
LEAST_CHECKS = 28


class Programs:
    """Builds each of CLIENTS once, and stops what it started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._built: dict[str, Program | MissingTools] = {}
        self._started: list[Run] = []

    def of(self, client: str) -> Program:
        """Skips the test when it cannot be had."""
        if client not in self._built:
            try:
                self._built[client] = build(client, self._folder / client)
            except MissingTools as error:
                self._built[client] = error
        built = self._built[client]
        if isinstance(built, MissingTools):
            pytest.skip(f"{client}: {built}")
        return built

    def start(self, client: str, type_: str, service: Service, checks: tuple[str, ...] = ()) -> Run:
        folder = self._folder / f"run-{len(self._started)}"
        run = self.of(client).start(folder, service, type_, checks)
        self._started.append(run)
        return run

    def outcomes_at_the_broker(self, run: Run, client: str, type_: str, service: Service) -> dict[str, Outcome]:
        """Of a run, what failed in it tried once more, alone: it is what others are held to."""
        found = run.outcomes()
        if again := tuple(failures(found).keys() - {NEVER_EARLY}):
            found |= self.start(client, type_, service, again).outcomes()
        return found

    def stop(self) -> None:
        for each in self._started:
            each.stop()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    made = Programs(tmp_path_factory.mktemp("clients"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure_url(pulsar: PulsarCluster, authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a bridge with a TLS port."""
    [port] = free_ports(1)
    settings = authority.issue().settings(port) | {"advertised_address": "localhost"}
    process = BridgeProcess(pulsar, tmp_path_factory.mktemp("bridge"), **settings).start()
    yield f"pulsar+ssl://localhost:{port}"
    process.stop()


@pytest.fixture(scope="module")
def token_bridge(secured: PulsarCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeProcess]:
    """Before the broker that asks for tokens."""
    folder = tmp_path_factory.mktemp("bridge")
    process = BridgeProcess(secured, folder, access="pulsar", broker_token=token_of("bridge")).start()
    yield process
    process.stop()


def clients(everything: bool = LONG) -> list[str]:
    return list(CLIENTS if everything else QUICK)


def prefix(namespace: str = "public/default") -> str:
    return f"persistent://{namespace}/{uuid.uuid4().hex[:12]}"


def with_partitions(pulsar: PulsarCluster, topics: str) -> str:
    """The same prefix, once the topic of the check of partitions is there."""
    admin(pulsar, "PUT", f"{topics.replace('://', '/')}-partitioned/partitions", 3)
    return topics


def compare(type_: str, broker: Mapping[str, Outcome], bridge: Mapping[str, Outcome]) -> None:
    """Everything passes through the bridge, and sees there what it sees at the broker."""
    assert broker.keys() == bridge.keys()
    assert failures(broker).keys() <= {NEVER_EARLY}, failures(broker)
    passed_through = set() if type_ in TAKEN_OVER else {NEVER_EARLY}
    assert failures(bridge).keys() <= passed_through, failures(bridge)
    for check, there in broker.items():
        here = bridge[check]
        if check in MAY_BE_LESS:
            assert set(here.seen.split()) <= set(there.seen.split()), check
        else:
            assert here.seen == there.seen, check


def failures(outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    return {check: outcome.reason for check, outcome in outcomes.items() if not outcome.ok}


@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("client", clients())
def test_what_passes_at_the_broker_passes_through_the_bridge(
    pulsar: PulsarCluster, bridge: BridgeProcess, programs: Programs, client: str, type_: str
) -> None:
    topics = with_partitions(pulsar, prefix())
    broker = programs.start(client, type_, Service(pulsar.service_url, with_partitions(pulsar, prefix())))
    here = programs.start(client, type_, Service(bridge.service_url, topics))
    again = Service(pulsar.service_url, with_partitions(pulsar, prefix()))
    found = programs.outcomes_at_the_broker(broker, client, type_, again)
    assert len(found) >= LEAST_CHECKS, sorted(found)
    compare(type_, found, here.outcomes())
    # Through the bridge, not past it.
    assert type_ not in TAKEN_OVER or bridge.topic(f"{topics}-delayed")


@LONG_FORM
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("client", clients())
def test_over_tls(
    pulsar: PulsarCluster, programs: Programs, secure_url: str, authority: Authority, client: str, type_: str
) -> None:
    """At the broker without: what is compared is what clients see, not how they connect."""
    broker = programs.start(client, type_, Service(pulsar.service_url, prefix()), SHORT)
    here = programs.start(client, type_, Service(secure_url, prefix(), str(authority.certificate)), SHORT)
    found = programs.outcomes_at_the_broker(broker, client, type_, Service(pulsar.service_url, prefix()))
    compare(type_, found, here.outcomes())


@LONG_FORM
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("client", clients())
def test_with_tokens(
    secured: PulsarCluster, token_bridge: BridgeProcess, programs: Programs, client: str, type_: str
) -> None:
    allow(secured, "client", "produce", "consume")
    token = token_of("client")
    broker, again, there = (
        Service(url, prefix(NAMESPACE), token=token)
        for url in (secured.service_url, secured.service_url, token_bridge.service_url)
    )
    run, here = (programs.start(client, type_, each, SHORT) for each in (broker, there))
    compare(type_, programs.outcomes_at_the_broker(run, client, type_, again), here.outcomes())


def test_the_table_names_what_is_tested() -> None:
    """Every client and version, in the page of the matrix."""
    page = (Path(__file__).parent.parent.parent / "docs" / "clients.md").read_text()
    for client in CLIENTS:
        name, _, version = client.partition("-")
        assert re.search(rf"^\| {name}.*{re.escape(version)}", page, re.IGNORECASE | re.MULTILINE), client
