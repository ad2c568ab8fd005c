"""Reading entries from the bookies that store them: the broker has no part in it, and no ledger is fenced."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from bridge.ledgers.bookies.errors import BookieError
from bridge.ledgers.bookies.layout import Bookie, LedgerLayout
from bridge.ledgers.bookies.reading import Ask, EntryReads, Told
from bridge.ledgers.bookies.wire import Answer, next_answer
from spark_jobs import limits

_out_of_reach: dict[Bookie, tuple[float, str]] = {}
"""Bookies that this process could not reach: until when (monotonic seconds) they are not tried again, and why. A
firewall lets each try wait, and a task has many ranges."""


class BookieConnection:
    """A blocking connection. Every method raises BookieError; it is of no use after that."""

    def __init__(self, bookie: Bookie, timeout_s: float) -> None:
        """Connect, unless it was not reached a moment ago. `timeout_s`: how long it may be silent."""
        until, reason = _out_of_reach.get(bookie, (0.0, ""))
        if until > time.monotonic():
            raise BookieError(reason)
        try:
            self._socket = socket.create_connection(bookie, limits.BOOKIE_CONNECT_TIMEOUT_S)
        except OSError as error:
            _out_of_reach[bookie] = time.monotonic() + limits.BOOKIE_REST_S, f"it cannot be reached: {error}"
            raise BookieError(_out_of_reach[bookie][1]) from error
        self._socket.settimeout(timeout_s)
        self._held, self._at = b"", 0
        self._sent: Ask | None = None

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def ask(self, ask: Ask) -> list[Answer]:
        """Send requests, unless they are sent, and return their answers."""
        try:
            self.send(ask)
            self._sent = None
            return [self._answer() for _ in range(ask.answers)]
        except OSError as error:
            raise BookieError(f"the connection is lost: {error}") from error

    def send(self, ask: Ask) -> None:
        """Send requests whose answers are wanted next. Raises OSError."""
        if self._sent != ask:
            if self._sent is not None:
                raise BookieError("it was asked for something else before")
            self._sent = ask
            self._socket.sendall(ask.requests)

    def _answer(self) -> Answer:
        while True:
            found, size = next_answer(memoryview(self._held)[self._at :])
            if found is not None:
                self._at += size
                return found
            self._fill(size)

    def _fill(self, size: int) -> None:
        """Have so many bytes behind what was taken."""
        parts = [self._held[self._at :]]
        held = len(parts[0])
        while held < size:
            part = self._socket.recv(limits.RECEIVE_BYTES)
            if not part:
                raise BookieError("it closed the connection")
            parts.append(part)
            held += len(part)
        self._held, self._at = b"".join(parts), 0


class Bookies:
    """A context manager: one reader and its connections."""

    def __init__(
        self,
        batch_entries: int = limits.BOOKIE_BATCH_ENTRIES,
        single_reads: int = limits.BOOKIE_READS,
        timeout_s: float = limits.BOOKIE_TIMEOUT_S,
    ) -> None:
        """There are no connections yet."""
        self._timeout_s = timeout_s
        self._connections: dict[Bookie, BookieConnection] = {}
        self._reads = EntryReads(batch_entries, limits.BOOKIE_BATCH_BYTES, single_reads)

    def __enter__(self) -> Bookies:
        """Return the reader itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()

    def ask_ahead(self, layout: LedgerLayout, ledger: int, first: int, last: int) -> None:
        """Have a bookie work on what will be read next, while what was read is looked at."""
        ask = next(self._reads.read(layout, ledger, first, last))
        connection = self._connections.get(ask.bookie)
        if connection is not None:
            with suppress(OSError, BookieError):  # it comes again when it is read
                connection.send(ask)

    def read(self, layout: LedgerLayout, ledger: int, first: int, last: int) -> list[bytes]:
        """Return some entries: see `EntryReads.read`. Raises BookieError."""
        reads = self._reads.read(layout, ledger, first, last)
        try:
            ask = next(reads)
            while True:
                ask = reads.send(self._told(ask))
        except StopIteration as done:
            entries: list[bytes] = done.value
            return entries

    def _told(self, ask: Ask) -> Told:
        try:
            connection = self._connections.get(ask.bookie)
            if connection is None:
                connection = self._connections[ask.bookie] = BookieConnection(ask.bookie, self._timeout_s)
            return connection.ask(ask)
        except BookieError as error:
            connection = self._connections.pop(ask.bookie, None)
            if connection is not None:
                connection.close()
            return error
