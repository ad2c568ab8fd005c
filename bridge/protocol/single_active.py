"""Exclusive and Failover subscriptions: one consumer gets everything, and how a consumer asks for delays there."""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from bridge.protocol.names import TopicName
from bridge.protocol.pulsar_pb2 import CommandSubscribe
from bridge.protocol.sticky_keys import KeySharing

DELAYS_PROPERTY: Final = "delay-bridge.delays"
"""`true` or `false`, of the subscription, or of the consumer where a client cannot give those of subscriptions."""
TELLS_ACTIVE: Final = 12
"""The protocol version from which on brokers tell a Failover consumer whether it is the active one."""


class SingleActive(NamedTuple):
    """Entries go to one consumer at a time: the only one there is, or (`failover`) the one that the broker elects."""

    failover: bool = False

    @property
    def name(self) -> Literal["Exclusive", "Failover"]:
        """Pulsar's name of the type."""
        return "Failover" if self.failover else "Exclusive"


Sharing = KeySharing | SingleActive | None
"""How the entries of a subscription are shared among its consumers; None: as of a Shared one."""


def sharing_of(subscribe: CommandSubscribe) -> Sharing:
    """As a consumer asks for it."""
    if subscribe.subType in (CommandSubscribe.Exclusive, CommandSubscribe.Failover):
        return SingleActive(subscribe.subType == CommandSubscribe.Failover)
    return KeySharing.of(subscribe)


def wants_delays(subscribe: CommandSubscribe) -> bool | None:
    """What the properties in a SUBSCRIBE say of delays, those of the subscription before those of the consumer.

    None: nothing, or neither `true` nor `false`.
    """
    for properties in (subscribe.subscription_properties, subscribe.metadata):
        for each in properties:
            if each.key == DELAYS_PROPERTY and each.value.lower() in ("true", "false"):
                return bool(each.value.lower() == "true")
    return None


def names_of(topic: TopicName) -> Sequence[str]:
    """What a setting may name a topic partition by: its namespace, its topic, itself."""
    full = str(topic)
    whole = full if topic.partition < 0 else full.rpartition("-partition-")[0]
    return f"{topic.tenant}/{topic.namespace}", whole, full
