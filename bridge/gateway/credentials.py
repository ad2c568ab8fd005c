"""What brokers ask of a client about who it is, and the newest that the client has said."""

from collections import deque
from typing import NamedTuple, Protocol

from bridge.protocol.frames import Frame
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandAuthChallenge

REFRESH = b"PulsarAuthRefresh"
"""The challenge of a broker for which the credentials have run out: it wants new ones."""


class Challenger(Protocol):
    """A connection to a broker."""

    def write(self, data: memoryview) -> None:
        """Send bytes."""


class _Challenge(NamedTuple):
    challenger: Challenger
    frame: Frame
    asked: CommandAuthChallenge

    @property
    def refreshes(self) -> bool:
        return self.asked.challenge.auth_data == REFRESH


class Challenges:
    """The client sees one challenge at a time, and what it answers goes to whoever asked that."""

    def __init__(self) -> None:
        self._waiting: deque[_Challenge] = deque()  # the first one is the client's to answer

    @property
    def are_waiting(self) -> bool:
        """Whether the client owes an answer."""
        return bool(self._waiting)

    def add(self, challenger: Challenger, frame: Frame) -> memoryview | None:
        """A broker asks. Returns what the client is to see now."""
        self._waiting.append(_Challenge(challenger, frame, frame.command().authChallenge))
        return frame.data if len(self._waiting) == 1 else None

    def answer(self, frame: Frame, connect: BaseCommand) -> tuple[bool, memoryview | None]:
        """The client answers. Returns whether anybody had asked, and what the client is to see next.

        New credentials go to every broker that waits for such, and into `connect`, for brokers to come.
        """
        if not self._waiting:
            return False, None
        first = self._waiting.popleft()
        first.challenger.write(frame.data)
        if first.refreshes:
            for other in [each for each in self._waiting if each.asked == first.asked]:
                other.challenger.write(frame.data)
                self._waiting.remove(other)
            said = frame.command().authResponse.response
            connect.connect.auth_data = said.auth_data
            if said.auth_method_name:
                connect.connect.auth_method_name = said.auth_method_name
        return True, self._waiting[0].frame.data if self._waiting else None
