"""What an operator should know before it hurts: policies of the broker that do not go with delays, consumers that reach
a subscription past the bridge, more coming due than consumers have shown to take, and what waits already. Pure.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge import answers
from bridge.answers.values import Severity
from bridge.limits import OperatorLimits
from bridge.operate.storm import Forecast
from bridge.operate.waiting import DeliveryState, waiting_warnings
from tracker import TopicIndex

MAX_ACK_RANGES = 10_000
"""Of a cursor the broker persists so many: `managedLedgerMaxUnackedRangesToPersist`, as it is by default."""
ACK_HOLES_WARNING = 8_000
QUOTA_SHARE_WARNING = 0.8
PINNED_BYTES_WARNING = 10 << 30
SHOWN_OVER_S = 5.0
"""What consumers have shown is the highest rate over at least so long."""


class OperatorWarning(NamedTuple):
    """One warning; `code` is stable, for programs and for the runbooks."""

    severity: Severity
    code: str
    text: str
    subscription: str | None = None

    def answer(self, topic: str | None = None) -> answers.OperatorWarning:
        """Return what REST says."""
        return {
            "severity": self.severity,
            "code": self.code,
            "topic": topic,
            "subscription": self.subscription,
            "text": self.text,
        }


@dataclass(frozen=True)
class Policies:
    """What the broker says of a topic partition; None: not known, or no limit.

    `unbridged`: of each tracked subscription the consumers that are not this bridge's. `pinned_bytes`: of each, what
    the broker has to keep for it.
    """

    delays: bool = True
    message_ttl_s: int | None = None
    quota_bytes: int | None = None
    quota_age_s: int | None = None
    backlog_bytes: int = 0
    pinned_bytes: Mapping[str, int] = field(default_factory=dict)
    unbridged: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class ShownRate:
    """The highest rate of acks seen, over at least SHOWN_OVER_S."""

    def __init__(self) -> None:
        """Nothing was shown."""
        self.per_second = 0.0
        self._since_s: float | None = None
        self._count = 0

    def note(self, now_s: float, count: int) -> None:
        """Tell how many acks there were by now."""
        if self._since_s is None or count < self._count:
            self._since_s, self._count = now_s, count
        elif now_s - self._since_s >= SHOWN_OVER_S:
            self.per_second = max(self.per_second, (count - self._count) / (now_s - self._since_s))
            self._since_s, self._count = now_s, count


def topic_warnings(
    index: TopicIndex,
    policies: Policies,
    forecasts: Mapping[str, Forecast],
    now_ms: int,
    limits: OperatorLimits,
    rebuild_error: str | None,
    states: Mapping[str, DeliveryState] | None = None,
) -> list[OperatorWarning]:
    """Return what is wrong, or will be, with one topic partition."""
    found = [*_policy_warnings(index, policies, now_ms)]
    found += _subscription_warnings(index, policies, forecasts, limits, states or {})
    if index.damage.ranges:
        text = f"{len(index.damage.ranges)} time partitions on disk are damaged, they are read again from the broker"
        found.append(OperatorWarning(Severity.critical, "damaged", text))
    if rebuild_error is not None:
        found.append(OperatorWarning(Severity.critical, "rebuild-failed", f"the last rebuild failed: {rebuild_error}"))
    return found


def _policy_warnings(index: TopicIndex, policies: Policies, now_ms: int) -> Iterator[OperatorWarning]:
    if not policies.delays:
        text = "delayed delivery is off for this topic, by a policy of the broker: what is pending goes out at once"
        yield OperatorWarning(Severity.warning, "delayed-delivery-off", text)
    span = index.table.span()
    ahead_s = 0 if span is None else max((span[1] * index.partition_width_ms - now_ms) // 1000, 0)
    if policies.message_ttl_s and ahead_s > policies.message_ttl_s:
        text = (
            f"entries are due in up to {ahead_s} s, but messages expire after {policies.message_ttl_s} s (message TTL)"
        )
        yield OperatorWarning(Severity.critical, "message-ttl", text)
    if policies.quota_age_s and ahead_s > policies.quota_age_s:
        text = (
            f"entries are due in up to {ahead_s} s, but the backlog quota is a message age of {policies.quota_age_s} s"
        )
        yield OperatorWarning(Severity.critical, "backlog-quota", text)
    if policies.quota_bytes and policies.backlog_bytes > QUOTA_SHARE_WARNING * policies.quota_bytes:
        text = f"the backlog of {policies.backlog_bytes:,} bytes is near its quota of {policies.quota_bytes:,}"
        yield OperatorWarning(Severity.warning, "backlog-quota", text)


def _subscription_warnings(
    index: TopicIndex,
    policies: Policies,
    forecasts: Mapping[str, Forecast],
    limits: OperatorLimits,
    states: Mapping[str, DeliveryState],
) -> Iterator[OperatorWarning]:
    for name, view in index.views().items():
        if unbridged := policies.unbridged.get(name):
            listed = ", ".join(unbridged[:5])
            text = f"{len(unbridged)} consumers reach {name} past the bridge, and get delayed entries twice: {listed}"
            yield OperatorWarning(Severity.critical, "unbridged-consumers", text, name)
        if (pinned := policies.pinned_bytes.get(name, 0)) > PINNED_BYTES_WARNING:
            text = f"the broker keeps {pinned:,} bytes for {name}, from its oldest unacked entry on"
            yield OperatorWarning(Severity.warning, "pinned-bytes", text, name)
        if view.acks.holes > ACK_HOLES_WARNING:
            text = (
                f"{name} has {view.acks.holes:,} stretches of acked entries above its mark-delete position; of more "
                f"than {MAX_ACK_RANGES:,} the broker forgets some when it restarts (the bridge gives them to it again)"
            )
            yield OperatorWarning(Severity.warning, "ack-holes", text, name)
        ahead = forecasts.get(name)
        if ahead is not None and ahead.warning is not None:
            yield OperatorWarning(Severity.warning, "storm", f"{name}: {ahead.warning}", name)
        if name in states:
            for code, text in waiting_warnings(name, states[name], limits):
                yield OperatorWarning(Severity.warning, code, text, name)
