"""The tracked subscriptions of one topic partition, dispatched here or not."""

import contextlib
from collections.abc import Callable

from bridge.clock import RandBits
from bridge.dispatch.rate_limit import RateLimiter
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.limits import DispatchLimits
from bridge.protocol.service_url import ServiceUrls


class Subscriptions(dict[str, TrackedSubscription]):
    """By name."""

    def __init__(
        self,
        topic: str,
        wake: Callable[[], None],
        delays: Callable[[], bool],
        limits: DispatchLimits,
        randbits: RandBits,
    ) -> None:
        """`wake`: one of them may have something to send; `delays`: whether the broker's policies allow them."""
        super().__init__()
        self.rate = RateLimiter()
        """Of the topic: what all of them together may send."""
        self._topic = topic
        self._wake = wake
        self._delays = delays
        self._limits = limits
        self._randbits = randbits

    def opened(self, name: str) -> TrackedSubscription:
        """The one of a name, made when it is not known yet."""
        subscription = self.get(name)
        if subscription is None:
            subscription = self[name] = TrackedSubscription(
                name, self._topic, self._wake, self._limits, self._randbits, self.rate
            )
            subscription.delays = self._delays()
        return subscription

    @property
    def have_consumers(self) -> bool:
        """Whether any client is attached."""
        return any(subscription.has_consumers for subscription in self.values())

    def stop(self) -> None:
        """Dispatch none of them any more."""
        with contextlib.ExitStack() as each:  # whatever becomes of the others
            for subscription in self.values():
                each.callback(subscription.stop)

    def send_consumers_away(self, to: ServiceUrls | None) -> None:
        """Close every consumer; the clients go to another bridge, or look up anew."""
        for consumer in self.consumers():
            consumer.close(to)

    def consumers(self) -> list[TrackedConsumer]:
        """Those that are attached."""
        return [state.consumer for subscription in self.values() for state in subscription.dispatcher.consumers]
