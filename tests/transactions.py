"""Transactions with the raw client, of the coordinator 0."""

from collections.abc import Sequence
from typing import Any

from bridge.protocol.named_requests import coordinator_topic
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandAck, TxnAction
from tests.helpers import wait_until_async
from tests.raw_client import RawClient

TRANSACTIONAL = {"transactionCoordinatorEnabled": "true"}
"""What a broker needs to be told."""
MINUTE_MS = 60_000

Id = tuple[int, int]
Place = tuple[int, int]


async def connect_coordinator(client: RawClient) -> None:
    """Before anything else is asked of it. It may take a moment to be there."""

    async def connected() -> bool:
        # It is the lookup that has a broker serve it, and one that has just started may not do so yet.
        await client.lookup(coordinator_topic(0))
        answer = await ask(client, BaseCommand.TC_CLIENT_CONNECT_REQUEST, "tcClientConnectRequest", tc_id=0)
        return not answer.HasField("error")

    await wait_until_async(connected, "the coordinator is there", timeout=60, interval=0.2)


async def begin(client: RawClient, topic: str, subscription: str = "s", *, ttl_ms: int = MINUTE_MS) -> Id:
    """A transaction that messages of a subscription can be acked in."""
    # The field is called seconds, and is milliseconds.
    new = await ask(client, BaseCommand.NEW_TXN, "newTxn", tc_id=0, txn_ttl_seconds=ttl_ms)
    assert not new.HasField("error"), new
    command = BaseCommand(type=BaseCommand.ADD_SUBSCRIPTION_TO_TXN)
    added = command.addSubscriptionToTxn
    added.txnid_most_bits, added.txnid_least_bits = new.txnid_most_bits, new.txnid_least_bits
    added.request_id = request_id = client.next_request_id()
    added.subscription.add(topic=topic, subscription=subscription)
    answer = (await client.request(command, request_id)).addSubscriptionToTxnResponse
    assert not answer.HasField("error"), answer
    return new.txnid_most_bits, new.txnid_least_bits


async def produce_in(client: RawClient, transaction: Id, topic: str) -> None:
    """Messages for a topic may be published in the transaction."""
    answer = await ask(
        client,
        BaseCommand.ADD_PARTITION_TO_TXN,
        "addPartitionToTxn",
        txnid_most_bits=transaction[0],
        txnid_least_bits=transaction[1],
        partitions=[topic],
    )
    assert not answer.HasField("error"), answer


async def end(client: RawClient, transaction: Id, *, commit: bool) -> None:
    answer = await ask(
        client,
        BaseCommand.END_TXN,
        "endTxn",
        txnid_most_bits=transaction[0],
        txnid_least_bits=transaction[1],
        txn_action=TxnAction.COMMIT if commit else TxnAction.ABORT,
    )
    assert not answer.HasField("error"), answer


async def commit(client: RawClient, transaction: Id) -> None:
    await end(client, transaction, commit=True)


async def abort(client: RawClient, transaction: Id) -> None:
    await end(client, transaction, commit=False)


async def ack_in(
    client: RawClient,
    transaction: Id | None,
    *positions: Place,
    consumer_id: int = 1,
    ack_set: Sequence[int] = (),
    batch_size: int = 0,
) -> str:
    """Ack (in a transaction), and wait for the answer; returns why it was refused, else nothing."""
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id = consumer_id
    command.ack.ack_type = CommandAck.Individual
    for ledger, entry in positions:
        command.ack.message_id.add(ledgerId=ledger, entryId=entry, ack_set=ack_set, batch_size=batch_size)
    if transaction is not None:
        command.ack.txnid_most_bits, command.ack.txnid_least_bits = transaction
    command.ack.request_id = request_id = client.next_request_id()
    answer = (await client.request(command, request_id)).ackResponse
    return answer.message if answer.HasField("error") else ""


async def ask(client: RawClient, kind: BaseCommand.Type, field: str, **fields: Any) -> Any:
    """What the answer to a command about transactions says, an error too."""
    command = BaseCommand(type=kind)
    body = getattr(command, field)
    body.request_id = request_id = client.next_request_id()
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(body, name).extend(value)
        else:
            setattr(body, name, value)
    answer = await client.request(command, request_id)
    assert answer.type != BaseCommand.ERROR, answer
    return getattr(answer, field.removesuffix("Request") + "Response")
