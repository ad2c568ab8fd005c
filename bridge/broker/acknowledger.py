"""Acks of the bridge's own, for operators: by a consumer without permits that is there for as long as it takes."""

from collections.abc import Sequence

from google.protobuf.unknown_fields import UnknownFieldSet

from bridge.broker.connection import BrokerConnection, BrokerError
from bridge.protocol import commands
from bridge.protocol.entries import StoredEntry
from bridge.protocol.pulsar_pb2 import CommandAckResponse
from tracker import Position

ACKNOWLEDGER_NAME = "__delay-bridge-operator"
"""The name of the consumer, as the broker's stats show it."""


class _Consumer:
    """Is told nothing of interest: without permits there are no entries, and requests say when it is gone."""

    def on_entries(self, entries: list[StoredEntry]) -> None:
        pass

    def on_active(self, active: bool) -> None:
        pass

    def on_closed(self, reason: str) -> None:
        pass


async def acknowledge(
    connection: BrokerConnection, topic: str, subscription: str, positions: Sequence[Position]
) -> None:
    """Ack entries of an existing Shared subscription one by one. Raises BrokerError; acks may have been taken then.

    The broker answers once it has them in memory, and persists them within a second. An entry that does not exist
    would make it drop the rest of its list without a word: pass only entries that were seen.
    """
    consumer_id = connection.register(_Consumer())
    request_id = connection.next_request_id()
    command = commands.subscribe_shared(topic, subscription, consumer_id, request_id, ACKNOWLEDGER_NAME)
    try:
        await connection.request(command, request_id)
        batch = connection.limits.ack_batch
        for start in range(0, len(positions), batch):
            await _ack(connection, consumer_id, positions[start : start + batch])
    finally:
        connection.unregister(consumer_id)
        _close(connection, consumer_id)


async def _ack(connection: BrokerConnection, consumer_id: int, positions: Sequence[Position]) -> None:
    request_id = connection.next_request_id()
    command = commands.ack(consumer_id, positions, request_id)
    answer = (await connection.request(command, request_id, timeout_s=connection.limits.ack_timeout_s)).ackResponse
    if answer.HasField("error"):
        raise BrokerError(answer.message, answer.error)
    unknown = UnknownFieldSet(answer)
    if any(unknown[at].field_number == CommandAckResponse.ERROR_FIELD_NUMBER for at in range(len(unknown))):
        raise BrokerError(f"the broker refuses, in a way that is not known here: {answer.message}")


def _close(connection: BrokerConnection, consumer_id: int) -> None:
    """Nobody waits for the answer."""
    if not connection.is_closed:
        connection.send(commands.close_consumer(consumer_id, connection.next_request_id()))
