"""Keeps dispatch to the broker's policies: they are asked for before a subscription is dispatched, and ever again."""

import asyncio

import structlog

from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.limits import TopicLimits
from bridge.net.waiting import is_set_within
from bridge.topics.context import BridgeContext
from bridge.topics.known_policies import KnownPolicies
from bridge.topics.subscriptions import Subscriptions

log = structlog.get_logger(__name__)


class PolicyWatch:
    """One per time as owner of a topic partition."""

    def __init__(
        self, topic: str, context: BridgeContext, subscriptions: Subscriptions, known: KnownPolicies | None = None
    ) -> None:
        """`subscriptions` may change at any time; they are told what holds for them. `known`: from before."""
        self._topic = topic
        self._subscriptions = subscriptions
        self._limits: TopicLimits = context.limits.topics
        self._known = KnownPolicies(context.admin, topic) if known is None else known
        self._asked = False
        self._told: set[str] = set()  # subscriptions of which nothing has to be known before they are dispatched
        self._look_now = asyncio.Event()
        self._trouble: str | None = None

    async def run(self) -> None:
        """Look at the policies every `policies_look_s`, for as long as there are consumers they matter to."""
        while True:
            await is_set_within(self._look_now, self._limits.policies_look_s)
            self._look_now.clear()
            if self._subscriptions.have_consumers:
                await self._look()

    async def before_dispatch(self, subscription: TrackedSubscription) -> None:
        """Have the policies hold for a subscription that is about to be dispatched.

        Those that this bridge knew as a standby hold until they are asked for anew, which is at once. A broker that
        does not say within `policies_wait_s` holds nothing up: it is asked again later.
        """
        name = subscription.name
        if name in self._told:
            return
        self._told.add(name)
        if self._known.age_s(name) < self._limits.policies_fresh_s:
            self._look_now.set()
        else:
            await self._ask_for(name)
        self._tell_topic()
        self._tell(subscription)

    async def _ask_for(self, name: str) -> None:
        try:
            async with asyncio.timeout(self._limits.policies_wait_s):
                reasons = await (self._known.look_at(name) if self._asked else self._known.look([name]))
                self._asked = True
                self._note(reasons)
        except TimeoutError:
            self._note(["the broker does not answer in time"])

    async def _look(self) -> None:
        consumed = [name for name, each in self._subscriptions.items() if each.has_consumers]
        reasons = await self._known.look(consumed)
        self._asked = True
        self._tell_topic()
        for subscription in list(self._subscriptions.values()):
            self._tell(subscription)
        self._note(reasons)

    def _tell_topic(self) -> None:
        self._subscriptions.rate.set_rate(self._known.of_topic.rate, asyncio.get_running_loop().time())

    def _tell(self, subscription: TrackedSubscription) -> None:
        subscription.set_policies(self._known.of_topic)
        subscription.set_rate(self._known.rate_of(subscription.name))

    def _note(self, reasons: list[str]) -> None:
        """Say once that policies cannot be read, as long as it lasts."""
        trouble = reasons[0] if reasons else None
        if trouble is not None and self._trouble is None:
            log.warning("cannot read policies, those known last hold", topic=self._topic, reason=trouble)
        self._trouble = trouble
