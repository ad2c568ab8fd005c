"""Reads from a socket in small portions, one for each turn of the event loop.

Left to itself the loop reads as long as there is data, 256 KB at a time: thousands of small entries, handled in one go
while everything that is due waits.
"""

import asyncio
from typing import cast

_buffers: dict[int, memoryview] = {}
"""One for all connections with the same portion: what is read is taken out before anybody else's turn."""


class SlicedReads(asyncio.BufferedProtocol):
    """A protocol whose `data_received` gets at most `portion` bytes a turn. Derived classes override it."""

    def __init__(self, portion: int) -> None:
        """`portion`: bytes."""
        self._buffer = _buffers.setdefault(portion, memoryview(bytearray(portion)))
        self._reads: asyncio.Transport | None = None
        self._held = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """From asyncio; to be called by derived classes."""
        self._reads = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it

    def data_received(self, data: bytes) -> None:
        """A portion of what arrived."""
        raise NotImplementedError

    def get_buffer(self, sizehint: int) -> memoryview:
        """From asyncio."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """From asyncio."""
        if nbytes == len(self._buffer):  # there may be more
            self._apply(False)
            asyncio.get_running_loop().call_soon(self._read_on)
        self.data_received(bytes(self._buffer[:nbytes]))

    def hold_reads(self, held: bool) -> None:
        """Read nothing until called with False: whoever gets the data does not keep up."""
        self._held = held
        self._apply(not held)

    def _read_on(self) -> None:
        if not self._held:
            self._apply(True)

    def _apply(self, reading: bool) -> None:
        if self._reads is not None and not self._reads.is_closing():
            if reading:
                self._reads.resume_reading()
            else:
                self._reads.pause_reading()
