"""One message of a simulated world, and what happened to it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

SETTLED_S = 1.5
"""An ack counts as the bridge's and the broker's when nothing happened so long before and after it."""
Place = tuple[int, int]


class Broken(AssertionError):
    """A promise was not kept."""


@dataclass
class Message:
    """One published message."""

    text: str
    deliver_at_ms: int | None
    key: str = ""
    place: Place | None = None
    stored_at: float | None = None
    received: list[float] = field(default_factory=list)
    acked: list[float] = field(default_factory=list)
    nacked: list[float] = field(default_factory=list)
    forgotten_at: float = -math.inf
    """When the broker lost an ack of it."""
    marked: bool = True
    """Whether the cursor bore a mark then, or should have."""
    remembered_at: float = -math.inf
    """When an ack of it that a seek had taken back counted at the broker again."""
    expired_at: float | None = None
    """When the broker moved the cursor past it."""
    life: int = 0
    """How often the topic had been deleted when it was published."""
