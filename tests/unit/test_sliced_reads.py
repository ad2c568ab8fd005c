"""Reading in portions."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from bridge.net.sliced_reads import SlicedReads
from tests.helpers import wait_until_async


class Recorder(SlicedReads):
    """Notes each portion with the turn of the loop in which it came."""

    def __init__(self) -> None:
        super().__init__(100)
        self.portions: list[bytes] = []
        self.turns: list[int] = []
        self.turn = 0

    def data_received(self, data: bytes) -> None:
        self.portions.append(data)
        self.turns.append(self.turn)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield ours, theirs
    theirs.close()


async def test_one_portion_a_turn(pair: tuple[socket.socket, socket.socket]) -> None:
    """Other work gets its turn between two portions, and no byte is lost."""
    loop = asyncio.get_running_loop()
    ours, theirs = pair
    theirs.sendall(bytes(range(250)) * 4)
    transport, recorder = await loop.connect_accepted_socket(Recorder, ours)

    def count() -> None:
        recorder.turn += 1
        if not transport.is_closing():
            loop.call_soon(count)

    loop.call_soon(count)
    await wait_until_async(lambda: sum(map(len, recorder.portions)) == 1000, "everything is read")
    transport.close()
    assert b"".join(recorder.portions) == bytes(range(250)) * 4
    assert max(map(len, recorder.portions)) == 100
    assert len(set(recorder.turns)) == len(recorder.turns)
    await wait_until_async(transport.is_closing)


async def test_held_reads(pair: tuple[socket.socket, socket.socket]) -> None:
    """While reads are held nothing more comes, whatever the portion before left to be done."""
    loop = asyncio.get_running_loop()
    ours, theirs = pair
    transport, recorder = await loop.connect_accepted_socket(Recorder, ours)
    theirs.sendall(b"x" * 1000)
    await wait_until_async(lambda: recorder.portions, "a first portion")
    recorder.hold_reads(True)
    held = len(recorder.portions)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(recorder.portions) == held
    recorder.hold_reads(False)
    await wait_until_async(lambda: sum(map(len, recorder.portions)) == 1000, "the rest")
    transport.close()
