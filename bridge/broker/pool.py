"""One connection of the bridge's own to each broker, found by lookup, shared by everything the bridge reads."""

import asyncio

from bridge import limits
from bridge.broker.connection import BrokerConnection, BrokerError, connect
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandLookupTopicResponse, ServerError


class BrokerPool:
    """Connections by service URL."""

    def __init__(self, service_url: str, auth_token: str | None = None) -> None:
        """`service_url`: where lookups start."""
        self.service_url = service_url
        self._auth_token = auth_token
        self._connections: dict[str, BrokerConnection] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    @property
    def connections(self) -> int:
        """How many are open."""
        return sum(not connection.is_closed for connection in self._connections.values())

    async def connection(self, url: str | None = None) -> BrokerConnection:
        """The connection to `url` (default: the service URL). Raises BrokerError."""
        url = url or self.service_url
        async with self._locks.setdefault(url, asyncio.Lock()):
            connection = self._connections.get(url)
            if connection is None or connection.is_closed:
                connection = self._connections[url] = await connect(url, self._auth_token)
            return connection

    async def for_topic(self, topic: str) -> BrokerConnection:
        """The connection to the broker that owns `topic`; makes a broker own it. Raises BrokerError."""
        url, authoritative = self.service_url, False
        for _ in range(limits.MAX_LOOKUP_REDIRECTS):
            connection = await self.connection(url)
            answer = await _lookup(connection, topic, authoritative)
            if answer.response == CommandLookupTopicResponse.Failed:
                raise BrokerError(answer.message, answer.error)
            if answer.proxy_through_service_url:
                return connection
            url = answer.brokerServiceUrl or answer.brokerServiceUrlTls
            authoritative = answer.authoritative
            if answer.response == CommandLookupTopicResponse.Connect:
                return await self.connection(url)
        raise BrokerError(
            f"lookup of {topic} was redirected {limits.MAX_LOOKUP_REDIRECTS} times", ServerError.ServiceNotReady
        )

    async def close(self) -> None:
        """Close every connection and wait for each to be gone."""
        for connection in self._connections.values():
            connection.close()
        for connection in self._connections.values():
            await connection.closed
        self._connections.clear()


async def _lookup(connection: BrokerConnection, topic: str, authoritative: bool) -> CommandLookupTopicResponse:
    request_id = connection.next_request_id()
    command = BaseCommand(type=BaseCommand.LOOKUP)
    command.lookupTopic.topic = topic
    command.lookupTopic.request_id = request_id
    command.lookupTopic.authoritative = authoritative
    return (await connection.request(command, request_id)).lookupTopicResponse
