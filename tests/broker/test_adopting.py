"""Brokers that tell clients of the bridge in place of themselves, as `docs/adopting.md` says: two, and two bridges."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from bridge.embedded.ports import free_ports
from tests.bridge_process import BridgeProcess, now_ms
from tests.clients import Clients, publish, receive, shared
from tests.helpers import wait_until
from tests.two_brokers import BrokersThatName

ADDRESS = "10.99.77.1"
"""Brokers whose advertised address is 127.0.0.1 tell clients to stay on the connection that they asked by."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """One more of the loopback interface: nothing leaves the machine."""
    ip = shutil.which("ip")
    if ip is None:
        pytest.skip("no `ip` to add an address with")
    change = [f"{ADDRESS}/32", "dev", "lo"]
    added = subprocess.run([ip, "address", "add", *change], capture_output=True, text=True, check=False)
    if added.returncode != 0:
        pytest.skip(f"no address can be added here: {added.stderr.strip()}")
    yield ADDRESS
    subprocess.run([ip, "address", "delete", *change], check=False)


@pytest.fixture(scope="module")
def door() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def brokers(address: str, door: int) -> Iterator[BrokersThatName]:
    with BrokersThatName(address, f"pulsar://{address}:{door}") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def bridges(
    brokers: BrokersThatName, address: str, door: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[BridgeProcess]]:
    """The first is the one that brokers name; the other one has topics of its own all the same."""
    with contextlib.ExitStack() as running:
        made = []
        for number in range(2):
            bridge = BridgeProcess(brokers, tmp_path_factory.mktemp("bridge"), host=address, advertised_address=address)
            if number == 0:
                bridge.port = door
            made.append(bridge.start())
            running.callback(bridge.stop)
        yield made


def test_clients_of_each_broker_get_to_the_bridge(
    brokers: BrokersThatName, bridges: list[BridgeProcess], clients: Clients
) -> None:
    for number, broker in enumerate(brokers.brokers):
        topic = brokers.topic_on(broker, f"named-{number}")
        for count, url in enumerate(brokers.outer_urls, start=1):
            client = clients.connect(url)
            consumer = shared(client, topic, f"of-{url.rpartition(':')[2]}")
            at = now_ms() + 500
            publish(client.create_producer(topic), [url], deliver_at=at)
            assert url in {receive(consumer).text for _ in range(count)}
            assert now_ms() >= at
            client.close()
        row = bridges[0].topic(topic)
        assert (row["role"], row["owner"]) == ("owner", bridges[0].service_url)


def test_the_bridge_that_is_named_leads_on_to_the_owner(
    brokers: BrokersThatName, bridges: list[BridgeProcess], clients: Clients
) -> None:
    named, owner = bridges
    topic = brokers.topic_on(brokers.brokers[1], "led-on")
    first = shared(clients.connect(owner.service_url), topic, "s")
    wait_until(lambda: owner.topic(topic).get("role") == "owner", "owned by the other one")
    client = clients.connect(brokers.outer_urls[0])
    consumer = shared(client, topic, "other")
    at = now_ms() + 1_000
    publish(client.create_producer(topic), ["later"], deliver_at=at)
    for each in (consumer, first):
        assert receive(each).text == "later"
        assert now_ms() >= at
    # The named one stands for the topic too now, and the broker may have elected it: both bridges know whom.
    wait_until(lambda: named.topic(topic).get("owner") == owner.topic(topic).get("owner") is not None, "one owner")
    if named.topic(topic)["owner"] == named.service_url:
        owner = named
    wait_until(lambda: set(owner.stats(topic)["subscriptions"]) == {"s", "other"}, "both are dispatched there")
