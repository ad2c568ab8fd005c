"""The bridge as a whole, as REST and the dashboard tell it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field

from bridge import answers
from bridge.answers.values import Severity
from bridge.dispatch.subscription_stats import Lateness
from bridge.net.certificates import ServerCertificate
from bridge.operate.warnings import OperatorWarning
from bridge.topics.tracked_topic import TrackedTopic
from bridge.web.request.served import Served
from bridge.web.request.shown import index_shown, subscriptions_shown
from bridge.web.rest.views import DUE_WITHIN_S, due_within, lateness_answer, pending_in

VERSION = importlib.metadata.version("pulsar-delay-bridge")
"""Read once: it is in a file."""
CLOCK_OFFSET_WARNING_S = 1.0
DISK_FREE_WARNING = 0.1
CERTIFICATE_ENDS_WARNING_DAYS = 14


@dataclass
class _Sums:
    """What topics have together; sizes in bytes."""

    entries: int = 0
    storage_size: int = 0
    memory_entries: int = 0
    memory_size: int = 0
    pending: int = 0
    lateness: Lateness = field(default_factory=Lateness)

    def add(self, topic: TrackedTopic) -> None:
        """Add a topic."""
        index = index_shown(topic)
        if index is not None:
            self.entries += index.entries
            self.storage_size += index.bytes
            self.memory_entries += len(index.window)
            self.memory_size += index.window.bytes_held
            self.pending += pending_in(index)
        for subscription in subscriptions_shown(topic).values():
            self.lateness.add(subscription.stats.lateness)


async def overview_answer(bridge: Served, topics: Sequence[TrackedTopic], now_ms: int) -> answers.Overview:
    """Add topics up; others get their turn in between."""
    due = dict.fromkeys(DUE_WITHIN_S, 0)
    sums = _Sums()
    disk = await asyncio.to_thread(shutil.disk_usage, bridge.settings.data_dir)
    steady_s = asyncio.get_running_loop().time()
    warnings = [each.answer() for each in bridge_warnings(bridge, disk.free, disk.total, steady_s)]
    if bridge.certificate is not None:
        warnings += [each.answer() for each in certificate_warnings(bridge.certificate, now_ms)]
    for number, topic in enumerate(topics, 1):
        sums.add(topic)
        _add_due(topic, due, now_ms)
        warnings += [each.answer(topic.topic) for each in topic.warnings()]
        if number % bridge.limits.operators.topics_slice == 0:
            await asyncio.sleep(0)
    return {
        "cluster": bridge.settings.cluster,
        "version": VERSION,
        "ready": bridge.not_ready is None,
        "notReadyReason": bridge.not_ready,
        "storageFailure": None if bridge.topics is None else bridge.topics.storage_failure,
        "startedAt": bridge.started_ms,
        "clockOffsetMs": None if (offset := bridge.clock_offset_s) is None else round(offset * 1000),
        "topics": len(topics),
        "owned": sum(topic.role == "owner" for topic in topics),
        "entries": sums.entries,
        "storageSize": sums.storage_size,
        "memoryEntries": sums.memory_entries,
        "memorySize": sums.memory_size,
        "pending": sums.pending,
        "dueWithin": {str(bound): count for bound, count in due.items()},
        "lateness": lateness_answer(sums.lateness),
        "latenessBuckets": sums.lateness.counts,
        "warnings": sorted(warnings, key=lambda each: each["severity"] != Severity.critical),
        "clientConnections": 0 if bridge.gateway is None else bridge.gateway.connections,
        "diskFree": disk.free,
        "diskTotal": disk.total,
    }


def bridge_warnings(bridge: Served, disk_free: int, disk_total: int, steady_s: float) -> list[OperatorWarning]:
    """What concerns no single topic partition. `steady_s`: by the event loop's clock."""
    found = []
    if bridge.not_ready is not None:
        found.append(OperatorWarning(Severity.critical, "not-ready", bridge.not_ready))
    failure = None if bridge.topics is None else bridge.topics.storage_failure
    if failure is not None:
        text = f"nothing can be stored, what is due is delivered all the same: {failure}"
        found.append(OperatorWarning(Severity.critical, "storage", text))
    if disk_free < DISK_FREE_WARNING * disk_total:
        text = f"{disk_free:,} of {disk_total:,} bytes are free where the data directory is"
        found.append(OperatorWarning(Severity.warning, "disk", text))
    if bridge.exposed is not None:
        found.append(OperatorWarning(Severity.warning, "data-dir", bridge.exposed))
    if bridge.actions.failure is not None:
        found.append(OperatorWarning(Severity.warning, "action-log", f"acts are not noted: {bridge.actions.failure}"))
    offset = bridge.clock_offset_s
    if offset is not None and abs(offset) > CLOCK_OFFSET_WARNING_S:
        text = f"the clocks of this machine and the broker differ by at least {abs(offset):.1f} s"
        found.append(OperatorWarning(Severity.critical, "clock", text))
    return found + _clock_warnings(bridge, steady_s)


def _clock_warnings(bridge: Served, steady_s: float) -> list[OperatorWarning]:
    found = []
    steps = bridge.clock_steps
    if steps is not None and steady_s - steps.last_at_s < bridge.limits.operators.clock_step_told_s:
        text = f"the clock of this machine was set, or stood still: {steps.last_ms / 1000:+.1f} s"
        found.append(OperatorWarning(Severity.warning, "clock", text))
    for url, offset_ms in ({} if bridge.balance is None else bridge.balance.clock_offsets_ms).items():
        if abs(offset_ms) > 1000 * CLOCK_OFFSET_WARNING_S:
            text = f"the clocks of this machine and of {url} differ by at least {abs(offset_ms) / 1000:.1f} s"
            found.append(OperatorWarning(Severity.critical, "clock", text))
    return found


def certificate_warnings(certificate: ServerCertificate, now_ms: int) -> list[OperatorWarning]:
    """What clients with TLS will run into."""
    found = []
    if certificate.failure is not None:
        text = f"the TLS files have changed and cannot be used, the former ones stay: {certificate.failure}"
        found.append(OperatorWarning(Severity.warning, "certificate", text))
    if not certificate.is_for_host:
        text = f"the certificate of the TLS port is not for {certificate.host}, where clients are told to connect"
        found.append(OperatorWarning(Severity.critical, "certificate", text))
    days = (certificate.expires_s - now_ms / 1000) / 86_400
    if days < 0:
        text = "the certificate of the TLS port has ended: clients that check it do not connect"
        found.append(OperatorWarning(Severity.critical, "certificate", text))
    elif days < CERTIFICATE_ENDS_WARNING_DAYS:
        text = f"the certificate of the TLS port ends in {days:.1f} days, and has not been renewed"
        found.append(OperatorWarning(Severity.warning, "certificate", text))
    return found


def _add_due(topic: TrackedTopic, due: dict[int, int], now_ms: int) -> None:
    index = index_shown(topic)
    for view in () if index is None else index.views().values():
        assert index is not None
        for bound, count in zip(DUE_WITHIN_S, due_within(index, view, now_ms), strict=True):
            due[bound] += count
