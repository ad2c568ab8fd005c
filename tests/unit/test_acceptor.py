"""Connections are accepted one by one, on both event loops."""

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from bridge.limits import ConnectionLimits
from bridge.net.acceptor import PlainListener
from bridge.net.limited_log import LimitedLog
from tests.helpers import wait_until_async

Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]
CROWD = 100


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def on_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(test())

    return on_loop


class Client(asyncio.Protocol):
    """As the listener sees it."""

    def __init__(self, made: list["Client"]) -> None:
        made.append(self)
        self.transport: asyncio.BaseTransport | None = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


class Port:
    """A listener that nothing may go wrong with, and who has come."""

    def __init__(self) -> None:
        self.made: list[Client] = []
        self.failed: list[Exception] = []
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        bound.setblocking(False)
        self.address = bound.getsockname()
        limits = ConnectionLimits()
        self.log = LimitedLog(limits)
        self.listener = PlainListener(bound, lambda: Client(self.made), self.failed.append, self.log, limits)

    async def end(self) -> None:
        await self.listener.stop()
        self.log.close()
        for client in self.made:
            if isinstance(client.transport, asyncio.Transport):
                client.transport.abort()
        await wait_until_async(lambda: all(client.lost for client in self.made), "all to be gone")
        assert not self.failed


def test_a_crowd_that_comes_at_once_leaves_others_their_turn(run: Run) -> None:
    async def crowd() -> None:
        port = Port()
        port.listener.start()
        there = [socket.create_connection(port.address) for _ in range(CROWD)]
        most = turns = 0
        while len(port.made) < CROWD:
            before = len(port.made)
            await asyncio.sleep(0)
            most, turns = max(most, len(port.made) - before), turns + 1
        assert most <= 2
        assert turns >= CROWD / 2
        for each in there:
            each.close()
        await port.end()

    run(crowd)


def test_who_has_left_before_it_was_accepted_does_no_harm(run: Run) -> None:
    async def crowd() -> None:
        port = Port()
        port.listener.start()
        for _ in range(10):
            with socket.create_connection(port.address) as each:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
        with socket.create_connection(port.address):
            await wait_until_async(lambda: port.made and not port.made[-1].lost, "the one that stays")
        await port.end()

    run(crowd)


def test_nobody_is_accepted_after_the_end(run: Run) -> None:
    async def late() -> None:
        port = Port()
        port.listener.start()
        await asyncio.sleep(0)
        await port.end()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(port.address)

    run(late)
