"""What REST answers, read from the bridge's state at that moment; field names as Pulsar's REST writes them."""

import asyncio
import json
from itertools import islice
from typing import Literal

from bridge import answers
from bridge.dispatch.dispatcher import Again, ConsumerState
from bridge.dispatch.subscription_stats import Cause, Lateness, SubscriptionStats
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.protocol.single_active import Sharing, SingleActive
from bridge.refill.snapshots.writing import SnapshotStatus
from bridge.topics.tracked_topic import TrackedTopic
from bridge.web.request.shown import index_shown, subscriptions_shown
from bridge.web.rest.answering import Written
from tracker import SubscriptionView, TimePartition, TopicIndex

DUE_WITHIN_S = (60, 3_600, 86_400)
"""A minute, an hour, a day: what comes due within is told."""


def topic_row(topic: TrackedTopic) -> answers.TopicRow:
    """One row of the list of tracked topic partitions."""
    return {**_summary(topic), "warnings": len(topic.warnings())}


def _summary(topic: TrackedTopic) -> answers.TopicSummary:
    index = index_shown(topic)
    harvested = None if index is None else index.harvested_position
    stats = None if index is None else [each.stats for each in subscriptions_shown(topic).values()]
    rebuild, ready_up_to = topic.last_rebuild, topic.standby_position
    return {
        "topic": topic.topic,
        "role": topic.role,
        "reason": topic.reason,
        "owner": topic.owner,
        "ownerWebUrl": topic.owner_web_url,
        "harvestedPosition": None if harvested is None else str(harvested),
        "standbyPosition": None if ready_up_to is None else str(ready_up_to),
        "entries": None if index is None else index.entries,
        "storageSize": None if index is None else index.bytes,
        "memoryEntries": None if index is None else len(index.window),
        "memorySize": None if index is None else index.window.bytes_held,
        "pending": None if index is None else pending_in(index),
        "earliestDeliverAt": earliest_ms(topic),
        "latenessP99Ms": (
            None if stats is None else max((each.lateness.percentile(0.99) for each in stats), default=0)
        ),
        "early": None if stats is None else sum(each.early for each in stats),
        "rebuild": None if rebuild is None else rebuild.state,
    }


def topic_stats(topic: TrackedTopic) -> answers.Stats:
    """A tracked topic partition with its subscriptions."""
    index = index_shown(topic)
    views = {} if index is None else index.views()
    names = sorted({*views, *subscriptions_shown(topic)})
    return {
        **_summary(topic),
        "warnings": [each.answer() for each in topic.warnings()],
        "timePartitions": None if index is None else len(index.table),
        "latestDeliverAt": None if index is None else index.latest_ms(),
        "damagedPartitions": None if index is None else len(index.damage.ranges),
        "snapshot": None if topic.snapshot is None else _snapshot(topic.snapshot),
        "subscriptions": {name: _subscription(topic, name, views.get(name), index) for name in names},
    }


def _snapshot(status: SnapshotStatus) -> answers.Snapshot:
    return {
        "madeAt": status.made_at_ms,
        "entries": status.entries,
        "size": status.bytes,
        "written": status.written,
        "error": status.error,
    }


def pending_in(index: TopicIndex) -> int:
    """What the subscriptions have not acked, added up."""
    return sum(map(index.counts.pending, index.views().values()))


def earliest_ms(topic: TrackedTopic) -> int | None:
    """When the next pending entry is due that nobody was given yet."""
    index = index_shown(topic)
    if index is None or not index.entries:
        return None
    found = [index.first_waiting_ms(view) for view in index.views().values()]
    return min((due_ms for due_ms in found if due_ms is not None), default=None)


def due_within(index: TopicIndex, view: SubscriptionView, now_ms: int) -> list[int]:
    """About how many entries a subscription has pending that come due within each of DUE_WITHIN_S."""
    return index.counts.about(now_ms, [now_ms + bound * 1000 for bound in DUE_WITHIN_S], view)


