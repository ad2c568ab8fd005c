"""Whose the hash of a key is on a Key_Shared subscription: decided as the broker decides it. Pure.

So what the broker says of the consumers' ranges in a topic's statistics is true of what the bridge sends them.
"""

from bisect import bisect_left, insort
from collections.abc import Hashable
from typing import Final, Generic, Protocol, TypeVar

from bridge.dispatch.dispatcher import Ranges
from bridge.protocol.sticky_keys import hashed, ring_hash

POINTS: Final = 100
"""Pulsar's `subscriptionKeySharedConsistentHashingReplicaPoints`: points of each consumer on the ring."""

C = TypeVar("C", bound=Hashable)


class KeySelector(Protocol[C]):
    """Consumers and their shares of the hashes."""

    def add(self, consumer: C, name: str, ranges: Ranges) -> None:
        """A consumer came."""

    def remove(self, consumer: C) -> None:
        """It left."""

    def select(self, sticky_hash: int) -> C | None:
        """Whose a hash is; None: nobody's."""


class HashRing(Generic[C]):
    """Each consumer has points on a ring of hashes, given by its name: a hash belongs to the next point.

    Source: `ConsistentHashingStickyKeyConsumerSelector`, of brokers with `subscriptionKeySharedUseConsistentHashing`.
    """

    def __init__(self) -> None:
        """Nobody's."""
        self._points: list[int] = []
        self._at: dict[int, list[C]] = {}  # where points of several meet, they are the first one's
        self._numbers: dict[str, dict[int, C]] = {}  # of those of the same name
        self._name_of: dict[C, tuple[str, int]] = {}

    def add(self, consumer: C, name: str, ranges: Ranges = ()) -> None:
        """Consumers of the same name get points of their own."""
        same_name = self._numbers.setdefault(name, {})
        number = next(each for each in range(len(same_name) + 1) if each not in same_name)
        same_name[number] = consumer
        self._name_of[consumer] = name, number
        for point in points_of(name, number):
            met = self._at.get(point)
            if met is None:
                self._at[point] = [consumer]
                insort(self._points, point)
            elif consumer not in met:
                met.append(consumer)

    def remove(self, consumer: C) -> None:
        """Its hashes are those of the next points from now on."""
        name, number = self._name_of.pop(consumer)
        del self._numbers[name][number]
        if not self._numbers[name]:
            del self._numbers[name]
        for point in set(points_of(name, number)):
            self._at[point].remove(consumer)
            if not self._at[point]:
                del self._at[point], self._points[bisect_left(self._points, point)]

    def select(self, sticky_hash: int) -> C | None:
        """The consumer of the first point at or behind the hash, around the ring."""
        points = self._points
        if not points:
            return None
        index = bisect_left(points, sticky_hash)
        return self._at[points[index if index < len(points) else 0]][0]


def points_of(name: str, number: int) -> list[int]:
    """Where on the ring the points of the `number`th consumer of a name are."""
    return [ring_hash(hashed(f"{name}\0{number}\0{point}".encode())) for point in range(POINTS)]


class StickyRanges(Generic[C]):
    """Each consumer has the ranges that it has asked for (source: `HashRangeExclusiveStickyKeyConsumerSelector`).

    The broker refuses ranges that overlap. Should some do here, somebody has left without the bridge knowing yet: they
    are the last one's.
    """

    def __init__(self) -> None:
        """Nobody's."""
        self._ranges: dict[C, Ranges] = {}
        self._starts: list[int] = []
        self._owners: list[C | None] = []

    def add(self, consumer: C, name: str, ranges: Ranges) -> None:
        """`name` does not matter."""
        self._ranges[consumer] = ranges
        self._lay_out()

    def remove(self, consumer: C) -> None:
        """Its ranges are nobody's, or whose they were before."""
        del self._ranges[consumer]
        self._lay_out()

    def select(self, sticky_hash: int) -> C | None:
        """None in a gap between ranges."""
        return self._owners[bisect_left(self._starts, sticky_hash + 1) - 1] if self._starts else None

    def _lay_out(self) -> None:
        claims = [(start, end, consumer) for consumer, ranges in self._ranges.items() for start, end in ranges]
        self._starts = sorted({0, *(claim[0] for claim in claims), *(claim[1] + 1 for claim in claims)})
        self._owners = [None] * len(self._starts)
        for start, end, consumer in claims:
            first, last = bisect_left(self._starts, start), bisect_left(self._starts, end + 1)
            self._owners[first:last] = [consumer] * (last - first)
