"""What REST answers, read from the bridge's state at that moment; field names as Pulsar's REST writes them."""

import asyncio
import json
from itertools import islice
from typing import Any

from bridge import limits
from bridge.dispatcher import ConsumerState
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.tracked_subscription import TrackedSubscription
from bridge.tracked_topic import TrackedTopic
from tracker import SubscriptionView, TimePartition, TopicIndex


def topic_summary(topic: TrackedTopic) -> dict[str, Any]:
    """One row of the list of tracked topic partitions."""
    index = topic.index
    harvested = None if index is None else index.harvested_position
    return {
        "topic": topic.topic,
        "role": topic.role,
        "owner": topic.owner,
        "harvestedPosition": None if harvested is None else str(harvested),
        "entries": 0 if index is None else index.entries,
        "storageSize": 0 if index is None else index.bytes,
    }


def topic_stats(topic: TrackedTopic) -> dict[str, Any]:
    """A tracked topic partition with its subscriptions."""
    index = topic.index
    return {
        **topic_summary(topic),
        "memoryEntries": 0 if index is None else len(index.window),
        "memorySize": 0 if index is None else index.window.bytes_held,
        "timePartitions": 0 if index is None else len(index.table),
        "damagedPartitions": 0 if index is None else len(index.damage.ranges),
        "subscriptions": {name: _subscription(each, index) for name, each in topic.subscriptions.items()},
    }


async def partition_table(topic: TrackedTopic, now_ms: int) -> str:
    """The sizes of the time partitions, as JSON; times in epoch ms, sizes in bytes before compression.

    There may be hundreds of thousands: others get their turn in between.
    """
    index = topic.index
    if index is None:
        return json.dumps({"widthMs": None, "partitions": []})
    rows: list[str] = []
    from_ms = 0
    while part := list(islice(index.partitions(now_ms, from_ms), limits.PARTITION_SLICE)):
        views = index.views()
        rows += [json.dumps(_partition(index, views, partition)) for partition in part]
        from_ms = part[-1].end_ms
        await asyncio.sleep(0)
    return f'{{"widthMs": {index.partition_width_ms}, "partitions": [{", ".join(rows)}]}}'


def _partition(index: TopicIndex, views: dict[str, SubscriptionView], partition: TimePartition) -> dict[str, Any]:
    return {
        "start": partition.start_ms,
        "end": partition.end_ms,
        "entries": partition.entries,
        "bytes": partition.bytes,
        "tier": partition.tier,
        "state": partition.state.value,
        "pending": {name: index.pending_in(view, partition) for name, view in views.items()},
    }


def _subscription(subscription: TrackedSubscription, index: TopicIndex | None) -> dict[str, Any]:
    stats, dispatcher, view = subscription.stats, subscription.dispatcher, subscription.view
    lateness = stats.lateness
    return {
        "type": "Shared",
        "dispatching": subscription.dispatching,
        "pending": None if view is None or index is None else index.counts.pending(view),
        "pendingSettled": view is not None and view.counter.settled,
        "markDeletePosition": None if view is None else str(view.mark_delete_position),
        "inFlight": len(dispatcher.unacked),
        "toRedeliver": len(dispatcher.replay),
        "delivered": stats.delivered,
        "acked": stats.acked,
        "redelivered": stats.redelivered,
        "early": stats.early,
        "acksRepaired": stats.repaired,
        "lateness": {
            "count": lateness.count,
            "p50Ms": lateness.percentile(0.5),
            "p99Ms": lateness.percentile(0.99),
            "p999Ms": lateness.percentile(0.999),
            "maxMs": lateness.max_ms,
        },
        "consumers": [_consumer(state) for state in dispatcher.consumers],
    }


def _consumer(state: ConsumerState[TrackedConsumer]) -> dict[str, Any]:
    return {
        "consumerName": state.consumer.name,
        "address": state.consumer.peer,
        "priorityLevel": state.priority_level,
        "availablePermits": state.permits,
        "unackedMessages": state.unacked_messages,
        "blockedOnUnackedMessages": state.blocked,
        "delivered": state.delivered,
    }
