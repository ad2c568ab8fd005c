"""Requests that name no producer and no consumer, but what they are for: a topic, or a transaction coordinator.

Only the broker of that topic can answer them. A coordinator lives where its partition of a system topic does. What
any broker answers (metadata of partitions, lists of topics, schemas that are there) is not among them.
"""

from collections.abc import Callable, Mapping

from bridge.protocol import commands
from bridge.protocol.pulsar_pb2 import BaseCommand, ServerError


def coordinator_topic(coordinator: int) -> str:
    """The topic whose broker runs a transaction coordinator. The upper half of a transaction's id names it."""
    return f"persistent://pulsar/system/transaction_coordinator_assign-partition-{coordinator}"


TOPIC_OF: Mapping[int, Callable[[BaseCommand], str]] = {
    BaseCommand.GET_OR_CREATE_SCHEMA: lambda command: command.getOrCreateSchema.topic,
    BaseCommand.TC_CLIENT_CONNECT_REQUEST: lambda command: coordinator_topic(command.tcClientConnectRequest.tc_id),
    BaseCommand.NEW_TXN: lambda command: coordinator_topic(command.newTxn.tc_id),
    BaseCommand.ADD_PARTITION_TO_TXN: lambda command: coordinator_topic(command.addPartitionToTxn.txnid_most_bits),
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: lambda command: coordinator_topic(
        command.addSubscriptionToTxn.txnid_most_bits
    ),
    BaseCommand.END_TXN: lambda command: coordinator_topic(command.endTxn.txnid_most_bits),
    BaseCommand.END_TXN_ON_PARTITION: lambda command: command.endTxnOnPartition.topic,
    BaseCommand.END_TXN_ON_SUBSCRIPTION: lambda command: command.endTxnOnSubscription.subscription.topic,
}
"""By the type of a request: the topic it is for."""

_TO_COORDINATOR = frozenset(
    {
        BaseCommand.TC_CLIENT_CONNECT_REQUEST,
        BaseCommand.NEW_TXN,
        BaseCommand.ADD_PARTITION_TO_TXN,
        BaseCommand.ADD_SUBSCRIPTION_TO_TXN,
        BaseCommand.END_TXN,
    }
)


def refusal(command: BaseCommand, request_id: int, code: ServerError, message: str) -> BaseCommand:
    """The answer to `command`, of a type in TOPIC_OF, when its topic has no broker.

    Clients look a coordinator up anew when told that it is not found, and give the transaction up for anything else.
    """
    if command.type in _TO_COORDINATOR and code == ServerError.ServiceNotReady:
        code = ServerError.TransactionCoordinatorNotFound
    return commands.refused(command, request_id, code, message)
