"""What others call of a client's session: the event loop, brokers' connections, the topics that it consumes from."""

from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Ends(Protocol):
    """A session."""

    def fail(self, error: Exception) -> None:
        """End, for an error that nobody thought of."""


S = TypeVar("S", bound=Ends)
P = ParamSpec("P")


def ending(act: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """Have an error that nobody thought of end the session: it is none of whoever calls."""

    def acted(session: S, /, *args: P.args, **named: P.kwargs) -> None:
        try:
            act(session, *args, **named)
        except Exception as error:
            session.fail(error)

    return acted
