"""Deliveries that are late, or wait for want of consumers or permits: told while it lasts. Pure."""

from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

from bridge.dispatch.subscription_stats import Cause, SubscriptionStats
from bridge.limits import OperatorLimits

LATE_SHARE = 0.01
_WHY = {
    Cause.permits: "for want of permits",
    Cause.rate: "because a dispatch rate of the broker's policies was used up",
    Cause.harvest: "because they were read too late",
    Cause.rebuild: "because the index was being read again",
    Cause.bridge: "because of the bridge itself",
}


class Lately(NamedTuple):
    """First deliveries of the last minutes: how many, and how many of them were too late, by cause."""

    deliveries: int
    late: dict[Cause, int]


class RecentLateness:
    """Of one subscription: what its counters were some minutes ago."""

    def __init__(self, limits: OperatorLimits) -> None:
        """Nothing was noted."""
        self._limits = limits
        self._noted: deque[tuple[float, int, Counter[Cause]]] = deque()

    def note(self, now_s: float, stats: SubscriptionStats) -> None:
        """To be called often."""
        noted = self._noted
        if noted and stats.lateness.count < noted[-1][1]:
            noted.clear()  # counted anew
        if not noted or now_s - noted[-1][0] >= self._limits.lateness_sample_s:
            noted.append((now_s, stats.lateness.count, Counter(stats.too_late)))
        while len(noted) > 1 and now_s - noted[1][0] >= self._limits.lately_s:
            noted.popleft()

    def lately(self, stats: SubscriptionStats) -> Lately:
        """Tell of the last minutes."""
        _, count, late = self._noted[0] if self._noted else (0.0, 0, Counter[Cause]())
        return Lately(stats.lateness.count - count, dict(stats.too_late - late))


class DeliveryState(NamedTuple):
    """How a subscription stands. `overdue_ms`: how long the oldest entry that nobody was given has been due."""

    overdue_ms: int
    consumers: int
    takes: bool
    """Whether a consumer could take something."""
    blocked: bool
    """Whether that is because too much is unacked."""
    lately: Lately


def waiting_warnings(name: str, state: DeliveryState, limits: OperatorLimits) -> Iterator[tuple[str, str]]:
    """Yield (code, text) of what there is to be said."""
    since = f"delayed messages of {name} have been due for up to {_length(state.overdue_ms)}"
    if state.overdue_ms > limits.overdue_warning_ms:
        if not state.consumers:
            yield "no-consumers", f"{since}: no consumer is connected"
        elif not state.takes:
            why = "too much is unacked" if state.blocked else "they do not ask for more messages"
            yield "no-permits", f"{since}: none of its {state.consumers} consumers has permits, {why}"
    deliveries, late = state.lately
    too_late = {cause: count for cause, count in late.items() if cause is not Cause.harvest and count > 0}
    total = sum(too_late.values())
    if total and total > LATE_SHARE * deliveries:
        most = max(too_late, key=lambda cause: too_late[cause])
        text = f"{total:,} of {deliveries:,} deliveries of {name} in the last {limits.lately_s / 60:.0f} minutes"
        yield "late", f"{text} were more than a second late, mostly {_WHY[most]}"


def _length(ms: int) -> str:
    minutes = ms // 60_000
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
