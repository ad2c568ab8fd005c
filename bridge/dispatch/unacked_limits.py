"""How much may be unacked, by the broker's policies and by what the bridge has memory for. Pure.

Both limits are told in messages, and 0 is none. A consumer, or a subscription, that reaches its limit is blocked until
half of it is acked (source: `Consumer.updateBlockedConsumerOnUnackedMsgs`,
`PersistentDispatcherMultipleConsumers.addUnAckedMessages`).
"""

from typing import NamedTuple


class UnackedLimits(NamedTuple):
    """Messages; 0: no limit."""

    per_consumer: int
    per_subscription: int

    def room_of_consumer(self, unacked: int, most: int) -> int:
        """How many of `most` messages a consumer may get that is not blocked; less than 1 where it is too late."""
        return min(most, self.per_consumer - unacked) if self.per_consumer else most

    def consumer_is_blocked(self, unacked: int, *, before: bool) -> bool:
        """Whether nothing may go to a consumer; `before`: as it was until now."""
        limit = self.per_consumer
        return limit > 0 and (unacked >= limit or (before and unacked > limit // 2))

    def subscription_is_blocked(self, unacked: int, *, before: bool) -> bool:
        """The same for what is new of a subscription: what is due, or delivered again, is not held back by it."""
        limit = self.per_subscription
        return limit > 0 and (unacked >= limit or (before and unacked >= limit // 2))
