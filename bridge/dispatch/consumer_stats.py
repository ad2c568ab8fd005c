"""What a client is told of its own consumer: a broker sees one with 0 permits that it sends nothing."""

from bridge.dispatch.dispatcher import ConsumerState
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.protocol.pulsar_pb2 import CommandConsumerStatsResponse


def complete(told: CommandConsumerStatsResponse, state: ConsumerState[TrackedConsumer], now_ms: int) -> None:
    """Change the broker's answer to what is true of a consumer that the bridge dispatches to.

    Source of what the fields mean: `ServerCnx.createConsumerStatsResponse`.
    """
    rates = state.consumer.sent.rates(now_ms)
    told.msgRateOut, told.msgThroughputOut, told.msgRateRedeliver = rates.messages, rates.bytes, rates.again
    told.availablePermits = max(state.permits, 0)
    told.unackedMessages = state.unacked_messages
    told.blockedConsumerOnUnackedMsgs = state.blocked
    told.address = f"/{state.consumer.peer}"
