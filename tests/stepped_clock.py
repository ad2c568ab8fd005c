"""A wall clock of one bridge that is set from outside: its process has the file mapped that says by how much."""

import mmap
import struct
import time
from pathlib import Path
from types import SimpleNamespace

import bridge.clock

VARIABLE = "DELAY_BRIDGE_TEST_CLOCK"
"""In the environment of the bridge: the file."""
_OFFSET = struct.Struct("<q")


class SteppedClock:
    """Ahead of the machine's by `offset_ms`, 0 at first."""

    def __init__(self, file: Path) -> None:
        if not file.exists():
            file.write_bytes(_OFFSET.pack(0))
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), _OFFSET.size)

    @property
    def offset_ms(self) -> int:
        return int(_OFFSET.unpack_from(self._shared)[0])

    @offset_ms.setter
    def offset_ms(self, value: int) -> None:
        _OFFSET.pack_into(self._shared, 0, value)

    def time_ns(self) -> int:
        """As `time.time_ns`."""
        return time.time_ns() + self.offset_ms * 1_000_000

    def install(self) -> None:
        """In this process: all that a bridge reads of wall time goes through `bridge.clock`."""
        vars(bridge.clock)["time"] = SimpleNamespace(time_ns=self.time_ns)
