"""What the gateway needs to know of single commands."""

import re
from collections.abc import Sequence

from bridge.broker.answers import MARK_METADATA
from bridge.broker.connection import BrokerError
from bridge.clock import RandBits, token
from bridge.protocol.frames import Frame, encode_frame
from bridge.protocol.names import HIDDEN_SUBSCRIPTION, TopicName
from bridge.protocol.pulsar_pb2 import CommandSubscribe, ServerError
from bridge.protocol.single_active import TELLS_ACTIVE, names_of, wants_delays

_SHARED = (CommandSubscribe.Shared, CommandSubscribe.Key_Shared)


class Tracking:
    """Which subscriptions the bridge dispatches.

    Durable Shared and Key_Shared ones on persistent topics, and Exclusive and Failover ones where that is wanted.
    """

    def __init__(self, delays_on_exclusive: Sequence[str] = ()) -> None:
        """`delays_on_exclusive`: namespaces and topics, `*` for any part of a name."""
        self._wanted = [re.compile(".*".join(map(re.escape, one.split("*")))) for one in delays_on_exclusive]

    def takes(self, subscribe: CommandSubscribe, protocol_version: int = TELLS_ACTIVE) -> bool:
        """Whether the bridge takes over dispatch; `protocol_version`: the client's.

        To a client that is told nothing of active consumers the broker goes on dispatching while it is the active one.
        Raises ValueError for a topic name that is none.
        """
        topic = TopicName.parse(subscribe.topic)
        if not (subscribe.durable and topic.persistent):
            return False
        if subscribe.subType in _SHARED:
            return True
        if subscribe.read_compacted:
            return False
        if subscribe.subType == CommandSubscribe.Failover and protocol_version < TELLS_ACTIVE:
            return False
        wanted = wants_delays(subscribe)
        if wanted is not None:
            return wanted
        return any(one.fullmatch(name) for one in self._wanted for name in names_of(topic))


def refuse_reserved(subscribe: CommandSubscribe) -> None:
    """Keep clients off the bridge's own subscriptions: they could take a topic partition over.

    Raises BrokerError naming the subscription.
    """
    if subscribe.subscription.startswith(HIDDEN_SUBSCRIPTION):
        raise BrokerError(
            f"subscription names that begin with {HIDDEN_SUBSCRIPTION} are the bridge's: {subscribe.subscription!r}",
            ServerError.NotAllowedError,
        )


def marked(frame: Frame, randbits: RandBits) -> tuple[Frame, str]:
    """The SUBSCRIBE with a mark that nobody can guess among the consumer's metadata, and the mark.

    The broker lists the metadata of the consumers that it has accepted: so the bridge knows this one again.
    """
    command = frame.command()
    mark = token(randbits)
    kept = [each for each in command.subscribe.metadata if each.key != MARK_METADATA]
    del command.subscribe.metadata[:]
    command.subscribe.metadata.extend(kept)
    command.subscribe.metadata.add(key=MARK_METADATA, value=mark)
    return Frame(frame.type, memoryview(encode_frame(command))), mark
