"""Clients that come by TLS: the official one, with delayed messages, renewed certificates, and several bridges."""

import json
import re
import ssl
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import pulsar as client_library
import pytest

from bridge.embedded.ports import free_ports
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandLookupTopicResponse, ServerError
from tests.authority import Authority, Pair
from tests.bridge_process import BridgeProcess, now_ms
from tests.broker.conftest import BridgeFactory
from tests.broker.test_candidates import stand
from tests.clients import Clients, drain, publish, receive, shared, some_topic, texts
from tests.cluster import PulsarCluster
from tests.helpers import wait_until, wait_until_async
from tests.raw_client import RawClient, raw_client

OTHER, OTHER_TLS = "pulsar://other.example:6650", "pulsar+ssl://other.example:6651"
DELAY_MS = 600


class Secure(NamedTuple):
    """A bridge with a TLS port."""

    process: BridgeProcess
    port: int
    authority: Authority
    pair: Pair

    @property
    def url(self) -> str:
        return f"pulsar+ssl://localhost:{self.port}"

    def connect(self, clients: Clients, url: str | None = None, trusted: Authority | None = None, **more: Any) -> Any:
        """An official client that checks certificate and host name."""
        more.setdefault("operation_timeout_seconds", 20)
        return clients.connect(
            url or self.url,
            tls_trust_certs_file_path=str((trusted or self.authority).certificate),
            tls_validate_hostname=True,
            **more,
        )

    def metric(self, name: str) -> float:
        found = re.search(rf"^pulsar_delay_bridge_{name}{{.*}} (\S+)$", self.process.text("/metrics"), re.MULTILINE)
        assert found, name
        return float(found[1])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def secure(private_bridge: BridgeFactory, authority: Authority) -> "SecureFactory":
    return SecureFactory(private_bridge, authority)


@pytest.fixture
def started(secure: "SecureFactory") -> Secure:
    """One that is made before a test's event loop is there."""
    return secure()


class SecureFactory:
    """Starts bridges with a TLS port: `secure(limits={…}, **settings)`."""

    def __init__(self, make: BridgeFactory, authority: Authority) -> None:
        self._make, self._authority = make, authority

    def __call__(self, limits: dict[str, Any] | None = None, **settings: Any) -> Secure:
        [port], pair = free_ports(1), self._authority.issue("DNS:localhost")
        process = self._make(limits=limits, **(pair.settings(port) | {"advertised_address": "localhost"} | settings))
        return Secure(process, port, self._authority, pair)


def exchange(client: Any, topic: str, subscription: str = "s") -> None:
    """Delayed and immediate messages, each on time and once."""
    consumer = shared(client, topic, subscription)
    producer = client.create_producer(topic)
    due_ms = now_ms() + DELAY_MS
    publish(producer, [f"later {number}" for number in range(20)], due_ms)
    publish(producer, ["at once"])
    assert receive(consumer).text == "at once"
    late = drain(consumer, 20)
    assert sorted(texts(late)) == sorted(f"later {number}" for number in range(20))
    assert min(each.at_ms for each in late) >= due_ms
    consumer.close()
    producer.close()


@pytest.mark.parametrize("tls_only", [False, True])
def test_delayed_messages_over_tls(secure: SecureFactory, clients: Clients, topic: str, tls_only: bool) -> None:
    bridge = secure(tls_only=tls_only, tls_min_version="1.3")
    exchange(bridge.connect(clients), topic)
    assert bridge.process.topic(topic)["role"] == "owner"
    if tls_only:
        assert bridge.process.topic(topic)["owner"] == bridge.url
        with pytest.raises(client_library.PulsarException):
            clients.connect(bridge.process.service_url, operation_timeout_seconds=2).create_producer(topic)
    else:
        exchange(clients.connect(bridge.process.service_url), some_topic("plain"))
    assert bridge.metric("tls_handshake_failures_total") == 0


def test_large_messages_over_tls(secure: SecureFactory, clients: Clients, topic: str) -> None:
    """Megabytes in both directions, to a consumer that takes its time."""
    client = secure().connect(clients)
    consumer = shared(client, topic, receiver_queue_size=5)
    sent = [str(number) * 1_000_000 for number in range(30)]
    publish(client.create_producer(topic, block_if_queue_full=True), sent)
    assert sorted(texts(drain(consumer, len(sent)))) == sorted(sent)


def test_who_is_not_let_in_does_no_harm(secure: SecureFactory, clients: Clients, topic: str, tmp_path: Path) -> None:
    """No trust, no TLS at the one port, TLS at the other: each ends alone, beside a client that notices nothing."""
    bridge = secure({"handshake_timeout_s": 1.0})
    welcome = bridge.connect(clients)
    consumer = shared(welcome, topic)
    plain = f"localhost:{bridge.process.port}"
    for url, trusted in (
        (bridge.url, Authority(tmp_path, "other")),
        (f"pulsar+ssl://127.0.0.1:{bridge.port}", None),  # the certificate is for another name
        (f"pulsar://localhost:{bridge.port}", None),
        (f"pulsar+ssl://{plain}", None),
    ):
        with pytest.raises(client_library.PulsarException):
            bridge.connect(clients, url, trusted, operation_timeout_seconds=2).create_producer(topic)
    publish(welcome.create_producer(topic), ["x"])
    assert receive(consumer).text == "x"
    assert bridge.metric("tls_handshake_failures_total") >= 3
    assert "Traceback" not in bridge.process.log()
    assert 'part="client"} 0' in bridge.process.text("/metrics")


