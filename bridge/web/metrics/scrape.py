"""What `/metrics` tells: read from the bridge's state when it is asked, nothing is counted for it on the way."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from bridge.clock import wall_clock_ms
from bridge.dispatch.dispatcher import Again
from bridge.dispatch.subscription_stats import LATENESS_BOUNDS_MS, Cause, Lateness
from bridge.net.failures import Part
from bridge.protocol.names import TopicName
from bridge.topics.tracked_topic import TrackedTopic
from bridge.web.metrics.exposition import Exposition, Family, escaped, labels_text
from bridge.web.neighbours.asking import Told
from bridge.web.neighbours.sums import metrics_as_one
from bridge.web.request.served import Served
from bridge.web.request.shown import index_shown, subscriptions_shown
from bridge.web.rest.views import DUE_WITHIN_S, due_within, earliest_ms
from tracker import SubscriptionView, TopicIndex
from tracker.partitions.lifecycle import partitions_in_memory

PREFIX = "pulsar_delay_bridge_"
BRIDGE = ("cluster",)
TOPIC = ("cluster", "namespace", "topic")
SUBSCRIPTION = (*TOPIC, "subscription")
ROLES = ("owner", "standby", "opening", "passed-through", "idle")
LATENESS_TOLD_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000, 600_000, 3_600_000)
"""Bounds of the lateness histogram as it is told: some of those it is kept with."""

assert set(LATENESS_TOLD_MS) <= set(LATENESS_BOUNDS_MS)

FAMILIES = (
    Family("client_connections", "gauge", "Connections of clients.", BRIDGE),
    Family("tls_handshake_failures_total", "counter", "Connections at the TLS port closed before they began.", BRIDGE),
    Family("tls_certificate_expires_seconds", "gauge", "When the TLS port's certificate ends, epoch seconds.", BRIDGE),
    Family("workers", "gauge", "Workers of this host, where it has several, serving or silent.", (*BRIDGE, "state")),
    Family("broker_connections", "gauge", "Connections to brokers: the bridge's own and those of clients.", BRIDGE),
    Family("clock_offset_seconds", "gauge", "How far at least the broker's clock is ahead of this machine's.", BRIDGE),
    Family("clock_steps_total", "counter", "How often this machine's clock was set, or stood still.", BRIDGE),
    Family("peer_clock_offset_seconds", "gauge", "The same of the clock of another bridge.", (*BRIDGE, "peer")),
    Family("failures_total", "counter", "Unexpected errors, by the part that began anew.", (*BRIDGE, "part")),
    Family("admin_failures_total", "counter", "Calls of the admin interface without a readable answer.", BRIDGE),
    Family("storage_failed", "gauge", "1 while nothing can be stored; what is due is delivered all the same.", BRIDGE),
    Family("disk_free_bytes", "gauge", "Free bytes where the data directory is.", BRIDGE),
    Family("disk_total_bytes", "gauge", "Bytes of the disk where the data directory is.", BRIDGE),
    Family("ownership", "gauge", "1 for the role this bridge has for a topic partition.", (*TOPIC, "role")),
    Family("standby_ready", "gauge", "1 where this bridge, a standby, can take over without reading the topic.", TOPIC),
    Family("not_served", "gauge", "1 while this bridge knows of no bridge that serves a topic partition.", TOPIC),
    Family("index_entries", "gauge", "Entries in the index, whoever needs them.", TOPIC),
    Family("index_memory_bytes", "gauge", "Bytes of entries that are due next, held in memory.", TOPIC),
    Family("index_disk_bytes", "gauge", "Key and value bytes of all entries, before compression.", TOPIC),
    Family("time_partitions", "gauge", "Time partitions with entries, by where they are.", (*TOPIC, "tier")),
    Family("damaged_time_partitions", "gauge", "Time partitions that are set aside and read again.", TOPIC),
    Family(
        "earliest_deliver_at_seconds",
        "gauge",
        "When the next entry is due that waits, epoch seconds.",
        TOPIC,
    ),
    Family("harvest_lag_entries", "gauge", "Entries of the topic that were not read yet, as of the last look.", TOPIC),
    Family("rebuild_progress_ratio", "gauge", "Share of the entries that a rebuild has read; 1 at its end.", TOPIC),
    Family("rebuild_seconds", "gauge", "How long the last rebuild took, or has taken so far.", TOPIC),
    Family("rebuild_failed", "gauge", "1 when the last rebuild failed.", TOPIC),
    Family("snapshot_age_seconds", "gauge", "How old the newest snapshot is, or how long there has been none.", TOPIC),
    Family("snapshot_bytes", "gauge", "Bytes of the newest snapshot's files.", TOPIC),
    Family("pending_entries", "gauge", "Delayed entries a subscription has not acked.", SUBSCRIPTION),
    Family(
        "due_within_entries",
        "gauge",
        "About how many pending entries come due within a time.",
        (*SUBSCRIPTION, "bound_seconds"),
    ),
    Family("ready_entries", "gauge", "Entries that are due and wait for permits.", SUBSCRIPTION),
    Family("in_flight_entries", "gauge", "Entries handed out and not acked.", SUBSCRIPTION),
    Family("ack_holes", "gauge", "Stretches of acked entries above the mark-delete position.", SUBSCRIPTION),
    Family("unbridged_consumers", "gauge", "Consumers that reach a subscription past the bridge.", SUBSCRIPTION),
    Family("delivered_total", "counter", "Messages sent to consumers.", SUBSCRIPTION),
    Family("acked_total", "counter", "Entries acked by consumers of this bridge.", SUBSCRIPTION),
    Family("cancelled_total", "counter", "Entries cancelled by operators.", SUBSCRIPTION),
    Family("redelivered_total", "counter", "Messages delivered again.", SUBSCRIPTION),
    Family(
        "duplicates_total",
        "counter",
        "Messages delivered again by this bridge, by why.",
        (*SUBSCRIPTION, "cause"),
    ),
    Family(
        "books_difference_entries",
        "gauge",
        "Entries that are in no place, or in several, as of the last look; stays 0.",
        SUBSCRIPTION,
    ),
    Family("early_deliveries_total", "counter", "Delayed entries sent before they were due; stays 0.", SUBSCRIPTION),
    Family("ack_repairs_total", "counter", "Acks the broker had forgotten, given to it again.", SUBSCRIPTION),
    Family(
        "lateness_cause_total",
        "counter",
        "First deliveries more than 100 ms late, by cause.",
        (*SUBSCRIPTION, "cause"),
    ),
    Family(
        "lateness_seconds",
        "histogram",
        "From the due time to the first delivery.",
        SUBSCRIPTION,
        tuple(str(bound / 1000) for bound in LATENESS_TOLD_MS),
    ),
)
_AGAIN = tuple((again, f',cause="{again}"') for again in Again)
_CAUSES = tuple((cause, f',cause="{cause}"') for cause in Cause)
_BOUNDS = tuple(f',bound_seconds="{bound}"' for bound in DUE_WITHIN_S)
_PLACES = tuple(LATENESS_BOUNDS_MS.index(bound) for bound in LATENESS_TOLD_MS)


async def exposition(bridge: Served, cluster: str) -> bytes:
    """Return the answer to a scrape; between topics others get their turn."""
    told = Exposition(PREFIX, FAMILIES)
    await _bridge_samples(told, bridge, cluster)
    topics = [] if bridge.topics is None else bridge.topics.all()
    for number, topic in enumerate(topics, 1):
        _topic_samples(told, topic, cluster)
        if number % bridge.limits.operators.scrape_slice == 0:
            await asyncio.sleep(0)
    return await asyncio.to_thread(told.text)


def exposition_of_all(own: bytes, others: Sequence[Told], cluster: str) -> bytes:
    """One answer for all workers of a host, each sample with whose it is, and how many are silent."""
    texts = [own.decode(), *(each.text if each.trouble is None else None for each in others)]
    told, labels = Exposition(PREFIX, FAMILIES), labels_text({"cluster": cluster})
    silent = texts.count(None)
    told.add("workers", f'{labels},state="serving"', len(texts) - silent)
    told.add("workers", f'{labels},state="silent"', silent)
    return metrics_as_one(texts) + told.text()


async def _bridge_samples(told: Exposition, bridge: Served, cluster: str) -> None:
    labels = labels_text({"cluster": cluster})
    told.add("client_connections", labels, 0 if bridge.gateway is None else bridge.gateway.connections)
    if bridge.certificate is not None:
        told.add("tls_handshake_failures_total", labels, bridge.failed_handshakes)
        told.add("tls_certificate_expires_seconds", labels, bridge.certificate.expires_s)
    told.add("broker_connections", labels, bridge.broker_connections)
    if bridge.clock_offset_s is not None:
        told.add("clock_offset_seconds", labels, bridge.clock_offset_s)
    told.add("clock_steps_total", labels, 0 if bridge.clock_steps is None else bridge.clock_steps.count)
    for peer, offset_ms in ({} if bridge.balance is None else bridge.balance.clock_offsets_ms).items():
        told.add("peer_clock_offset_seconds", labels_text({"cluster": cluster, "peer": peer}), offset_ms / 1000)
    told.add("admin_failures_total", labels, bridge.admin_failures)
    for part in Part:
        told.add("failures_total", f'{labels},part="{part}"', bridge.failures.counts[part])
    failed = bridge.topics is not None and bridge.topics.storage_failure is not None
    told.add("storage_failed", labels, int(failed))
    disk = await asyncio.to_thread(shutil.disk_usage, bridge.settings.data_dir)
    told.add("disk_free_bytes", labels, disk.free)
    told.add("disk_total_bytes", labels, disk.total)


def _topic_samples(told: Exposition, topic: TrackedTopic, cluster: str) -> None:
    labels = _topic_labels(cluster, topic.topic)
    for role in ROLES:
        told.add("ownership", f'{labels},role="{role}"', int(topic.role == role))
    if topic.role == "standby":
        told.add("standby_ready", labels, int(topic.standby_position is not None))
    told.add("not_served", labels, int(not topic.is_served))
    index = index_shown(topic)
    if index is not None:
        _index_samples(told, index, labels)
        if (due_ms := earliest_ms(topic)) is not None:
            told.add("earliest_deliver_at_seconds", labels, due_ms / 1000)
        _subscription_samples(told, topic, index, labels)
    if topic.role == "owner" and topic.outlook.harvest_lag is not None:
        told.add("harvest_lag_entries", labels, topic.outlook.harvest_lag)
    if topic.snapshot is not None:
        told.add("snapshot_age_seconds", labels, topic.snapshot.age_ms(wall_clock_ms()) / 1000)
        told.add("snapshot_bytes", labels, topic.snapshot.bytes)
    _rebuild_samples(told, topic, labels)


@lru_cache(maxsize=4_096)
def _topic_labels(cluster: str, topic: str) -> str:
    name = TopicName.parse(topic)
    return labels_text({"cluster": cluster, "namespace": f"{name.tenant}/{name.namespace}", "topic": topic})


def _index_samples(told: Exposition, index: TopicIndex, labels: str) -> None:
    near, every = partitions_in_memory(index.table, index.window), len(index.table)
    told.add("index_entries", labels, index.entries)
    told.add("index_memory_bytes", labels, index.window.bytes_held)
    told.add("index_disk_bytes", labels, index.bytes)
    told.add("time_partitions", f'{labels},tier="memory"', near)
    told.add("time_partitions", f'{labels},tier="disk"', max(every - near, 0))
    told.add("damaged_time_partitions", labels, len(index.damage.ranges))


def _rebuild_samples(told: Exposition, topic: TrackedTopic, labels: str) -> None:
    status = topic.last_rebuild
    if status is None:
        return
    ended = status.finished_ms
    read = status.entries_read / max(status.entries_total, 1)
    told.add("rebuild_progress_ratio", labels, 1 if ended is not None else min(read, 1.0))
    told.add("rebuild_seconds", labels, ((wall_clock_ms() if ended is None else ended) - status.started_ms) / 1000)
    told.add("rebuild_failed", labels, int(status.state == "failed"))


def _subscription_samples(told: Exposition, topic: TrackedTopic, index: TopicIndex, of_topic: str) -> None:
    views, unbridged, now_ms = index.views(), topic.outlook.unbridged(), wall_clock_ms()
    for name in {*views, *subscriptions_shown(topic)}:
        labels = f'{of_topic},subscription="{escaped(name)}"'
        if (view := views.get(name)) is not None:
            _view_samples(told, index, view, labels, now_ms)
        if (difference := _difference(topic, name)) is not None:
            told.add("books_difference_entries", labels, difference)
        if name in unbridged:
            told.add("unbridged_consumers", labels, unbridged[name])
        subscription = subscriptions_shown(topic).get(name)
        if subscription is None:
            continue
        stats = subscription.stats
        told.add("ready_entries", labels, subscription.waiting)
        told.add("in_flight_entries", labels, len(subscription.dispatcher.unacked))
        told.add("delivered_total", labels, stats.delivered)
        told.add("acked_total", labels, stats.acked)
        told.add("cancelled_total", labels, stats.cancelled)
        told.add("redelivered_total", labels, stats.redelivered)
        told.add("early_deliveries_total", labels, stats.early)
        told.add("ack_repairs_total", labels, stats.repaired)
        for again, label in _AGAIN:
            told.add("duplicates_total", labels + label, stats.duplicates[again])
        for cause, label in _CAUSES:
            told.add("lateness_cause_total", labels + label, stats.causes[cause])
        told.add_histogram("lateness_seconds", labels, _buckets(stats.lateness), stats.lateness.sum_ms / 1000)


def _difference(topic: TrackedTopic, name: str) -> int | None:
    known = None if topic.tenure is None else topic.tenure.books.latest.get(name)
    return None if known is None else known.differing


def _view_samples(told: Exposition, index: TopicIndex, view: SubscriptionView, labels: str, now_ms: int) -> None:
    told.add("pending_entries", labels, index.counts.pending(view))
    told.add("ack_holes", labels, view.acks.holes)
    for label, due in zip(_BOUNDS, due_within(index, view, now_ms), strict=True):
        told.add("due_within_entries", labels + label, due)


def _buckets(lateness: Lateness) -> list[int]:
    upto = list(accumulate(lateness.counts))
    return [*(upto[place] for place in _PLACES), lateness.count]
