"""Keeps dispatch to the broker's policies: they are asked for before a subscription is dispatched, and ever again.

What cannot be read stays as it was known last; before anything was known, Pulsar's defaults hold.
"""

import asyncio

import structlog

from bridge.broker.policies import PolicyReader, TopicPolicies
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.limits import TopicLimits
from bridge.topics.context import BridgeContext
from bridge.topics.subscriptions import Subscriptions

log = structlog.get_logger(__name__)


class PolicyWatch:
    """One per time as owner of a topic partition."""

    def __init__(self, topic: str, context: BridgeContext, subscriptions: Subscriptions) -> None:
        """`subscriptions` may change at any time; they are told what holds for them."""
        self._topic = topic
        self._reader = PolicyReader(context.admin, topic)
        self._subscriptions = subscriptions
        self._limits: TopicLimits = context.limits.topics
        self._known = TopicPolicies()
        self._asked = False
        self._told: set[str] = set()  # subscriptions of which nothing has to be known before they are dispatched
        self._trouble: str | None = None

    async def run(self) -> None:
        """Look at the policies every `policies_look_s`, for as long as there are consumers they matter to."""
        while True:
            await asyncio.sleep(self._limits.policies_look_s)
            if self._subscriptions.have_consumers:
                await self._look()

    async def before_dispatch(self, subscription: TrackedSubscription) -> None:
        """Have the policies hold for a subscription that is about to be dispatched.

        A broker that does not say within `policies_wait_s` holds nothing up: it is asked again later.
        """
        if subscription.name in self._told:
            return
        self._told.add(subscription.name)
        try:
            async with asyncio.timeout(self._limits.policies_wait_s):
                if not self._asked:
                    await self._look_at_topic()
                await self._look_at(subscription)
        except TimeoutError:
            self._note(["the broker does not answer in time"])
        subscription.set_policies(self._known)

    async def _look(self) -> None:
        reasons = await self._look_at_topic()
        for subscription in list(self._subscriptions.values()):
            subscription.set_policies(self._known)
            if subscription.has_consumers:
                reasons += await self._look_at(subscription)
        self._note(reasons)

    async def _look_at_topic(self) -> list[str]:
        self._known, reasons = await self._reader.topic_policies(self._known)
        self._asked = True
        self._subscriptions.rate.set_rate(self._known.rate, asyncio.get_running_loop().time())
        return reasons

    async def _look_at(self, subscription: TrackedSubscription) -> list[str]:
        known = subscription.throttle.subscription.rate
        rate, reasons = await self._reader.subscription_rate(subscription.name, known)
        subscription.set_rate(rate)
        return reasons

    def _note(self, reasons: list[str]) -> None:
        """Say once that policies cannot be read, as long as it lasts."""
        trouble = reasons[0] if reasons else None
        if trouble is not None and self._trouble is None:
            log.warning("cannot read policies, those known last hold", topic=self._topic, reason=trouble)
        self._trouble = trouble
