"""A blocking connection to a broker, for one reader."""

from __future__ import annotations

import itertools
import socket
from collections import deque

from bridge.protocol import commands
from bridge.protocol.errors import ProtocolError
from bridge.protocol.frames import Frame, FrameDecoder, encode_frame
from bridge.protocol.lookup import Ask, Found, Refused, next_step
from bridge.protocol.pulsar_pb2 import BaseCommand, ServerError
from spark_jobs import limits
from spark_jobs.errors import LedgerReadError, NotYet
from spark_jobs.ledgers.access import ClusterAccess, service_address

_FATAL = {
    ServerError.AuthenticationError,
    ServerError.AuthorizationError,
    ServerError.TopicNotFound,
    ServerError.InvalidTopicName,
    ServerError.UnsupportedVersionError,
}
_ANSWERS: dict[int, str] = {
    BaseCommand.SUCCESS: "success",
    BaseCommand.ERROR: "error",
    BaseCommand.LOOKUP_RESPONSE: "lookupTopicResponse",
}


def refused(what: str, code: ServerError, message: str) -> LedgerReadError:
    """Return the error for a broker's refusal, of the kind that says whether trying again makes sense."""
    return (LedgerReadError if code in _FATAL else NotYet)(f"{what}: {ServerError.Name(code)}: {message}")


class Connection:
    """A context manager; every method raises LedgerReadError, or NotYet when it may work a moment later."""

    def __init__(self, access: ClusterAccess, url: str, proxy_to: str | None = None) -> None:
        """Connect and shake hands. `proxy_to`: the broker behind the proxy at `url`."""
        self.url = url
        self._decoder = FrameDecoder()
        self._frames: deque[Frame] = deque()
        self._request_ids = itertools.count(1)
        address = service_address(url)
        try:
            self._socket = socket.create_connection(address[:2], limits.CONNECT_TIMEOUT_S)
        except OSError as error:
            raise NotYet(f"cannot reach {url}: {error}") from error
        try:
            if address.tls:
                self._socket = access.tls_context().wrap_socket(self._socket, server_hostname=address.host)
            self._handshake(access, proxy_to)
        except OSError as error:
            self.close()
            raise NotYet(f"cannot reach {url}: {error}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Connection:
        """Return the connection itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close it; the broker forgets a reader on it."""
        self._socket.close()

    def next_request_id(self) -> int:
        """Return a request id not used before on this connection."""
        return next(self._request_ids)

    def send(self, command: BaseCommand) -> None:
        """Write a command."""
        try:
            self._socket.settimeout(limits.REQUEST_TIMEOUT_S)
            self._socket.sendall(encode_frame(command))
        except OSError as error:
            raise NotYet(f"connection to {self.url} lost: {error}") from error

    def receive(self, timeout_s: float) -> list[Frame]:
        """Return the frames of one read, without those that keep the connection alive; none after the time-out."""
        if not self._frames:
            self._fill(timeout_s)
        frames, self._frames = list(self._frames), deque()
        return frames

    def request(self, command: BaseCommand, request_id: int) -> BaseCommand:
        """Send a request and return its answer; what comes before that and is no answer is left to `receive`."""
        self.send(command)
        kept: deque[Frame] = deque()
        while True:
            self._fill(limits.REQUEST_TIMEOUT_S)
            if not self._frames:
                raise NotYet(f"{self.url} did not answer within {limits.REQUEST_TIMEOUT_S:g} s")
            while self._frames:
                frame = self._frames.popleft()
                if frame.type not in _ANSWERS:
                    kept.append(frame)
                    continue
                answer = frame.command()
                body = getattr(answer, _ANSWERS[frame.type])
                if body.request_id == request_id:
                    self._frames = kept + self._frames
                    if frame.type == BaseCommand.ERROR:
                        raise refused(self.url, body.error, body.message)
                    return answer

    def _handshake(self, access: ClusterAccess, proxy_to: str | None) -> None:
        self.send(commands.connect(access.auth_token(), proxy_to))
        self._fill(limits.CONNECT_TIMEOUT_S)
        if not self._frames:
            raise NotYet(f"{self.url} did not answer CONNECT")
        answer = self._frames.popleft().command()
        if answer.type == BaseCommand.ERROR:
            raise refused(self.url, answer.error.error, answer.error.message)
        if answer.type != BaseCommand.CONNECTED:
            raise LedgerReadError(f"{self.url} answered CONNECT with {BaseCommand.Type.Name(answer.type)}")
        if answer.connected.max_message_size:
            self._decoder.limit_to(answer.connected.max_message_size)

    def _fill(self, timeout_s: float) -> None:
        """Read until there is a frame, or the time is over."""
        while not self._frames:
            try:
                self._socket.settimeout(timeout_s)
                data = self._socket.recv(limits.RECEIVE_BYTES)
            except TimeoutError:
                return
            except OSError as error:
                raise NotYet(f"connection to {self.url} lost: {error}") from error
            if not data:
                raise NotYet(f"{self.url} closed the connection")
            try:
                frames = self._decoder.feed(data)
            except ProtocolError as error:
                raise LedgerReadError(f"{self.url} broke the protocol: {error}") from error
            for frame in frames:
                if frame.type == BaseCommand.PING:
                    self.send(commands.pong())
                elif frame.type != BaseCommand.PONG:
                    self._frames.append(frame)


def connect_to_owner(access: ClusterAccess, topic: str) -> Connection:
    """Return a connection to the broker that owns a topic partition; makes a broker own it."""
    step: Ask | Found | Refused = Ask(access.service_url)
    while isinstance(step, Ask):
        with Connection(access, step.url) as connection:
            request_id = connection.next_request_id()
            answer = connection.request(commands.lookup(topic, request_id, step.authoritative), request_id)
        step = next_step(step, answer.lookupTopicResponse, topic)
    if isinstance(step, Refused):
        raise refused(topic, step.code, step.message)
    return Connection(access, step.url, step.behind and step.behind.split("://", 1)[-1])
