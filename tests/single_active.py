"""Raw clients on Exclusive and Failover subscriptions, and what the broker says of their cursors."""

import asyncio
from typing import Any

from bridge.protocol.pulsar_pb2 import BaseCommand, CommandAck, CommandSubscribe, MessageIdData
from tests.bridge_process import Broker
from tests.clients import admin, rest_path
from tests.helpers import wait_until_async
from tests.raw_client import RawClient, RawMessage
from tests.transactions import Id, Place

EVERYTHING = 1_000
QUIET_S = 0.4
"""How long nothing may arrive when nothing should."""
TYPES = [CommandSubscribe.Exclusive, CommandSubscribe.Failover]
NAMES = ["Exclusive", "Failover"]


async def join(
    client: RawClient,
    topic: str,
    kind: CommandSubscribe.SubType,
    name: str = "a",
    permits: int = EVERYTHING,
    **more: Any,
) -> None:
    """A consumer; on Failover the broker lets a first one wait a second before it is active."""
    await client.consume(topic, subType=kind, consumer_name=name, **more)
    if permits:
        client.flow(permits)


async def publish_all(client: RawClient, topic: str, count: int, start: int = 0, **fields: Any) -> list[Place]:
    if start == 0:
        await client.produce(topic)
    return [await client.publish(str(n).encode(), sequence_id=n, **fields) for n in range(start, start + count)]


async def receive(client: RawClient, count: int) -> list[RawMessage]:
    return [await client.message() for _ in range(count)]


async def places(client: RawClient, count: int) -> list[Place]:
    return [each.position for each in await receive(client, count)]


async def silent(*clients: RawClient) -> None:
    await asyncio.sleep(QUIET_S)
    assert [client.messages.qsize() for client in clients] == [0] * len(clients)


async def ack_up_to(
    client: RawClient, place: Place, *, ack_set: tuple[int, ...] = (), wait: bool = True, transaction: Id | None = None
) -> None:
    """Cumulatively, and wait for the answer."""
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id = 1
    command.ack.ack_type = CommandAck.Cumulative
    command.ack.message_id.add(ledgerId=place[0], entryId=place[1], ack_set=ack_set)
    if transaction is not None:
        command.ack.txnid_most_bits, command.ack.txnid_least_bits = transaction
    if not wait:
        client.send(command)
        return
    command.ack.request_id = request_id = client.next_request_id()
    answer = await client.request(command, request_id)
    assert not answer.ackResponse.HasField("error"), answer


def cursor(pulsar: Broker, topic: str, subscription: str = "s") -> tuple[str, str]:
    """The mark-delete position and the ranges acked beyond."""
    found = admin(pulsar, "GET", f"{rest_path(topic)}/internalStats")["cursors"][subscription]
    return found["markDeletePosition"], found["individuallyDeletedMessages"]


async def acked_up_to(pulsar: Broker, topic: str, place: Place, ranges: str = "[]") -> None:
    expected = f"{place[0]}:{place[1]}", ranges
    await wait_until_async(lambda: cursor(pulsar, topic) == expected, f"the cursor at {expected}", interval=0.1)


async def active(client: RawClient, is_active: bool = True) -> None:
    """The broker says so."""

    async def told() -> bool:
        change = await client.event(BaseCommand.ACTIVE_CONSUMER_CHANGE)
        return change.active_consumer_change.is_active == is_active

    await wait_until_async(told, f"told that active is {is_active}")


async def seek(client: RawClient, place: Place) -> None:
    """The broker closes the consumer for it."""
    command = BaseCommand(type=BaseCommand.SEEK)
    command.seek.consumer_id = 1
    command.seek.message_id.CopyFrom(MessageIdData(ledgerId=place[0], entryId=place[1]))
    command.seek.request_id = request_id = client.next_request_id()
    assert (await client.request(command, request_id)).type == BaseCommand.SUCCESS
    await client.event(BaseCommand.CLOSE_CONSUMER)
