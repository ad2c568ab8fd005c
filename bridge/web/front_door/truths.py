"""What a bridge knows of the subscriptions of a topic partition that it owns, and the broker does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.dispatch.dispatcher import ConsumerState
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.protocol.sent import Rates, Sent
from bridge.topics.tracked_topic import TrackedTopic
from bridge.web.request.shown import index_shown, subscriptions_shown
from tracker import SubscriptionView, TopicIndex


@dataclass(frozen=True)
class Dispatched:
    """What the bridge has dispatched, to one consumer or to all of a subscription; `last_ms`: 0 before the first."""

    messages: int = 0
    bytes: int = 0
    rates: Rates = field(default_factory=Rates)
    last_ms: int = 0
    unacked: int = 0


@dataclass(frozen=True)
class ConsumerTruth:
    """Of one consumer; `address` is the client's own."""

    address: str
    permits: int
    blocked: bool
    dispatched: Dispatched


@dataclass(frozen=True)
class Truth:
    """Of one tracked subscription; `consumers` by their marks."""

    delayed: int = 0
    in_replay: int = 0
    dispatched: Dispatched = field(default_factory=Dispatched)
    consumers: Mapping[str, ConsumerTruth] = field(default_factory=dict)


@dataclass(frozen=True)
class Truths:
    """Of a topic partition, by subscription. `remark`: in what they may be wrong; None where they are not."""

    subscriptions: Mapping[str, Truth]
    remark: str | None = None


def truths_of(topic: TrackedTopic, now_ms: int, exactly_entries: int) -> Truths | None:
    """What is known here of a topic partition; None where another bridge owns it, or nobody serves it."""
    index = index_shown(topic)
    if index is None:
        return None
    views, shown = index.views(), subscriptions_shown(topic)
    found = {
        name: _truth(index, views.get(name), shown.get(name), now_ms, exactly_entries) for name in {*views, *shown}
    }
    missing = sorted(name for name, view in views.items() if not view.covered)
    if missing:
        return Truths(found, f"delayed messages are being read in: {', '.join(missing)[:200]}")
    return Truths(found, "nobody was connected since" if topic.role == "idle" else None)


def _truth(
    index: TopicIndex,
    view: SubscriptionView | None,
    subscription: TrackedSubscription | None,
    now_ms: int,
    exactly_entries: int,
) -> Truth:
    held_back = subscription is None or subscription.delays
    delayed = _not_due(index, view, now_ms, exactly_entries) if view is not None and held_back else 0
    if subscription is None:
        return Truth(delayed)
    states = subscription.dispatcher.consumers
    unacked = sum(state.unacked_messages for state in states)
    return Truth(
        delayed,
        subscription.to_redeliver,
        _dispatched(subscription.stats.sent, now_ms, unacked),
        {state.consumer.mark: _consumer(state, now_ms) for state in states if not state.consumer.passed},
    )


def _consumer(state: ConsumerState[TrackedConsumer], now_ms: int) -> ConsumerTruth:
    dispatched = _dispatched(state.consumer.sent, now_ms, state.unacked_messages)
    return ConsumerTruth(state.consumer.peer, state.permits, state.blocked, dispatched)


def _dispatched(sent: Sent, now_ms: int, unacked: int) -> Dispatched:
    return Dispatched(sent.messages, sent.bytes, sent.rates(now_ms), sent.last_ms, unacked)


def _not_due(index: TopicIndex, view: SubscriptionView, now_ms: int, exactly_entries: int) -> int:
    span = index.table.span()
    if span is None:
        return 0
    width = index.partition_width_ms
    start, end = now_ms + 1, (span[1] + 1) * width
    if start >= end:
        return 0
    if index.table.entries_in(start // width) <= exactly_entries:
        return index.counts.between(start, end, view)
    return index.counts.about(start, [end], view)[0]
