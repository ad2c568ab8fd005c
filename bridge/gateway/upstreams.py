"""A client's connections to brokers: one to each that its topics live on, with the client's newest credentials."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from bridge.broker.connection import BrokerError
from bridge.gateway.credentials import Challenges
from bridge.gateway.upstream import Upstream, UpstreamOwner, open_upstream
from bridge.limits import ConnectionLimits
from bridge.net.trust import TrustedServers
from bridge.protocol.frames import Frame, encode_frame
from bridge.protocol.pulsar_pb2 import BaseCommand, ServerError

Spawn = Callable[[Coroutine[Any, Any, Upstream]], asyncio.Task[Upstream]]


class SessionUpstreams:
    """`open_first`, then `get` as topics need them."""

    def __init__(self, owner: UpstreamOwner, spawn: Spawn, limits: ConnectionLimits, trusted: TrustedServers) -> None:
        """`spawn` runs work for as long as the client is there; `trusted`: what brokers with TLS are checked by."""
        self._trusted = trusted
        self.first: Upstream | None = None
        """The one that answers what concerns no handle."""
        self.only: Upstream | None = None
        """The first, as long as there is no other: the fast path."""
        self.connect: BaseCommand | None = None
        """What the client said, with the credentials that it has now."""
        self._owner = owner
        self._spawn = spawn
        self._limits = limits
        self._tasks: dict[str, asyncio.Task[Upstream]] = {}
        self._challenges = Challenges()
        self._behind: set[Upstream] = set()

    def all(self) -> list[Upstream]:
        """Those that are open."""
        done = [task for task in self._tasks.values() if task.done() and not task.cancelled()]
        return [task.result() for task in done if task.exception() is None]

    def end(self) -> None:
        """Close all."""
        for upstream in self.all():
            upstream.close()
        self._tasks.clear()

    async def open_first(self, url: str, connect: BaseCommand) -> None:
        """Open the first with the client's CONNECT. Raises BrokerError."""
        self.connect = connect
        self.only = await self.get(url)

    async def get(self, url: str) -> Upstream:
        """The connection to a broker, opened if need be. Raises BrokerError."""
        task = self._tasks.get(url)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            most = self._limits.max_brokers_per_session
            if len(self._tasks) >= most and url not in self._tasks:
                raise BrokerError(f"more than {most} brokers", ServerError.ServiceNotReady)
            task = self._tasks[url] = self._spawn(self._open(url))
        upstream = await asyncio.shield(task)
        if self.first is not None and upstream is not self.first:
            self.only = None
            await self._connected(upstream)
        return upstream

    @property
    def is_challenged(self) -> bool:
        """Whether a broker waits for the client to say who it is."""
        return self._challenges.are_waiting

    @property
    def are_behind(self) -> bool:
        """Whether a broker may have said something, since nothing was read from it, that has not come here yet."""
        return bool(self._behind)

    def catch_up(self) -> None:
        """Something was not read for a while: who must not be served any more is known when all have answered."""
        for upstream in self.all():
            self._behind.add(upstream)
            upstream.catch_up()

    def on_pong(self, upstream: Upstream) -> bool:
        """A broker gave a sign of life. Returns whether it was the last one to catch up."""
        if not upstream.pong() or upstream not in self._behind:
            return False
        self._behind.remove(upstream)
        return not self._behind

    def on_challenge(self, upstream: Upstream, frame: Frame) -> memoryview | None:
        """A broker asks who the client is; returns what the client is to see."""
        return self._challenges.add(upstream, frame)

    def on_auth_response(self, frame: Frame) -> memoryview | None:
        """The client says who it is; returns what the client is to see next."""
        assert self.connect is not None
        was_asked, following = self._challenges.answer(frame, self.connect)
        if not was_asked and self.first is not None:
            self.first.write(frame.data)
        return following

    async def _open(self, url: str) -> Upstream:
        upstream = await open_upstream(url, self._owner, self._limits, self._trusted)
        assert self.connect is not None
        if self.first is None:
            self.first = upstream
        upstream.write(encode_frame(self.connect))
        return upstream

    async def _connected(self, upstream: Upstream) -> None:
        try:
            async with asyncio.timeout(self._limits.handshake_timeout_s):
                await asyncio.shield(upstream.connected)
        except TimeoutError:
            raise BrokerError(f"{upstream.url} did not answer CONNECT", ServerError.ServiceNotReady) from None
