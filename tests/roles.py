"""Roles of every kind at a broker that checks permissions, and topics for them."""

from tests.clients import rest_path
from tests.cluster import PulsarCluster
from tests.secured import (
    NAMESPACE,
    TENANT,
    allow,
    call,
    done,
    expired_token_of,
    forged_token_of,
    some_topic_of,
    token_of,
)

OTHER = f"{TENANT}/other"
"""A namespace in which only two of them may do anything."""
TOKENS: dict[str, str | None] = {
    **{role: token_of(role) for role in ("admin", "tenant-admin", "producer", "consumer", "both")},
    **{role: token_of(role) for role in ("one-topic", "elsewhere", "nobody")},
    "no token": None,
    "forged": forged_token_of("admin"),
    "expired": expired_token_of("admin"),
    "nonsense": "nonsense",
}


def with_roles(broker: PulsarCluster) -> PulsarCluster:
    """With more roles than other tests need, and a subscription, `granted`, that one of them alone may use."""
    allow(broker, "both", "produce", "consume")
    status, _ = call(broker.web_url, "PUT", f"namespaces/{OTHER}", "admin", {})
    assert status in (204, 409), "409: another module was here"
    for role in ("elsewhere", "one-topic"):
        allow(broker, role, "produce", "consume", where=f"namespaces/{OTHER}")
    done(broker, "POST", f"namespaces/{NAMESPACE}/permissions/subscription/granted", ["both"])
    return broker


def new_topic(broker: PulsarCluster) -> str:
    """One that the role `one-topic` may consume, too."""
    topic = some_topic_of(NAMESPACE)
    done(broker, "PUT", rest_path(topic))
    allow(broker, "one-topic", "consume", where=rest_path(topic))
    return topic
