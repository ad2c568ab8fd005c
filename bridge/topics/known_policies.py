"""What the broker's policies about dispatch of a topic partition were when they were last asked for.

A standby asks for them now and then, so that it need not wait for them as the owner.
"""

import asyncio
import math
from collections.abc import Iterable

from bridge.broker.admin import AdminClient
from bridge.broker.policies import UNLIMITED, PolicyReader, Rate, TopicPolicies
from bridge.net.tasks import all_of


class KnownPolicies:
    """What cannot be read stays as it was known last; before anything was known, Pulsar's defaults hold."""

    def __init__(self, admin: AdminClient, topic: str) -> None:
        """Nothing is asked yet."""
        self.of_topic = TopicPolicies()
        self._rates: dict[str, Rate] = {}
        self._reader = PolicyReader(admin, topic)
        self._looked_s = -math.inf

    def age_s(self, subscription: str) -> float:
        """How long ago what holds for a subscription was asked for; infinite where it never was."""
        return asyncio.get_running_loop().time() - self._looked_s if subscription in self._rates else math.inf

    def rate_of(self, subscription: str) -> Rate:
        """The dispatch rate of a subscription, its own or that of all."""
        return self._rates.get(subscription, UNLIMITED)

    async def look(self, subscriptions: Iterable[str]) -> list[str]:
        """Ask for what holds for the topic and these subscriptions; returns why some stay as they were known."""
        asked_s = asyncio.get_running_loop().time()
        reasons = [
            each for one in await all_of([self._look_at_topic(), *map(self.look_at, subscriptions)]) for each in one
        ]
        self._looked_s = asked_s
        return reasons

    async def _look_at_topic(self) -> list[str]:
        self.of_topic, reasons = await self._reader.topic_policies(self.of_topic)
        return reasons

    async def look_at(self, subscription: str) -> list[str]:
        """The same for a subscription alone."""
        self._rates[subscription], reasons = await self._reader.subscription_rate(
            subscription, self.rate_of(subscription)
        )
        return reasons
