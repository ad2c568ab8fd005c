"""One connection of the bridge's own to each broker, found by lookup, shared by everything the bridge reads."""

import asyncio

from bridge.broker.connection import BrokerConnection, BrokerError, connect
from bridge.clock import RandBits, system_randbits
from bridge.limits import ConnectionLimits
from bridge.net.trust import TrustedServers
from bridge.protocol import commands
from bridge.protocol.lookup import Ask, Found, Refused, next_step


class BrokerPool:
    """Connections by service URL."""

    def __init__(
        self,
        service_url: str,
        limits: ConnectionLimits,
        auth_token: str | None = None,
        randbits: RandBits = system_randbits,
        trusted: TrustedServers | None = None,
    ) -> None:
        """`service_url`: where lookups start; `trusted`: as of `connect`."""
        self._trusted = trusted
        self.service_url = service_url
        self._limits = limits
        self._auth_token = auth_token
        self._randbits = randbits
        self._connections: dict[str, BrokerConnection] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    @property
    def connections(self) -> int:
        """How many are open."""
        return sum(not connection.is_closed for connection in self._connections.values())

    async def connection(self, url: str | None = None) -> BrokerConnection:
        """The connection to `url` (default: the service URL). Raises BrokerError."""
        url = self.service_url if url is None else url
        async with self._locks.setdefault(url, asyncio.Lock()):
            connection = self._connections.get(url)
            if connection is None or connection.is_closed:
                connection = self._connections[url] = await connect(
                    url, self._limits, self._auth_token, self._randbits, self._trusted
                )
            return connection

    async def for_topic(self, topic: str) -> BrokerConnection:
        """The connection to the broker that owns `topic`; makes a broker own it. Raises BrokerError."""
        step: Ask | Found | Refused = Ask(self.service_url)
        while isinstance(step, Ask):
            connection = await self.connection(step.url)
            request_id = connection.next_request_id()
            answer = await connection.request(commands.lookup(topic, request_id, step.authoritative), request_id)
            step = next_step(step, answer.lookupTopicResponse, topic)
        if isinstance(step, Refused):
            raise BrokerError(step.message, step.code)
        return await self.connection(step.url)

    async def close(self) -> None:
        """Close every connection and wait for each to be gone."""
        for connection in self._connections.values():
            connection.close()
        for connection in self._connections.values():
            await connection.closed
        self._connections.clear()
