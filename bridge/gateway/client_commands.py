"""What the gateway needs to know of single commands."""

from bridge.protocol.frames import Frame
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe
from bridge.protocol.topic_name import TopicName

HIDDEN_SUBSCRIPTION = "__delay-bridge"


def is_tracked(subscribe: CommandSubscribe) -> bool:
    """Whether the bridge takes over dispatch: durable Shared on a persistent topic.

    Raises ValueError for a topic name that is none.
    """
    return bool(
        subscribe.subType == CommandSubscribe.Shared
        and subscribe.durable
        and not subscribe.subscription.startswith(HIDDEN_SUBSCRIPTION)
        and TopicName.parse(subscribe.topic).persistent
    )


def request_id_of(frame: Frame) -> int:
    """The request that a SUCCESS or ERROR answers."""
    command = frame.command()
    return int(command.success.request_id if command.type == BaseCommand.SUCCESS else command.error.request_id)