def test_client_certificates(
    secure: SecureFactory, clients: Clients, topic: str, authority: Authority, tmp_path: Path
) -> None:
    bridge = secure(
        tls_trust_certs_file_path=str(authority.certificate), tls_require_trusted_client_cert_on_connect=True
    )
    shown, false = authority.issue(), Authority(tmp_path, "other").issue()
    for authentication in (None, client_library.AuthenticationTLS(*map(str, false))):
        refused = bridge.connect(clients, authentication=authentication, operation_timeout_seconds=2)
        with pytest.raises(client_library.PulsarException):
            refused.create_producer(topic)
    exchange(bridge.connect(clients, authentication=client_library.AuthenticationTLS(*map(str, shown))), topic)


def test_a_renewed_certificate(secure: SecureFactory, clients: Clients, topic: str) -> None:
    """Used for new connections, while those there are go on; a broken one is not used."""
    bridge = secure({"certificate_check_s": 0.05})
    before = bridge.connect(clients)
    consumer = shared(before, topic)
    ends_s = bridge.metric("tls_certificate_expires_seconds")
    bridge.pair.key.write_text("broken")
    bridge.process.wait_for_log("TLS files have changed and cannot be used")
    assert "certificate" in [each["code"] for each in overview(bridge)["warnings"]]
    exchange(bridge.connect(clients), some_topic("broken"))
    bridge.pair.replace_by(bridge.authority.issue("DNS:localhost", days=300))
    wait_until(lambda: bridge.metric("tls_certificate_expires_seconds") > ends_s, "the new one")
    assert "certificate" not in [each["code"] for each in overview(bridge)["warnings"]]
    exchange(bridge.connect(clients), some_topic("renewed"))
    publish(before.create_producer(topic), ["x"])
    assert receive(consumer).text == "x"
    assert bridge.process.log().count("client session ends") == 0


def overview(bridge: Secure) -> dict[str, Any]:
    with urllib.request.urlopen(f"{bridge.process.web_url}/admin/v2/delayed/overview", timeout=20) as answer:
        return dict(json.load(answer))


@pytest.mark.parametrize("settings", [{}, {"cluster_secret": "a-secret-of-the-tests"}, {"tls_only": True}])
def test_a_client_is_led_to_the_owner_by_tls(
    secure: SecureFactory, clients: Clients, topic: str, settings: dict[str, Any]
) -> None:
    bridges = [secure(**settings) for _ in range(2)]
    first = [shared(each.connect(clients), topic, "both") for each in bridges]
    names = {
        each.url if settings.get("tls_only") else f"pulsar://localhost:{each.process.port}": each for each in bridges
    }

    def owner() -> Secure | None:
        told = {each.process.topic(topic).get("owner") for each in bridges}
        return names.get(str(*told)) if len(told) == 1 else None

    owns = wait_until(owner, "both know who owns it", timeout=30)
    assert owns is not None
    [standby] = [each for each in bridges if each is not owns]
    for consumer in first:
        consumer.close()
    # Producers are led on too: of the standby's clients none stays.
    exchange(standby.connect(clients), topic, "led")
    assert owns.process.topic(topic)["role"] == "owner"
    assert sum(each["delivered"] for each in subscriptions(owns, topic)) >= 21


def subscriptions(bridge: Secure, topic: str) -> list[dict[str, Any]]:
    return list(bridge.process.stats(topic)["subscriptions"].values())


async def test_a_client_is_not_led_away_from_tls(
    pulsar: PulsarCluster, started: Secure, authority: Authority, topic: str
) -> None:
    """By an owner that says nothing of TLS: the client is told so. One that does is where it is led."""
    bridge = started
    url, trusting = bridge.url, ssl.create_default_context(cafile=str(authority.certificate))
    client, plain = await raw_client(url, tls=trusting), await raw_client(bridge.process.service_url)
    await client.consume(topic)
    for stated, seen in (({}, ""), ({"tls-url": OTHER_TLS}, OTHER_TLS)):
        other = await raw_client(pulsar.service_url)
        assert (await stand(other, topic, OTHER, stated)).type == BaseCommand.SUCCESS
        found = await answered(client, topic, seen)
        assert found.brokerServiceUrl == ""
        if not seen:
            assert (found.response, found.error) == (CommandLookupTopicResponse.Failed, ServerError.ServiceNotReady)
            assert f"{OTHER}, is not known to serve clients with TLS" in found.message
        assert (await plain.lookup(topic)).lookupTopicResponse.brokerServiceUrl == OTHER
        await other.close()
    await client.close()
    await plain.close()


async def answered(client: RawClient, topic: str, tls_url: str) -> CommandLookupTopicResponse:
    """The first answer to a lookup that names this URL with TLS."""

    async def found() -> CommandLookupTopicResponse | None:
        answer = (await client.lookup(topic)).lookupTopicResponse
        return answer if answer.brokerServiceUrlTls == tls_url else None

    right = await wait_until_async(found, "the answer to a lookup", timeout=20)
    assert right is not None
    return right
