"""Wall time and chance: what the bridge reads of the machine it runs on, in one place, so that a test can give it both.

The event loop has a clock of its own, which never steps: time-outs and intervals go by that.
"""

import base64
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


def token(randbits: RandBits) -> str:
    """Sixteen characters, of letters, digits, `-` and `_`, that nobody can guess."""
    return base64.urlsafe_b64encode(randbits(96).to_bytes(12, "big")).decode()
