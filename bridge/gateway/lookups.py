"""Lookups of one client: answered with the bridge's address, remembered with the broker's.

The bridge connects only to addresses that the configuration or a broker's own answer named, never to
one that a client asks for.
"""

import asyncio
from collections.abc import Awaitable, Callable

from bridge.broker.connection import BrokerError
from bridge.gateway.requests import GATEWAY_REQUEST_ID_BASE
from bridge.gateway.upstream import Upstream
from bridge.limits import ConnectionLimits
from bridge.protocol import commands
from bridge.protocol.errors import ProtocolError
from bridge.protocol.frames import encode_frame
from bridge.protocol.lookup import Ask, Found, Refused, next_step
from bridge.protocol.pulsar_pb2 import CommandLookupTopic, CommandLookupTopicResponse, ServerError

MAX_REMEMBERED_TOPICS = 100_000


class Lookups:
    """Where each topic of a client lives."""

    def __init__(
        self, service_url: str, connect: Callable[[str], Awaitable[Upstream]], limits: ConnectionLimits
    ) -> None:
        """`connect` gives the session's upstream connection to a broker."""
        self._service_url = service_url
        self._connect = connect
        self._limits = limits
        self._brokers: dict[str, tuple[str, int]] = {}  # by topic: its broker, and how often that was doubted then
        self._doubts: dict[str, int] = {}
        self._waiting: dict[int, asyncio.Future[CommandLookupTopicResponse]] = {}
        self._next_id = GATEWAY_REQUEST_ID_BASE

    def next_request_id(self) -> int:
        """An id no client uses."""
        self._next_id += 1
        return self._next_id

    def answered(self, response: CommandLookupTopicResponse) -> bool:
        """Take a LOOKUP_RESPONSE; False when nobody here asked."""
        future = self._waiting.pop(response.request_id, None)
        if future is None:
            return False
        if not future.done():
            future.set_result(response)
        return True

    async def resolve(self, request: CommandLookupTopic) -> Found | Refused:
        """Ask the brokers as the client would, follow redirects, remember the owner. Raises BrokerError."""
        step: Ask | Found | Refused = Ask(self._service_url, request.authoritative)
        while isinstance(step, Ask):
            answer = await self._ask(await self._connect(step.url), request, step.authoritative)
            step = next_step(step, answer, request.topic)
        if isinstance(step, Found):
            self._remember(request.topic, step.url)
        return step

    async def upstream_of(self, topic: str) -> Upstream:
        """The connection to the broker of `topic`, looked up when this client has not done so. Raises BrokerError.

        Where the client may not look up, the first broker: one that is asked without a lookup says what the client may,
        in its own words, and lets it do some things for which it needs no permission to look up (transactions).
        """
        url, doubts = self._brokers.get(topic, ("", 0))
        if not url or doubts != self._doubts.get(url, 0):
            found = await self.resolve(CommandLookupTopic(topic=topic, request_id=0))
            if isinstance(found, Found):
                url = found.url
            elif found.code == ServerError.AuthorizationError:
                url = self._service_url
            else:
                raise BrokerError(found.message, found.code)
        return await self._connect(url)

    def doubt(self, url: str) -> None:
        """This broker refused something or gave something up: topics may have left it, so they are looked up anew.

        The client does that for itself, but often on another connection: what is remembered here would stay wrong.
        """
        self._doubts[url] = self._doubts.get(url, 0) + 1

    def _remember(self, topic: str, url: str) -> None:
        if len(self._brokers) >= MAX_REMEMBERED_TOPICS:
            self._brokers.clear()
        self._brokers[topic] = url, self._doubts.get(url, 0)

    async def _ask(
        self, upstream: Upstream, request: CommandLookupTopic, authoritative: bool
    ) -> CommandLookupTopicResponse:
        if len(self._waiting) >= self._limits.max_pending_requests:
            raise ProtocolError(f"more than {self._limits.max_pending_requests} lookups at once")
        request_id = self.next_request_id()
        future: asyncio.Future[CommandLookupTopicResponse] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        upstream.write(encode_frame(commands.lookup_for(request, request_id, authoritative)))
        try:
            async with asyncio.timeout(self._limits.request_timeout_s):
                return await future
        except TimeoutError:
            raise BrokerError(f"{upstream.url} did not answer a lookup", ServerError.ServiceNotReady) from None
        finally:
            self._waiting.pop(request_id, None)