async def partition_table(
    topic: TrackedTopic, now_ms: int, at_a_time: int, subscription: str | None = None
) -> Written[answers.Partitions]:
    """The sizes of the time partitions; times in epoch ms, sizes in bytes before compression.

    There may be hundreds of thousands: others get their turn in between.
    """
    index = index_shown(topic)
    if index is None:
        return Written(json.dumps({"widthMs": None, "partitions": []}))
    rows: list[str] = []
    from_ms = 0
    while part := list(islice(index.partitions(now_ms, from_ms), at_a_time)):
        views = {name: view for name, view in index.views().items() if subscription in (None, name)}
        rows += [json.dumps(_partition(index, views, partition)) for partition in part]
        from_ms = part[-1].end_ms
        await asyncio.sleep(0)
    return Written(f'{{"widthMs": {index.partition_width_ms}, "partitions": [{", ".join(rows)}]}}')


def _partition(
    index: TopicIndex, views: dict[str, SubscriptionView], partition: TimePartition
) -> answers.TimePartition:
    return {
        "start": partition.start_ms,
        "end": partition.end_ms,
        "entries": partition.entries,
        "bytes": partition.bytes,
        "tier": partition.tier,
        "state": partition.state.value,
        "pending": {name: index.pending_in(view, partition) for name, view in views.items()},
    }


def _type_of(sharing: Sharing) -> Literal["Shared", "Key_Shared", "Exclusive", "Failover"]:
    if isinstance(sharing, SingleActive):
        return sharing.name
    return "Shared" if sharing is None else "Key_Shared"


def _subscription(
    topic: TrackedTopic, name: str, view: SubscriptionView | None, index: TopicIndex | None
) -> answers.Subscription:
    subscription = subscriptions_shown(topic).get(name)  # None while nobody was connected since this bridge took over
    forecast = topic.outlook.forecast(name)
    books = None if topic.tenure is None else topic.tenure.books.latest.get(name)
    stats = SubscriptionStats() if subscription is None else subscription.stats
    dispatcher = None if subscription is None else subscription.dispatcher
    return {
        "type": _type_of(None if subscription is None else subscription.sharing),
        "dispatching": subscription is not None and subscription.dispatching,
        "pending": None if view is None or index is None else index.counts.pending(view),
        "pendingSettled": view is not None and view.counter.settled,
        "markDeletePosition": None if view is None else str(view.mark_delete_position),
        "ackHoles": None if view is None else view.acks.holes,
        "ready": 0 if subscription is None else subscription.waiting,
        "inFlight": 0 if dispatcher is None else len(dispatcher.unacked),
        "toRedeliver": 0 if subscription is None else subscription.to_redeliver,
        "delivered": stats.delivered,
        "acked": stats.acked,
        "cancelled": stats.cancelled,
        "expedited": stats.expedited,
        "redelivered": stats.redelivered,
        "duplicates": {again.value: stats.duplicates[again] for again in Again},
        "books": None if books is None else books.answer(),
        "early": stats.early,
        "acksRepaired": stats.repaired,
        "lateness": lateness_answer(stats.lateness),
        "latenessCauses": {cause.value: stats.causes[cause] for cause in Cause},
        "consumers": [] if dispatcher is None else [_consumer(state) for state in dispatcher.consumers],
        "shownPerSecond": round(topic.outlook.shown_rate(name), 1),
        "forecast": None if forecast is None else forecast.answer(),
    }


def lateness_answer(lateness: Lateness) -> answers.Lateness:
    """Percentiles, each the upper bound of its bucket."""
    return {
        "count": lateness.count,
        "p50Ms": lateness.percentile(0.5),
        "p99Ms": lateness.percentile(0.99),
        "p999Ms": lateness.percentile(0.999),
        "maxMs": lateness.max_ms,
    }


def _consumer(state: ConsumerState[TrackedConsumer]) -> answers.Consumer:
    return {
        "consumerName": state.consumer.name,
        "address": state.consumer.peer,
        "priorityLevel": state.priority_level,
        "availablePermits": state.permits,
        "unackedMessages": state.unacked_messages,
        "blockedOnUnackedMessages": state.blocked,
        "delivered": state.delivered,
    }
