"""What the gateway needs to know of single commands."""

from bridge.broker.connection import BrokerError
from bridge.ownership import HIDDEN_SUBSCRIPTION
from bridge.protocol.frames import Frame
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe, ServerError
from bridge.protocol.topic_name import TopicName


def is_tracked(subscribe: CommandSubscribe) -> bool:
    """Whether the bridge takes over dispatch: durable Shared on a persistent topic.

    Raises ValueError for a topic name that is none.
    """
    return bool(
        subscribe.subType == CommandSubscribe.Shared
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


def request_id_of(frame: Frame) -> int:
    """The request that a SUCCESS or ERROR answers."""
    command = frame.command()
    return int(command.success.request_id if command.type == BaseCommand.SUCCESS else command.error.request_id)
