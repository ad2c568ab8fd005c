"""What lies ahead of a topic partition: the broker's policies, the rates consumers have shown, forecasts, warnings."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import replace

import structlog

from bridge.broker.acknowledger import ACKNOWLEDGER_NAME
from bridge.broker.admin import AdminClient
from bridge.broker.answers import TopicStats
from bridge.dispatch.subscription_stats import SubscriptionStats
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.limits import OperatorLimits
from bridge.operate.storm import Forecast, SecondsOnDisk, forecast
from bridge.operate.waiting import DeliveryState, RecentLateness
from bridge.operate.warnings import OperatorWarning, Policies, ShownRate, topic_warnings
from bridge.refill.rebuild_status import RebuildStatus
from tracker import Position, SubscriptionView, TopicIndex

log = structlog.get_logger(__name__)

_STORAGE, _AGE = "destination_storage", "message_age"


class Outlook:
    """One per tracked topic partition."""

    def __init__(self, topic: str, subscriptions: Mapping[str, TrackedSubscription], limits: OperatorLimits) -> None:
        """`subscriptions` may change at any time."""
        self.harvest_lag: int | None = None
        """Entries of the topic that were not read yet, as of the last look: at least so many."""
        self._topic = topic
        self._subscriptions = subscriptions
        self._limits = limits
        self._policies = Policies()
        self._past_before: dict[str, set[str]] = {}
        self._asked_s = -math.inf
        self._shown: dict[str, ShownRate] = {}
        self._lateness: dict[str, RecentLateness] = {}
        self._seconds = SecondsOnDisk(limits)
        self._forecasts: dict[str, Forecast] = {}
        self._warnings: list[OperatorWarning] = []
        self._looked_ms = 0
        self._logged: set[tuple[str, str | None]] = set()

    def forget(self) -> None:
        """What was seen is not so any more: another bridge may own the topic partition."""
        self.harvest_lag, self._policies, self._asked_s, self._looked_ms = None, Policies(), -math.inf, 0
        self._past_before.clear()
        self._forecasts.clear()
        self._warnings = []

    def sample(self, now_s: float) -> None:
        """Note how much was acked by now, and how late deliveries were."""
        for known in (self._lateness, self._shown):
            for name in [each for each in known if each not in self._subscriptions]:
                known.pop(name)
        for name, subscription in self._subscriptions.items():
            self._lateness.setdefault(name, RecentLateness(self._limits)).note(now_s, subscription.stats)
            self._shown.setdefault(name, ShownRate()).note(now_s, subscription.stats.acked)

    def shown_rate(self, name: str) -> float:
        """The messages a second that a subscription's consumers have shown to take."""
        known = self._shown.get(name)
        return 0.0 if known is None else known.per_second

    def forecast(self, name: str) -> Forecast | None:
        """The busiest time ahead, as of the last look."""
        return self._forecasts.get(name)

    async def ask_broker(self, admin: AdminClient, harvested: Position | None) -> TopicStats:
        """Take in what the broker says of consumers, and now and then ask it for its policies. Raises AdminError."""
        stats = await admin.topic_stats(self._topic)
        last = await admin.last_position(self._topic)
        self.harvest_lag = None if harvested is None else _entries_between(harvested, last)
        now_s = asyncio.get_running_loop().time()
        if now_s - self._asked_s > self._limits.policies_kept_s:
            self._asked_s = now_s
            ttl_s, quotas = await admin.message_ttl_s(self._topic), await admin.backlog_quotas(self._topic)
            storage, age = quotas.get(_STORAGE, {}), quotas.get(_AGE, {})
            self._policies = replace(
                self._policies,
                message_ttl_s=ttl_s,
                quota_bytes=_limit(storage.get("limitSize", storage.get("limit"))),
                quota_age_s=_limit(age.get("limitTime")),
            )
        self._policies = replace(
            self._policies,
            delays=await admin.delays(self._topic, self._policies.delays),
            backlog_bytes=stats.backlog_bytes,
            pinned_bytes=stats.backlog_by_subscription,
            unbridged={name: self._unbridged(name, stats.consumers.get(name, [])) for name in self._subscriptions},
        )
        self._looked_ms = 0
        return stats

    @property
    def delays(self) -> bool:
        """Whether the broker's policies let messages be delayed, as of the last look."""
        return self._policies.delays

    async def look_ahead(self, index: TopicIndex, now_ms: int) -> None:
        """Look into the largest time partitions of the next day."""
        await self._seconds.look(index, now_ms)

    def unbridged(self) -> dict[str, int]:
        """How many consumers reach each subscription past the bridge, as of the last look."""
        return {name: len(consumers) for name, consumers in self._policies.unbridged.items()}

    def _unbridged(self, name: str, at_broker: list[str]) -> tuple[str, ...]:
        """Seen at two looks in a row: after a takeover consumers of the former owner's are still on their way here."""
        known = {state.consumer.name for state in self._subscriptions[name].dispatcher.consumers}
        past = {*at_broker} - known - {ACKNOWLEDGER_NAME}
        before, self._past_before[name] = self._past_before.get(name, set()), past
        return tuple(sorted(past & before))

    def warnings(self, index: TopicIndex | None, now_ms: int, rebuild: RebuildStatus | None) -> list[OperatorWarning]:
        """What is wrong, or will be; looked at anew after a few seconds."""
        if index is None:
            return []
        if now_ms - self._looked_ms >= self._limits.warnings_kept_ms or now_ms < self._looked_ms:
            self._looked_ms = now_ms
            self._forecasts = {
                name: ahead
                for name, view in index.views().items()
                if self.delays
                and (ahead := forecast(index, view, now_ms, self.shown_rate(name), self._seconds.looked)) is not None
            }
            states = {name: self._delivery_state(index, view, now_ms) for name, view in index.views().items()}
            error = None if rebuild is None or rebuild.state != "failed" else rebuild.error
            self._warnings = topic_warnings(index, self._policies, self._forecasts, now_ms, self._limits, error, states)
            self._log()
        return self._warnings

    def _delivery_state(self, index: TopicIndex, view: SubscriptionView, now_ms: int) -> DeliveryState:
        subscription = self._subscriptions.get(view.name)
        first = index.first_waiting_ms(view)
        lately = RecentLateness(self._limits).lately(SubscriptionStats())
        if subscription is None:
            return DeliveryState(0 if first is None else now_ms - first, 0, False, False, lately)
        if (ready := subscription.oldest_ready_ms()) is not None:
            first = ready if first is None else min(first, ready)
        if view.name in self._lateness:
            lately = self._lateness[view.name].lately(subscription.stats)
        consumers = subscription.dispatcher.consumers
        return DeliveryState(
            0 if first is None else now_ms - first,
            len(consumers),
            subscription.dispatcher.capacity() > 0,
            any(each.blocked for each in consumers),
            lately,
        )

    def _log(self) -> None:
        """Say each once, as long as it lasts."""
        known = {(one.code, one.subscription) for one in self._warnings}
        for one in self._warnings:
            if (one.code, one.subscription) not in self._logged:
                log.warning("warning", topic=self._topic, code=one.code, reason=one.text)
        self._logged = known


def _limit(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _entries_between(harvested: Position, last: Position) -> int:
    """Of ledgers in between nobody knows here how long they are."""
    first = harvested.entry + 1 if harvested.ledger == last.ledger else 0
    return max(last.entry + 1 - first, 0) if last > harvested else 0
