"""Who is ready for what, and which topic partition is to move. Pure.

Nobody commands: each bridge works out the same picture from what all of them own, and takes for itself what it is to
have. A bridge that has less than its share takes from the one that has most, and only what brings the two closer.
"""

from collections.abc import Collection, Mapping

from bridge.broker.candidates import ready_ones

Loads = Mapping[str, float]
"""By topic partition, how much work it is; 0 where nobody is connected to it."""
Shares = Mapping[str, Loads]
"""By the URL of a bridge, what it owns."""


TOLERATED = 0.1
"""Of the mean: so far apart two bridges may be. Loads go up and down, and a move costs consumers a moment."""


def invitations(own_url: str, shares: Shares, standby_count: int) -> set[str]:
    """The topic partitions of others that this bridge is to be ready for: those that somebody is connected to."""
    found: set[str] = set()
    for owner, loads in shares.items():
        if owner != own_url:
            others = [url for url in shares if url != owner]
            busy = [topic for topic, load in loads.items() if load > 0]
            found.update(topic for topic in busy if own_url in ready_ones(topic, others, standby_count))
    return found


def owned_elsewhere(own_url: str, shares: Shares) -> dict[str, float]:
    """The topic partitions that others own."""
    return {topic: load for owner, loads in shares.items() if owner != own_url for topic, load in loads.items()}


def moves(own_url: str, shares: Shares, preferred: Collection[str], count: int) -> list[str]:
    """At most `count` topic partitions that this bridge is to take over, `preferred` ones first.

    It takes as long as it stays below the mean, so bridges that take at once do not take too much together.
    """
    sums = {url: sum(loads.values()) for url, loads in shares.items()}
    left = {url: dict(loads) for url, loads in shares.items()}
    mean = sum(sums.values()) / len(sums)
    taken: list[str] = []
    while len(taken) < count:
        busiest = max(sums, key=lambda url: (sums[url], url))
        gap = sums[busiest] - sums[own_url]
        topic = _best(left[busiest], min(mean - sums[own_url], gap / 2), preferred)
        if topic is None or gap <= TOLERATED * mean:
            break
        load = left[busiest].pop(topic)
        sums[busiest] -= load
        sums[own_url] += load
        taken.append(topic)
    return taken


class Orphans:
    """Topic partitions that somebody owned, and now nobody does: the last bridge that stood for them is gone."""

    def __init__(self, after_s: float) -> None:
        """A topic that moves is nobody's for less than `after_s`."""
        self._after_s = after_s
        self._owned_at: dict[str, float] = {}

    def of(self, shares: Shares, now_s: float) -> set[str]:
        """Those that are nobody's for long; each is told once: whoever serves it owns it by the next time."""
        for loads in shares.values():
            self._owned_at.update(dict.fromkeys(loads, now_s))
        found = {topic for topic, at_s in self._owned_at.items() if now_s - at_s > self._after_s}
        for topic in found:
            del self._owned_at[topic]
        return found


def _best(loads: Loads, room: float, preferred: Collection[str]) -> str | None:
    """The largest that fits into the room, so that few have to move."""
    fitting = [topic for topic, load in loads.items() if 0 < load <= room]
    return max(fitting, key=lambda topic: (topic in preferred, loads[topic], topic), default=None)
