"""Wall time and chance: what the bridge reads of the machine it runs on, in one place, so that a test can give it both.

The event loop has a clock of its own, which never steps: time-outs and intervals go by that.
"""

import base64
import math
import secrets
import time
from collections.abc import Callable

RandBits = Callable[[int], int]
"""Gives so many random bits as a number. What clients must not guess is made of them."""

system_randbits: RandBits = secrets.randbits


def wall_clock_ns() -> int:
    """The machine's wall clock, in ns of the epoch."""
    return time.time_ns()


def wall_clock_ms() -> int:
    """What `deliver_at` is held against."""
    return time.time_ns() // 1_000_000


class ClockSteps:
    """Notices that the wall clock was set, or stood still while the machine slept: beside a clock that never steps."""

    def __init__(self, least_ms: int) -> None:
        """`least_ms`: what is less between two looks is a clock that is being slewed."""
        self.count = 0
        self.last_ms = 0
        """By how much it was set last, below 0 backwards."""
        self.last_at_s = -math.inf
        """When, by the clock that never steps."""
        self._least_ms = least_ms
        self._before: tuple[int, float] | None = None

    def note(self, wall_ms: int, steady_s: float) -> int | None:
        """Returns by how many ms the wall clock was set since the last call, None if it was not."""
        before, self._before = self._before, (wall_ms, steady_s)
        if before is None:
            return None
        step_ms = wall_ms - before[0] - round((steady_s - before[1]) * 1000)
        if abs(step_ms) < self._least_ms:
            return None
        self.count, self.last_ms, self.last_at_s = self.count + 1, step_ms, steady_s
        return step_ms


def token(randbits: RandBits) -> str:
    """Sixteen characters, of letters, digits, `-` and `_`, that nobody can guess."""
    return base64.urlsafe_b64encode(randbits(96).to_bytes(12, "big")).decode()
