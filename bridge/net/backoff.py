"""How long to wait before what failed is tried again."""

from collections.abc import Sequence

from bridge.clock import RandBits

_CHANCE_BITS = 16


class Backoff:
    """The pauses of one thing that is tried until it works; of each topic partition an own one.

    Each is between half and all of its step, by chance: what fails for all topics at once, because a broker ended, is
    not tried again for all of them at once.
    """

    def __init__(self, randbits: RandBits, steps: Sequence[float]) -> None:
        """`steps`: seconds, one for each failure in a row, the last for all after it."""
        self._randbits = randbits
        self._steps = steps
        self._failures = 0

    def next_s(self) -> float:
        """Seconds to wait now that it failed once more."""
        step = self._steps[min(self._failures, len(self._steps) - 1)]
        self._failures += 1
        return step * (1 + self._randbits(_CHANCE_BITS) / (1 << _CHANCE_BITS)) / 2

    def reset(self) -> None:
        """It worked: the next failure is the first one."""
        self._failures = 0
