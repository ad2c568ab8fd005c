"""This machine's clock beside the broker's. Pure.

A broker dates its answers by whole seconds, so what is known is by how much at least the clocks differ.
"""

from typing import Final

_ANSWERS: Final = 3
_LASTING_S: Final = 5.0


def least_offset(told: float, sent: float, received: float, within: float = 0.0) -> float:
    """How far at least another clock is ahead of this machine's, below 0 behind; 0: as far as can be told they agree.

    It said `told`, or up to `within` more, between the time a question was sent and the time its answer was received by
    this machine's; all in the same unit.
    """
    ahead = told - received
    return ahead if ahead > 0 else min(told + within - sent, 0.0)


class ClockComparison:
    """By the broker's answers, one after the other."""

    def __init__(self, max_offset_s: float | None = None) -> None:
        """`max_offset_s`: clocks that differ by more are not to be dispatched by; None: whatever they say."""
        self.offset_s: float | None = None
        """How far at least the broker's clock is ahead of this machine's, by its last answer; None before that."""
        self._max_offset_s = max_offset_s
        self._apart: list[float] = []  # when, by monotonic time, since the clocks last agreed

    def note(self, told_s: float, sent_s: float, received_s: float, now_s: float) -> None:
        """An answer of a request sent at `sent_s` says `told_s`, whole seconds; `now_s` is monotonic."""
        self.offset_s = least_offset(told_s, sent_s, received_s, within=1.0)
        if self._max_offset_s is None or abs(self.offset_s) <= self._max_offset_s:
            self._apart.clear()
        elif len(self._apart) < _ANSWERS:
            self._apart.append(now_s)
        else:
            self._apart[-1] = now_s

    @property
    def doubt(self) -> str | None:
        """Why the clock is not to be dispatched by; None while it may. One answer may be a proxy's, or wrong."""
        if len(self._apart) < _ANSWERS or self._apart[-1] - self._apart[0] < _LASTING_S:
            return None
        most_ms = 1000 * (self._max_offset_s or 0.0)
        return f"the clocks of this machine and the broker differ by more than max_clock_offset_ms, {most_ms:.0f} ms"
