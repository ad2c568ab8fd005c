"""What `/metrics` tells: read from the bridge's state when it is asked, nothing is counted for it on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from bridge.protocol.topic_name import TopicName
from bridge.subscription_stats import LATENESS_BOUNDS_MS, Lateness
from bridge.surroundings import wall_clock_ms
from bridge.tracked_topic import TrackedTopic
from tracker.lifecycle import partitions_in_memory

if TYPE_CHECKING:
    from bridge.app import Bridge

PREFIX = "pulsar_delay_bridge_"
TOPIC = ("cluster", "namespace", "topic")
SUBSCRIPTION = (*TOPIC, "subscription")
ROLES = ("owner", "standby", "opening")
LATENESS_TOLD_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000, 600_000, 3_600_000)
"""Bounds of the lateness histogram as it is told: some of those it is kept with."""

assert set(LATENESS_TOLD_MS) <= set(LATENESS_BOUNDS_MS)


class BridgeCollector(Collector):
    """The state of one bridge as metric families."""

    def __init__(self, bridge: Bridge, cluster: str) -> None:
        """`cluster`: the value of the label."""
        self._bridge = bridge
        self._cluster = cluster

    def collect(self) -> Iterable[Metric]:
        """Return the families; called at each scrape."""
        topics = [] if self._bridge.topics is None else self._bridge.topics.all()
        labelled = [(topic, self._labels(topic)) for topic in topics]
        yield from _index_families(labelled)
        yield from _role_families(labelled)
        yield from _rebuild_families(labelled)
        yield from _subscription_families(labelled)
        gateway = self._bridge.gateway
        clients = GaugeMetricFamily(f"{PREFIX}client_connections", "Connections of clients.")
        clients.add_metric((), 0 if gateway is None else gateway.connections)
        yield clients

    def _labels(self, topic: TrackedTopic) -> tuple[str, ...]:
        name = TopicName.parse(topic.topic)
        return self._cluster, f"{name.tenant}/{name.namespace}", topic.topic


Labelled = list[tuple[TrackedTopic, tuple[str, ...]]]


def exposition(bridge: Bridge, cluster: str) -> bytes:
    """Return the answer to a scrape, in the text format 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BridgeCollector(bridge, cluster))
    return generate_latest(registry)


def _gauge(name: str, says: str, labels: Iterable[str] = TOPIC) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, says, labels=list(labels))


def _index_families(topics: Labelled) -> Iterator[Metric]:
    memory = _gauge("index_memory_bytes", "Bytes of entries that are due next, held in memory.")
    disk = _gauge("index_disk_bytes", "Key and value bytes of all entries, before compression.")
    entries = _gauge("index_entries", "Entries in the index, whoever needs them.")
    partitions = _gauge("time_partitions", "Time partitions with entries, by where they are.", (*TOPIC, "tier"))
    damaged = _gauge("damaged_time_partitions", "Time partitions that are set aside and read again from the broker.")
    for topic, labels in topics:
        index = topic.index
        if index is None:
            continue
        memory.add_metric(labels, index.window.bytes_held)
        disk.add_metric(labels, index.bytes)
        entries.add_metric(labels, index.entries)
        near = partitions_in_memory(index.table, index.window)
        partitions.add_metric((*labels, "memory"), near)
        partitions.add_metric((*labels, "disk"), max(len(index.table) - near, 0))
        damaged.add_metric(labels, len(index.damage.ranges))
    return iter((memory, disk, entries, partitions, damaged))


def _role_families(topics: Labelled) -> Iterator[Metric]:
    ownership = _gauge("ownership", "1 for the role this bridge has for a topic partition.", (*TOPIC, "role"))
    for topic, labels in topics:
        for role in ROLES:
            ownership.add_metric((*labels, role), topic.role == role)
    return iter((ownership,))


def _rebuild_families(topics: Labelled) -> Iterator[Metric]:
    progress = _gauge("rebuild_progress_ratio", "Share of the topic's entries that a rebuild has read; 1 at its end.")
    seconds = _gauge("rebuild_seconds", "How long the last rebuild took, or has taken so far.")
    failed = _gauge("rebuild_failed", "1 when the last rebuild failed.")
    for topic, labels in topics:
        status = next(iter(topic.upkeep.rebuilds), None) if topic.upkeep is not None else None
        if status is None:
            continue
        ended = status.finished_ms
        total = max(status.entries_total, 1)
        progress.add_metric(labels, 1 if ended is not None else min(status.entries_read / total, 1))
        seconds.add_metric(labels, ((wall_clock_ms() if ended is None else ended) - status.started_ms) / 1000)
        failed.add_metric(labels, status.state == "failed")
    return iter((progress, seconds, failed))


def _subscription_families(topics: Labelled) -> Iterator[Metric]:
    pending = _gauge("pending_entries", "Delayed entries a subscription has not acked.", SUBSCRIPTION)
    ready = _gauge("ready_entries", "Entries that are due and wait for permits.", SUBSCRIPTION)
    in_flight = _gauge("in_flight_entries", "Entries handed out and not acked.", SUBSCRIPTION)
    counted = {
        name: CounterMetricFamily(PREFIX + name, says, labels=list(SUBSCRIPTION))
        for name, says in (
            ("delivered", "Messages sent to consumers."),
            ("acked", "Entries acked by consumers of this bridge."),
            ("redelivered", "Messages delivered again because a consumer asked."),
            ("early_deliveries", "Delayed entries sent before they were due; stays 0."),
            ("ack_repairs", "Acks the broker had forgotten, given to it again."),
        )
    }
    lateness = HistogramMetricFamily(
        f"{PREFIX}lateness_seconds", "From the due time to the first delivery.", labels=list(SUBSCRIPTION)
    )
    for topic, of_topic in topics:
        for name, subscription in topic.subscriptions.items():
            labels, stats = (*of_topic, name), subscription.stats
            if subscription.view is not None and topic.index is not None:
                pending.add_metric(labels, topic.index.counts.pending(subscription.view))
            ready.add_metric(labels, subscription.waiting)
            in_flight.add_metric(labels, len(subscription.dispatcher.unacked))
            numbers = (stats.delivered, stats.acked, stats.redelivered, stats.early, stats.repaired)
            for family, number in zip(counted.values(), numbers, strict=True):
                family.add_metric(labels, number)
            buckets, sum_s = _buckets(stats.lateness)
            lateness.add_metric(labels, buckets, sum_s)
    return iter((pending, ready, in_flight, *counted.values(), lateness))


def _buckets(lateness: Lateness) -> tuple[list[tuple[str, float]], float]:
    upto = dict(zip(LATENESS_BOUNDS_MS, accumulate(lateness.counts), strict=False))
    told: list[tuple[str, float]] = [(str(bound / 1000), upto[bound]) for bound in LATENESS_TOLD_MS]
    return [*told, ("+Inf", lateness.count)], lateness.sum_ms / 1000
