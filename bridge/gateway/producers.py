"""The producers of one client: where each lives."""

from collections.abc import Callable
from typing import NamedTuple

from bridge.gateway.requests import Answered
from bridge.gateway.upstream import Upstream
from bridge.protocol.frames import Frame

Relay = Callable[[Upstream | None, Frame, Answered | None], None]


class Home(NamedTuple):
    """The broker that a producer was opened at, and the request that did it: an id may be opened there again."""

    upstream: Upstream
    request_id: int


class SessionProducers:
    """Every producer's commands go to the broker that it was opened at."""

    def __init__(self, relay: Relay) -> None:
        """`relay` sends a frame to an upstream connection, the client's first one for None."""
        self._relay = relay
        self._homes: dict[int, Home] = {}
        self._opening: dict[int, int] = {}  # by producer: the request that opens it, not sent yet
        self._closed: set[int] = set()  # by the broker; the client may still be sending

    def begin(self, producer_id: int, request_id: int) -> None:
        """A PRODUCER came; its broker is being looked for."""
        self._opening[producer_id] = request_id
        self._closed.discard(producer_id)

    def failed(self, producer_id: int, request_id: int) -> None:
        """No broker was found for it."""
        if self._opening.get(producer_id) == request_id:
            del self._opening[producer_id]

    def open(self, upstream: Upstream, frame: Frame, producer_id: int, request_id: int) -> bool:
        """Relay; False when the client has closed it meanwhile, and waits for nothing."""
        if self._opening.pop(producer_id, None) != request_id:
            return False
        home = Home(upstream, request_id)
        self._homes.setdefault(producer_id, home)

        def answered(ok: bool) -> None:
            if not ok and self._homes.get(producer_id) == home:
                del self._homes[producer_id]

        self._relay(upstream, frame, answered)
        return True

    def on_send(self, frame: Frame) -> None:
        """Relayed. What was on its way when the broker closed the producer is dropped, as the broker does itself.

        The client sends it again once it has opened the producer anew; a broker that never knew the producer would
        close the connection.
        """
        producer_id = frame.command().send.producer_id
        if producer_id not in self._closed:
            self._relay(self._home(producer_id), frame, None)

    def on_close(self, frame: Frame) -> None:
        """Relayed; one that was on its way to be opened is not opened any more."""
        producer_id = frame.command().close_producer.producer_id
        self._opening.pop(producer_id, None)
        self._closed.discard(producer_id)
        self._relay(self._home(producer_id), frame, None)
        self._homes.pop(producer_id, None)

    def closed_by_broker(self, upstream: Upstream, producer_id: int) -> None:
        """A CLOSE_PRODUCER of the broker."""
        if self._home(producer_id) is upstream:
            del self._homes[producer_id]
            self._closed.add(producer_id)

    def _home(self, producer_id: int) -> Upstream | None:
        home = self._homes.get(producer_id)
        return None if home is None else home.upstream
