"""Processor time of other processes, as Linux counts it: what a message costs each of them."""

import os
from collections.abc import Mapping
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_UTIME = 11
"""Behind the name, of which nobody knows how many words it has: state is word 0, user time 11, system time 12."""


def processor_s(pid: int) -> float:
    """Seconds that all threads of a process have used, in steps of 10 ms. Raises OSError when it has ended."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[_UTIME]) + int(words[_UTIME + 1])) / _TICKS_PER_S


class Meter:
    """Processor time of several processes from one look to the next."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        """`pids`: process ids by name; the first look is now."""
        self._pids = pids
        self._before = self._look()

    def lap(self) -> dict[str, float]:
        """Seconds used by each since the last look."""
        before, self._before = self._before, self._look()
        return {name: used - before[name] for name, used in self._before.items()}

    def _look(self) -> dict[str, float]:
        return {name: processor_s(pid) for name, pid in self._pids.items()}
