"""Acks up to a position, as the broker is told of them: entry by entry, for what waits for its time is not acked."""

from collections.abc import Callable

from bridge.dispatch.acks.pending_acks import PendingAcks
from bridge.dispatch.dispatcher import PositionKey
from bridge.dispatch.single.single_dispatcher import SingleDispatcher
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.protocol.pulsar_pb2 import CommandAck


def entry_by_entry(
    dispatcher: SingleDispatcher[TrackedConsumer],
    pending_acks: PendingAcks[TrackedConsumer],
    consumer: TrackedConsumer,
    ack: CommandAck,
    exists: Callable[[PositionKey], bool | None],
) -> CommandAck:
    """The same ack of each entry that it covers, perhaps of none: then it does nothing but ask for an answer.

    What was acked in a transaction is for that to decide. `exists`: whether there is an entry at a position, None
    while nothing is known of the topic; of one beyond the end nothing follows for entries to come.
    """
    told = CommandAck()
    told.CopyFrom(ack)
    told.ack_type = CommandAck.Individual
    del told.message_id[:]
    for last in ack.message_id:  # there is one
        position = _signed(last.ledgerId), _signed(last.entryId)
        for_good = not ack.HasField("txnid_most_bits") and exists(position) is not False
        covered = dispatcher.ack_up_to(consumer, position, whole=not last.ack_set, for_good=for_good)
        for each in covered:
            if each in pending_acks:
                continue
            if each == position:
                told.message_id.add().CopyFrom(last)
            else:
                told.message_id.add(ledgerId=each[0], entryId=each[1])
    return told


def _signed(number: int) -> int:
    """Unsigned on the wire: what lies before the first entry of a ledger is 2^64-1 there."""
    return number - (1 << 64) if number >= 1 << 63 else number
