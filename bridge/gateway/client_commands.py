"""What the gateway needs to know of single commands."""

from bridge.broker.answers import MARK_METADATA
from bridge.broker.connection import BrokerError
from bridge.clock import RandBits, token
from bridge.protocol.frames import Frame, encode_frame
from bridge.protocol.names import HIDDEN_SUBSCRIPTION, TopicName
from bridge.protocol.pulsar_pb2 import CommandSubscribe, ServerError


def is_tracked(subscribe: CommandSubscribe) -> bool:
    """Whether the bridge takes over dispatch: durable Shared or Key_Shared on a persistent topic.

    Raises ValueError for a topic name that is none.
    """
    return bool(
        subscribe.subType in (CommandSubscribe.Shared, CommandSubscribe.Key_Shared)
        and subscribe.durable
        and TopicName.parse(subscribe.topic).persistent
    )


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
