"""Brokers that the bridge knows by TLS alone, their certificate checked by a file of authorities."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from bridge.embedded import EmbeddedPulsar
from bridge.embedded.ports import free_ports
from tests.authority import Authority
from tests.bridge_process import now_ms
from tests.broker.conftest import BridgeFactory
from tests.clients import Clients, publish, receive, rest_path, shared
from tests.cluster import PulsarCluster
from tests.helpers import wait_until


class Secured(NamedTuple):
    """A broker with TLS ports, for `localhost` alone; and who signed for it."""

    cluster: PulsarCluster
    authority: Authority

    @property
    def settings(self) -> dict[str, Any]:
        return {"broker_tls_trust_certs_file_path": str(self.authority.certificate)}


@pytest.fixture(scope="module")
def with_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """It listens without TLS too, for its own sake; nobody is told of that but itself."""
    authority, ports = Authority(tmp_path_factory.mktemp("authority")), free_ports(2)
    pair = authority.issue("DNS:localhost,IP:127.0.0.1")
    key = pair.key.with_suffix(".p8")
    key.write_text(pair.key.read_text())
    config = {
        "brokerServicePortTls": str(ports[0]),
        "webServicePortTls": str(ports[1]),
        "tlsEnabled": "true",
        "tlsCertificateFilePath": str(pair.certificate),
        "tlsKeyFilePath": str(key),
        "tlsTrustCertsFilePath": str(authority.certificate),
        "brokerClientTrustCertsFilePath": str(authority.certificate),
    }
    with EmbeddedPulsar(config=config, progress=False, start_timeout=150):
        cluster = PulsarCluster(f"pulsar+ssl://localhost:{ports[0]}", f"https://localhost:{ports[1]}")
        yield Secured(cluster, authority)


def test_a_broker_by_tls(with_tls: Secured, private_bridge: BridgeFactory, clients: Clients, topic: str) -> None:
    """Dispatch, statistics and lookups; the client comes without."""
    bridge = private_bridge(with_tls.cluster, **with_tls.settings, front_door="all")
    client = clients.connect(bridge.web_url)
    consumer, at = shared(client, topic), now_ms() + 3_000
    publish(client.create_producer(topic), ["delayed"], deliver_at=at)
    wait_until(lambda: bridge.stats(topic)["role"] == "owner", "the bridge is elected")
    status, told = bridge.get(f"/admin/v2/{rest_path(topic)}/stats")
    assert (status, told["subscriptions"]["s"]["msgBacklog"]) == (200, 1)
    delayed = receive(consumer)
    assert (delayed.text, delayed.at_ms >= at) == ("delayed", True)


def test_a_broker_that_is_not_trusted(with_tls: Secured, private_bridge: BridgeFactory) -> None:
    bridge = private_bridge(with_tls.cluster, ready=False)
    wait_until(lambda: "certificate verify failed" in bridge.ready()[1].get("reason", ""), "it says why")
    assert bridge.ready()[0] == 503
    assert bridge.get("/admin/v2/namespaces/public/default/topics")[0] == 502
