"""Callers of the web port by https: clients whose service URL is that, and their lookups."""

import json
import ssl
import urllib.request
from pathlib import Path

import pulsar as official
import pytest

from bridge.embedded.ports import free_ports
from tests.authority import Authority
from tests.bridge_process import BridgeProcess, now_ms
from tests.broker.conftest import BridgeFactory
from tests.clients import Clients, publish, receive, rest_path, shared
from tests.helpers import wait_until


@pytest.fixture
def by_https(private_bridge: BridgeFactory, tmp_path: Path) -> tuple[BridgeProcess, Authority, int, int]:
    """With its ports for https, and for clients with TLS."""
    authority, (web_port, port) = Authority(tmp_path), free_ports(2)
    bridge = private_bridge(**authority.issue().settings(port), web_tls_port=web_port, front_door="all")
    return bridge, authority, web_port, port


def test_clients_with_an_https_service_url(
    by_https: tuple[BridgeProcess, Authority, int, int], clients: Clients, topic: str
) -> None:
    """Looked up with TLS, led to TLS."""
    bridge, authority, web_port, _ = by_https
    client = clients.connect(
        f"https://localhost:{web_port}",
        tls_trust_certs_file_path=str(authority.certificate),
        tls_validate_hostname=True,
        operation_timeout_seconds=20,
    )
    consumer, at = shared(client, topic), now_ms() + 2_000
    publish(client.create_producer(topic), ["delayed"], deliver_at=at)
    wait_until(lambda: bridge.stats(topic)["subscriptions"].get("s", {}).get("pending") == 1, "the bridge has it")
    delayed = receive(consumer)
    assert (delayed.text, delayed.at_ms >= at) == ("delayed", True)
    stranger = clients.connect(f"https://localhost:{web_port}", operation_timeout_seconds=3)
    with pytest.raises(official.PulsarException):
        shared(stranger, topic, "other")


def test_a_lookup_by_https(by_https: tuple[BridgeProcess, Authority, int, int], topic: str) -> None:
    bridge, authority, web_port, port = by_https
    context = ssl.create_default_context(cafile=str(authority.certificate))
    url = f"https://127.0.0.1:{web_port}/lookup/v2/topic/{rest_path(topic)}"
    with urllib.request.urlopen(url, timeout=20, context=context) as answer:
        told = json.load(answer)
    assert told == {
        "brokerUrl": bridge.service_url,
        "nativeUrl": bridge.service_url,
        "httpUrl": bridge.web_url,
        "brokerUrlTls": f"pulsar+ssl://127.0.0.1:{port}",
        "brokerUrlSsl": f"pulsar+ssl://127.0.0.1:{port}",
        "httpUrlTls": f"https://127.0.0.1:{web_port}",
    }


def test_no_port_with_tls_no_lookup_by_https(private_bridge: BridgeFactory, tmp_path: Path, topic: str) -> None:
    authority, [web_port] = Authority(tmp_path), free_ports(1)
    bridge = private_bridge(**(authority.issue().settings(0) | {"web_tls_port": web_port}))
    context = ssl.create_default_context(cafile=str(authority.certificate))
    url = f"https://127.0.0.1:{web_port}/lookup/v2/topic/{rest_path(topic)}"
    with pytest.raises(urllib.request.HTTPError) as refused:
        urllib.request.urlopen(url, timeout=20, context=context)
    with refused.value:
        assert refused.value.code == 503
        assert "is not known to serve clients with TLS" in refused.value.read().decode()
    assert bridge.get(f"/lookup/v2/topic/{rest_path(topic)}")[0] == 200
