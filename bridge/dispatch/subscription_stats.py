"""Counters of one tracked subscription, and its lateness as a histogram."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from bridge.dispatch.dispatcher import Again
from bridge.protocol.sent import Sent

LATE_MS = 100
"""A first delivery that is later than that has a cause that is counted."""

TOO_LATE_MS = 1_000
"""From here on it is worth a warning."""

LATENESS_BOUNDS_MS = (
    *(1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 750),
    *(1_000, 1_500, 2_000, 3_000, 5_000, 7_500, 10_000, 20_000, 30_000, 60_000),
    *(120_000, 300_000, 600_000, 1_800_000, 3_600_000, 21_600_000, 86_400_000),
)
"""Upper bounds of the histogram's buckets, inclusive; one more bucket holds the rest."""


@dataclass(slots=True)
class Lateness:
    """Dispatch time minus `deliver_at` of first deliveries, in ms."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_BOUNDS_MS) + 1))
    count: int = 0
    sum_ms: int = 0
    max_ms: int = 0

    def record(self, lateness_ms: int) -> None:
        """Count one delivery."""
        self.counts[bisect_left(LATENESS_BOUNDS_MS, lateness_ms)] += 1
        self.count += 1
        self.sum_ms += lateness_ms
        if lateness_ms > self.max_ms:
            self.max_ms = lateness_ms

    def add(self, other: "Lateness") -> None:
        """Count another one's deliveries too."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.sum_ms += other.sum_ms
        self.max_ms = max(self.max_ms, other.max_ms)

    def percentile(self, share: float) -> int:
        """The upper bound of the bucket that holds the given share (0 … 1) of deliveries; 0 without any."""
        rank = share * self.count
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            if count and seen >= rank:
                return min(LATENESS_BOUNDS_MS[index], self.max_ms) if index < len(LATENESS_BOUNDS_MS) else self.max_ms
        return 0


class Cause(StrEnum):
    """Why a first delivery was late: no consumer had permits when it came due, a dispatch rate was used up, the entry
    was read from the topic after that, the part of the index it is in was missing, or none of it: the bridge was down,
    or too slow.
    """

    permits = "permits"
    rate = "rate"
    harvest = "harvest"
    rebuild = "rebuild"
    bridge = "bridge"


@dataclass(slots=True)
class SubscriptionStats:
    """Counted in messages, since this bridge took the topic partition over."""

    delivered: int = 0
    acked: int = 0
    redelivered: int = 0
    early: int = 0
    repaired: int = 0
    """Acks the broker had forgotten, given to it again."""
    unfetched: int = 0
    """Entries to deliver again that the broker has deleted meanwhile."""
    cancelled: int = 0
    """Entries that an operator had acked before they were delivered."""
    expedited: int = 0
    """Entries delivered before they were due because an operator wanted it, or a policy has switched delays off."""
    duplicates: Counter[Again] = field(default_factory=Counter)
    """Messages delivered again, by reason; together they are `redelivered`."""
    causes: Counter[Cause] = field(default_factory=Counter)
    """Of first deliveries later than LATE_MS."""
    too_late: Counter[Cause] = field(default_factory=Counter)
    """Of those later than TOO_LATE_MS."""
    lateness: Lateness = field(default_factory=Lateness)
    sent: Sent = field(default_factory=Sent)
    """The same messages as `delivered`, with their bytes and times."""

    def first_delivery(self, due_ms: Iterable[int], now_ms: int) -> None:
        """Note delayed entries sent for the first time."""
        record = self.lateness.record
        for due in due_ms:
            if due > now_ms:
                self.early += 1
            record(now_ms - due if now_ms > due else 0)

    def delivered_again(self, again: Again, messages: int) -> None:
        """Note messages that are delivered once more."""
        self.redelivered += messages
        self.duplicates[again] += messages
