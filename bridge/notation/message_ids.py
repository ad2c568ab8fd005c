"""Message ids as clients print them, read as the position of an entry. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from tracker import Position

_NUMBERS = re.compile(r"\d+ ?[:,] ?\d+(?: ?[:,] ?-?\d+){0,3}", re.ASCII)
_LENGTH_MAX = 100


class MessageId(NamedTuple):
    """An entry, and what else the id says: -1 for no partition, and for a message that is no part of a batch."""

    position: Position
    partition: int = -1
    batch_index: int = -1

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Read `5:1` as this project writes it, `5:1:-1` as Java and Go print it (`5:1:-1:0` for one of a batch, its
        size may follow), or `(5,1,-1,-1)` as Python, C++ and Node do. Raises ValueError naming the text.
        """
        inner = text.strip()
        if inner.startswith("(") and inner.endswith(")"):
            inner = inner[1:-1].strip()
        if len(inner) > _LENGTH_MAX or not _NUMBERS.fullmatch(inner):
            shown = text[:_LENGTH_MAX]
            raise ValueError(f"not a message id: {shown!r}, expected ledger:entry such as 3:5, or what a client prints")
        numbers = [int(each) for each in re.split(r"[:,]", inner)]
        if max(numbers) >= 1 << 63:
            raise ValueError(f"not a message id: {text[:_LENGTH_MAX]!r}, a number is too large")
        partition, batch_index = [*numbers[2:4], -1, -1][:2] if len(numbers) != 3 else (numbers[2], -1)
        return cls(Position(*numbers[:2]), partition, batch_index)

    def entry_on(self, topic: str) -> Position:
        """Return the entry of a topic partition, by its full name, that the id names.

        Raises ValueError when it names another partition, or one message of a batch, which has no delay of its own.
        """
        _, found, number = topic.rpartition("-partition-")
        own = int(number) if found and number.isdecimal() else -1
        if self.partition not in (-1, own):
            raise ValueError(f"{self} is a message of partition {self.partition}, not of {topic}")
        if self.batch_index >= 0:
            raise ValueError(
                f"{self} is one message of a batch, which is delivered as a whole: {self.position} is all of it"
            )
        return self.position

    def __str__(self) -> str:
        """Return the id as Java prints it."""
        return f"{self.position}:{self.partition}" + (f":{self.batch_index}" if self.batch_index >= 0 else "")
