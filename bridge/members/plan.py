"""Who is ready for what, and which topic partition is to move. Pure.

Nobody commands: each bridge works out the same picture from what all of them own, and takes for itself what it is to
have. A bridge that has less than its share takes from the one that has most, and only what brings the two closer.
"""

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from bridge.broker.candidates import ready_ones

Loads = Mapping[str, float]
"""By topic partition, how much work it is; 0 where nobody is connected to it."""
Shares = Mapping[str, Loads]
"""By the URL of a bridge, what it owns."""


class Owned(NamedTuple):
    """What a bridge says of itself."""

    loads: Loads
    draining: bool = False
    """Whether it is to own nothing: others take what it has."""
    clock_offset_ms: float | None = None
    """How far at least its clock is ahead of this machine's; None where it does not say."""


TOLERATED = 0.1
"""Of the mean: so far apart two bridges may be. Loads go up and down, and a move costs consumers a moment."""


def invitations(own_url: str, shares: Shares, standby_count: int, draining: Collection[str] = frozenset()) -> set[str]:
    """The topic partitions of others that this bridge is to be ready for: those that somebody is connected to."""
    found: set[str] = set()
    for owner, loads in shares.items():
        if owner != own_url:
            others = [url for url in shares if url != owner and url not in draining]
            busy = [topic for topic, load in loads.items() if load > 0]
            found.update(topic for topic in busy if own_url in ready_ones(topic, others, standby_count))
    return found


def owned_elsewhere(own_url: str, shares: Shares) -> dict[str, float]:
    """The topic partitions that others own."""
    return {topic: load for owner, loads in shares.items() if owner != own_url for topic, load in loads.items()}


def moves(
    own_url: str, shares: Shares, preferred: Collection[str], count: int, draining: Collection[str] = frozenset()
) -> list[str]:
    """At most `count` topic partitions that this bridge is to take over, `preferred` ones first.

    It takes as long as it stays below the mean, so bridges that take at once do not take too much together. What
    bridges have that are draining goes before, and to the last topic: to who has least, where nobody has room for it.
    """
    sums = {url: sum(loads.values()) for url, loads in shares.items()}
    left = {url: dict(loads) for url, loads in shares.items()}
    staying = [url for url in sums if url not in draining]
    taken: list[str] = []
    if own_url not in staying:
        return taken
    mean = sum(sums.values()) / len(staying)
    while len(taken) < count:
        busiest = max(sums, key=lambda url: (url in draining and sums[url] > 0, sums[url], url))
        gap = sums[busiest] - sums[own_url]
        room = min(mean - sums[own_url], gap / 2)
        if busiest in draining:
            has_least = own_url == min(staying, key=lambda url: (sums[url], url))
            gap, room = math.inf, math.inf if has_least else mean - sums[own_url]
        topic = _best(left[busiest], room, preferred)
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
