"""The broker's statistics of a topic, completed by what the bridge knows that dispatches it. Pure.

Field names and how partitions add up: the broker's `TopicStatsImpl`, `SubscriptionStatsImpl` and `ConsumerStatsImpl`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from bridge.broker.answers import MARK_METADATA
from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from bridge.web.front_door.truths import ConsumerTruth, Dispatched, Truth

Stats = dict[str, Any]

_OUT: Final = ("msgOutCounter", "bytesOutCounter", "msgRateOut", "msgThroughputOut")
_ADDED: Final = (*_OUT, "msgRateRedeliver", "msgDelayed", "msgBacklogNoDelayed", "unackedMessages", "msgInReplay")
_ADDED_OF_CONSUMERS: Final = (*_OUT, "msgRateRedeliver", "availablePermits", "unackedMessages")


def filled(stats: Mapping[str, Any], truths: Mapping[str, Truth], *, show_own: bool = False) -> Stats:
    """Those of a topic partition that a bridge dispatches.

    What the broker dispatched by itself, before or to others, stays counted. Raises whatever an answer causes that is
    none: KeyError, TypeError, ValueError, AttributeError.
    """
    subscriptions = {
        name: _subscription(one, truths[name]) if name in truths else one
        for name, one in stats["subscriptions"].items()
    }
    return with_subscriptions(stats, subscriptions, show_own=show_own)


def with_subscriptions(stats: Mapping[str, Any], found: Mapping[str, Any], *, show_own: bool = False) -> Stats:
    """The topic with these subscriptions, but for the bridge's own; its counts of what went out are their sums."""
    told = {name: one for name, one in found.items() if show_own or not is_own(name)}
    others = [one for name, one in found.items() if not is_own(name)]
    changed = dict(stats) | {"subscriptions": told}
    for name in _OUT:
        if name in stats:
            changed[name] = sum(one.get(name, 0) for one in others)
    return changed


def is_own(subscription: str) -> bool:
    """Whether a subscription is a bridge's: to elect the owner of a topic, or to read it."""
    return subscription.startswith(HIDDEN_SUBSCRIPTION)


def has_own(stats: Mapping[str, Any]) -> bool:
    """Whether a bridge stands or reads there."""
    return any(map(is_own, stats["subscriptions"]))


def added_up(
    total: Mapping[str, Any], before: Iterable[Stats], after: Iterable[Stats], *, show_own: bool = False
) -> Stats:
    """Those of a partitioned topic, where the broker added `before` up to `total`, and `after` is what is true."""
    subscriptions = {name: dict(one) for name, one in total["subscriptions"].items()}
    for old, new in zip(before, after, strict=True):
        for name, one in new["subscriptions"].items():
            if name in subscriptions and name in old["subscriptions"]:
                _add(subscriptions[name], old["subscriptions"][name], one)
    return with_subscriptions(total, subscriptions, show_own=show_own)


def _subscription(one: Mapping[str, Any], truth: Truth) -> Stats:
    changed = dict(one) | _dispatched(one, truth.dispatched)
    # For a consumer that came past the bridge the broker delays too, and counts the same messages.
    changed["msgDelayed"] = max(one.get("msgDelayed", 0), truth.delayed)
    changed["msgBacklogNoDelayed"] = max(one["msgBacklog"] - changed["msgDelayed"], 0)
    changed["msgInReplay"] = one.get("msgInReplay", 0) + truth.in_replay
    changed["consumers"] = [_consumer(each, truth.consumers) for each in one["consumers"]]
    return changed


def _consumer(each: Mapping[str, Any], truths: Mapping[str, ConsumerTruth]) -> Stats:
    metadata = each.get("metadata") or {}
    truth = truths.get(metadata.get(MARK_METADATA, ""))
    if truth is None:
        return dict(each)
    changed = dict(each) | _dispatched(each, truth.dispatched)
    changed["availablePermits"] = truth.permits
    changed["blockedConsumerOnUnackedMsgs"] = truth.blocked
    changed["address"] = f"/{truth.address}"
    changed["metadata"] = {name: value for name, value in metadata.items() if name != MARK_METADATA}
    if "lastConsumedTime" in each:
        changed["lastConsumedTime"] = _in_words(changed["lastConsumedTimestamp"])
    return changed


def _dispatched(one: Mapping[str, Any], more: Dispatched) -> Stats:
    rates = more.rates
    return {
        "msgOutCounter": one.get("msgOutCounter", 0) + more.messages,
        "bytesOutCounter": one.get("bytesOutCounter", 0) + more.bytes,
        "msgRateOut": one.get("msgRateOut", 0.0) + rates.messages,
        "msgThroughputOut": one.get("msgThroughputOut", 0.0) + rates.bytes,
        "msgRateRedeliver": one.get("msgRateRedeliver", 0.0) + rates.again,
        "unackedMessages": one.get("unackedMessages", 0) + more.unacked,
        "lastConsumedTimestamp": max(one.get("lastConsumedTimestamp", 0), more.last_ms),
    }


def _add(total: Stats, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for name in _ADDED:
        total[name] = total.get(name, 0) + new.get(name, 0) - old.get(name, 0)
    total["lastConsumedTimestamp"] = max(total.get("lastConsumedTimestamp", 0), new.get("lastConsumedTimestamp", 0))
    more: dict[str, Counter[str]] = {}
    for sign, part in ((-1, old), (1, new)):
        for each in part["consumers"]:
            of_name = more.setdefault(each["consumerName"], Counter())
            for name in _ADDED_OF_CONSUMERS:
                of_name[name] += sign * each.get(name, 0)
    # The broker adds consumers of a name up, and leaves out where they are and when they got something last.
    total["consumers"] = [
        {**each, **{name: each.get(name, 0) + count for name, count in more.pop(each["consumerName"], {}).items()}}
        for each in total["consumers"]
    ]


def _in_words(epoch_ms: int) -> str:
    """As Java's `Instant` writes it."""
    moment = datetime.fromtimestamp(epoch_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds" if epoch_ms % 1000 else "seconds").replace("+00:00", "Z")
