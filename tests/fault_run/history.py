"""What was done to bridges, brokers and the ways between them, and when: which acks count as kept, and by what."""

import bisect
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

SETTLED_S = 1.5
"""An ack counts as the bridge's and the broker's when nothing happened so long before and after it."""
KEPT_S = 2.0
"""An ack, and a seek, count as kept by a broker that is killed so much later: it stores them once a second."""


@dataclass
class Happened:
    """Something, from when to when, in seconds of the monotonic clock."""

    kind: str
    began: float
    ended: float = float("inf")

    def touches(self, began: float, ended: float) -> bool:
        return self.began <= ended and self.ended >= began


@dataclass(frozen=True)
class Move:
    """A seek of one topic's subscription, in seconds of the monotonic clock.

    `certain`: it was done, and not merely asked for; `from_ms`: what was published since comes again.
    """

    topic: str
    began: float
    ended: float
    certain: bool
    from_ms: int


@dataclass
class History:
    """Of one run, for all topics."""

    events: list[Happened] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    crashes: list[float] = field(default_factory=list)
    """When the broker was killed."""
    clocks: list[tuple[float, float, int]] = field(default_factory=list)
    """From when to when a bridge's clock was ahead, by how many ms."""
    away: dict[str, list[Happened]] = field(default_factory=dict)
    """When a consumer was not connected, by its name."""

    @contextlib.contextmanager
    def span(self, kind: str) -> Iterator[None]:
        """What is inside goes on until its end."""
        happened = Happened(kind, time.monotonic())
        self.events.append(happened)
        try:
            yield
        finally:
            happened.ended = time.monotonic()

    def moment(self, kind: str) -> None:
        """Something changed, and stays so."""
        now = time.monotonic()
        self.events.append(Happened(kind, now, now))

    def between(self, began: float, ended: float) -> Happened | None:
        """The first of what happened in that time."""
        # Events begin one after the other; the longest lasts a minute or so.
        start = bisect.bisect_left(self.events, began - 300.0, key=lambda each: each.began)
        for each in self.events[start:]:
            if each.began > ended:
                return None
            if each.touches(began, ended):
                return each
        return None

    def crashed(self, began: float, ended: float) -> bool:
        return any(began <= crash <= ended for crash in self.crashes)

    def was_away(self, consumer: str, began: float, ended: float) -> bool:
        return any(each.touches(began, ended) for each in self.away.get(consumer, ()))

    def ahead_ms(self, began: float, ended: float) -> int:
        """By how much a bridge's clock was ahead at most; where one was behind, the other one was right."""
        return max([0, *(ms for since, until, ms in self.clocks if since <= ended and until >= began)])
