"""The requests of one client that wait for an answer, and which answer belongs to which of them.

An answer carries an id and little else. It is believed only when it comes from the broker that was asked, is of a kind
that the command can be answered with, and no other command of the client bears the same id.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from bridge.protocol.answers import ANSWER_OF, FIELD_OF
from bridge.protocol.errors import MalformedFrame, ProtocolError
from bridge.protocol.frames import Frame
from bridge.protocol.pulsar_pb2 import BaseCommand

GATEWAY_REQUEST_ID_BASE: Final = 1 << 62
"""Requests the gateway makes on a client's upstream connection count from here, clients count from 0."""
BROKER_INITIATED = (1 << 64) - 1
"""The request id of commands that answer no request."""

Answered = Callable[[bool], None]

REQUESTS = frozenset(ANSWER_OF)
"""The client's commands that bear a request id, and are answered once."""
ANSWERS = frozenset({BaseCommand.ERROR, *ANSWER_OF.values()})


def request_id_of(frame: Frame) -> int:
    """The id in a request, or in an answer. Raises MalformedFrame."""
    return int(body_of(frame).request_id)


def body_of(frame: Frame) -> Any:
    """What a command says besides its type. Raises MalformedFrame, also when it says nothing."""
    command, name = frame.command(), FIELD_OF[frame.type]
    if not command.HasField(name):
        raise MalformedFrame(f"command of type {frame.type} without a body")
    return getattr(command, name)


def is_refusal(frame: Frame) -> bool:
    """Whether an answer says that the broker did not do what it was asked. Raises MalformedFrame."""
    body = body_of(frame)
    return any(name in body.DESCRIPTOR.fields_by_name and body.HasField(name) for name in ("error", "error_code"))


def is_gateways_own(request_id: int) -> bool:
    """Whether the gateway itself asked."""
    return GATEWAY_REQUEST_ID_BASE <= request_id < BROKER_INITIATED


@dataclass(slots=True)
class _Request:
    kind: int
    asked: object = None
    answered: Answered | None = None


class RequestsInFlight:
    """`begin` when the client's command arrives, `sent` when it goes to a broker, and then its answer, or `done`."""

    def __init__(self, most: int) -> None:
        """`most`: that wait for an answer at once."""
        self._most = most
        self._requests: dict[int, _Request] = {}

    def begin(self, kind: int, request_id: int) -> None:
        """Take a command of type `kind` in. Raises ProtocolError when an answer to it could be mistaken."""
        if request_id >= GATEWAY_REQUEST_ID_BASE:
            raise ProtocolError(f"request id {request_id} is not below {GATEWAY_REQUEST_ID_BASE}")
        other = self._requests.get(request_id)
        if other is not None:
            names = BaseCommand.Type.Name(other.kind), BaseCommand.Type.Name(kind)
            raise ProtocolError(
                f"request id {request_id} is in use: {names[1]} while a {names[0]} waits for its answer"
            )
        if len(self._requests) >= self._most:
            raise ProtocolError(f"more than {self._most} requests at once")
        self._requests[request_id] = _Request(kind)

    def sent(self, request_id: int, asked: object, answered: Answered | None = None) -> None:
        """The command goes to the connection `asked`; `answered` is called with whether the broker agreed."""
        request = self._requests[request_id]
        request.asked, request.answered = asked, answered

    def done(self, request_id: int) -> None:
        """The gateway has answered by itself."""
        self._requests.pop(request_id, None)

    def on_answer(self, asked: object, frame: Frame) -> Answered | None:
        """Take in a frame of a type in ANSWERS that came from `asked`; returns whom to tell, once the client knows."""
        body = body_of(frame)
        request = self._requests.get(body.request_id)
        if request is None or request.asked is not asked:
            return None
        if frame.type not in (BaseCommand.ERROR, ANSWER_OF[request.kind]):
            return None
        if frame.type == BaseCommand.PRODUCER_SUCCESS and not body.producer_ready:
            return None  # it waits for its turn: a second answer will come
        del self._requests[body.request_id]
        return request.answered

    def end(self) -> None:
        """The client is gone: whoever waits is told that nothing was agreed to."""
        requests, self._requests = list(self._requests.values()), {}
        for request in requests:
            if request.answered is not None:
                request.answered(False)
