"""A real Pulsar that asks for tokens and checks permissions, and the tokens of some roles in it."""

import base64
import hashlib
import hmac
import json
import os
import time
import urllib.error
import urllib.request
import uuid
from typing import Any

from bridge.embedded import EmbeddedPulsar
from tests.bridge_process import Broker
from tests.cluster import PulsarCluster, Started
from tests.transactions import TRANSACTIONAL

TENANT = f"acme-{os.getpid()}"
"""Of this process alone: others of the same test run give and take permissions at the same broker."""
NAMESPACE = f"{TENANT}/orders"
ROLES = ("admin", "bridge", "tenant-admin", "consumer", "producer", "nobody")
_SECRET = hashlib.sha256(b"a secret for tests").digest()


def token_of(role: str, secret: bytes = _SECRET, **claims: Any) -> str:
    """A signed token that names a role."""
    parts = [_text({"alg": "HS256"}), _text({"sub": role, **claims})]
    signed = ".".join(parts)
    return f"{signed}.{_encoded(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"


def expired_token_of(role: str) -> str:
    return token_of(role, exp=int(time.time()) - 60)


def forged_token_of(role: str) -> str:
    """Signed with another secret."""
    return token_of(role, hashlib.sha256(b"another").digest())


def _text(value: dict[str, Any]) -> str:
    return _encoded(json.dumps(value, separators=(",", ":")).encode())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def broker_config() -> dict[str, str]:
    """Settings of a broker with authentication and authorization, whose super user is `admin`."""
    return {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
        "tokenSecretKey": f"data:;base64,{base64.b64encode(_SECRET).decode()}",
        "superUserRoles": "admin",
        **TRANSACTIONAL,
        "authenticationRefreshCheckSeconds": "1",
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": f"token:{token_of('admin')}",
    }


def start_secured() -> Started:
    """A broker that asks for tokens and checks permissions."""
    broker = EmbeddedPulsar(config=broker_config(), progress=False, admin_token=token_of("admin"))
    broker.start()
    return PulsarCluster(broker.service_url, broker.web_url), broker.stop


def set_up_roles(broker: Broker) -> None:
    """This process's tenant, its namespace `NAMESPACE` and the permissions of the roles there."""
    clusters = call(broker.web_url, "GET", "clusters", "admin")[1]
    tenant = {"adminRoles": ["tenant-admin"], "allowedClusters": clusters}
    done(broker, "PUT", f"tenants/{TENANT}", tenant)
    done(broker, "PUT", f"namespaces/{NAMESPACE}", {})
    for role, actions in {"bridge": ["consume"], "consumer": ["consume"], "producer": ["produce"]}.items():
        allow(broker, role, *actions)


def some_topic_of(namespace: str) -> str:
    return f"persistent://{namespace}/t-{uuid.uuid4().hex[:10]}"


def allow(broker: Broker, role: str, *actions: str, where: str = f"namespaces/{NAMESPACE}") -> None:
    """Give a role permissions in a namespace, or on one topic: `where` is the path of either."""
    done(broker, "POST", f"{where}/permissions/{role}", list(actions))


def disallow(broker: Broker, role: str, where: str = f"namespaces/{NAMESPACE}") -> None:
    """Take all permissions of a role away."""
    done(broker, "DELETE", f"{where}/permissions/{role}")


def done(broker: Broker, method: str, path: str, body: object = None) -> None:
    """A super user's call, which has to succeed."""
    status, said = call(broker.web_url, method, path, "admin", body)
    assert status < 300, said


def call(web_url: str, method: str, path: str, role: str | None, body: object = None) -> tuple[int, Any]:
    """Status and body of a call of the broker's admin interface with a role's token."""
    return ask(f"{web_url}/admin/v2/{path}", method, None if role is None else token_of(role), body)


def ask(url: str, method: str, token: str | None, body: object = None) -> tuple[int, Any]:
    """Status and body of a call with a token."""
    request = urllib.request.Request(url, method=method)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            status, content = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            status, content = error.code, error.read()
    try:
        return status, json.loads(content)
    except ValueError:
        return status, content.decode(errors="replace")
