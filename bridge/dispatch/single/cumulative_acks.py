"""Acks up to a position, as the broker is told of them: entry by entry, for what waits for its time is not acked."""

from bridge.dispatch.pending_acks import PendingAcks
from bridge.dispatch.single.single_dispatcher import SingleDispatcher
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.protocol.pulsar_pb2 import CommandAck


def entry_by_entry(
    dispatcher: SingleDispatcher[TrackedConsumer],
    pending_acks: PendingAcks[TrackedConsumer],
    consumer: TrackedConsumer,
    ack: CommandAck,
) -> CommandAck:
    """The same ack of each entry that it covers, perhaps of none: then it does nothing but ask for an answer.

    What was acked in a transaction is for that to decide.
    """
    told = CommandAck()
    told.CopyFrom(ack)
    told.ack_type = CommandAck.Individual
    del told.message_id[:]
    for last in ack.message_id:  # there is one
        position = last.ledgerId, last.entryId
        for_good = not ack.HasField("txnid_most_bits")
        covered = dispatcher.ack_up_to(consumer, position, whole=not last.ack_set, for_good=for_good)
        for each in covered:
            if each in pending_acks:
                continue
            if each == position:
                told.message_id.add().CopyFrom(last)
            else:
                told.message_id.add(ledgerId=each[0], entryId=each[1])
    return told
