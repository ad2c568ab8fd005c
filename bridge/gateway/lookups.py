"""Lookups of one client: answered with the bridge's address, remembered with the broker's.

The bridge connects only to addresses that the configuration or a broker's own answer named, never to
one that a client asks for.
"""

import asyncio
from collections.abc import Awaitable, Callable

from bridge import limits
from bridge.broker.connection import BrokerError
from bridge.gateway.upstream import Upstream
from bridge.protocol.errors import ProtocolError
from bridge.protocol.frames import encode_frame
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandLookupTopic, CommandLookupTopicResponse, ServerError

MAX_REMEMBERED_TOPICS = 100_000


class Lookups:
    """Where each topic of a client lives."""

    def __init__(self, service_url: str, connect: Callable[[str], Awaitable[Upstream]]) -> None:
        """`connect` gives the session's upstream connection to a broker."""
        self._service_url = service_url
        self._connect = connect
        self._brokers: dict[str, str] = {}
        self._waiting: dict[int, asyncio.Future[CommandLookupTopicResponse]] = {}
        self._next_id = limits.GATEWAY_REQUEST_ID_BASE

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

    async def resolve(self, request: CommandLookupTopic) -> CommandLookupTopicResponse:
        """Ask the brokers as the client would, follow redirects, remember the owner.

        The result is a `Connect` naming the broker, or the broker's refusal. Raises BrokerError.
        """
        url, authoritative = self._service_url, request.authoritative
        for _ in range(limits.MAX_LOOKUP_REDIRECTS):
            answer = await self._ask(await self._connect(url), request, authoritative)
            if answer.response == CommandLookupTopicResponse.Failed:
                return answer
            if not answer.proxy_through_service_url:
                url = answer.brokerServiceUrl or answer.brokerServiceUrlTls
            if answer.response == CommandLookupTopicResponse.Connect:
                self._remember(request.topic, url)
                return answer
            authoritative = answer.authoritative
        raise BrokerError(
            f"lookup of {request.topic} was redirected {limits.MAX_LOOKUP_REDIRECTS} times", ServerError.ServiceNotReady
        )

    async def upstream_of(self, topic: str) -> Upstream:
        """The connection to the broker of `topic`, looked up when this client has not done so. Raises BrokerError."""
        url = self._brokers.get(topic)
        if url is None:
            answer = await self.resolve(CommandLookupTopic(topic=topic, request_id=0))
            if answer.response == CommandLookupTopicResponse.Failed:
                raise BrokerError(answer.message, answer.error)
            url = self._brokers[topic]
        return await self._connect(url)

    def _remember(self, topic: str, url: str) -> None:
        if len(self._brokers) >= MAX_REMEMBERED_TOPICS:
            self._brokers.clear()
        self._brokers[topic] = url

    async def _ask(
        self, upstream: Upstream, request: CommandLookupTopic, authoritative: bool
    ) -> CommandLookupTopicResponse:
        if len(self._waiting) >= limits.MAX_PENDING_REQUESTS:
            raise ProtocolError(f"more than {limits.MAX_PENDING_REQUESTS} lookups at once")
        command = BaseCommand(type=BaseCommand.LOOKUP)
        command.lookupTopic.CopyFrom(request)
        command.lookupTopic.request_id = request_id = self.next_request_id()
        command.lookupTopic.authoritative = authoritative
        future: asyncio.Future[CommandLookupTopicResponse] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        upstream.write(encode_frame(command))
        try:
            async with asyncio.timeout(limits.REQUEST_TIMEOUT_S):
                return await future
        except TimeoutError:
            raise BrokerError(f"{upstream.url} did not answer a lookup", ServerError.ServiceNotReady) from None
        finally:
            self._waiting.pop(request_id, None)


def lookup_answer(request: CommandLookupTopic, answer: CommandLookupTopicResponse, advertised_url: str) -> BaseCommand:
    """The client's LOOKUP_RESPONSE: the bridge's address in place of the broker's, or the broker's refusal."""
    command = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    response = command.lookupTopicResponse
    response.request_id = request.request_id
    response.response = answer.response
    if answer.response == CommandLookupTopicResponse.Failed:
        response.error, response.message = answer.error, answer.message
        return command
    response.authoritative = answer.authoritative
    response.brokerServiceUrl = advertised_url
    response.proxy_through_service_url = False
    return command
