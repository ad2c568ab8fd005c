"""Where an entry is stored: a ledger and an entry in it."""

from __future__ import annotations

from typing import NamedTuple


class Position(NamedTuple):
    """A place in a managed ledger; ordered by ledger, then entry. Entry -1 is the place before a ledger's first."""

    ledger: int
    entry: int

    def __str__(self) -> str:
        """Return the position as Pulsar prints it, `ledger:entry`."""
        return f"{self.ledger}:{self.entry}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read `ledger:entry`; raises ValueError naming the text."""
        ledger, colon, entry = text.strip().partition(":")
        try:
            if not colon:
                raise ValueError(text)
            return cls(int(ledger), int(entry))
        except ValueError:
            raise ValueError(f"not a position: {text!r}, expected ledger:entry such as 3:5") from None


EARLIEST = Position(-1, -1)
"""Before every entry."""
