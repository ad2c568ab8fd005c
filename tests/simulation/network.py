"""Connections in memory: with latency, back-pressure, resets, and lines that swallow everything without a word."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.simulation.hosts import Process, process_of
from tests.simulation.loop import VirtualLoop

SOCKET_BYTES = 256 * 1024
"""What operating systems hold of a direction before the writer notices that nobody reads."""
SILENCE_S = 75.0
"""After which a system gives up to connect."""


class Address(NamedTuple):
    """What a listening socket is bound to."""

    host: str
    port: int

    def getsockname(self) -> Address:
        """As sockets."""
        return self


class Network:
    """All hosts can reach each other, unless cut off."""

    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        """Nobody listens."""
        self._loop = loop
        self._chance = chance
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._ports = 40_000
        self.latency_s = (0.0001, 0.002)
        self.connections: dict[Connection, None] = {}
        self.aliases: dict[str, Callable[[], str]] = {}
        """Names that stand for one of several hosts."""
        self.digest = hashlib.blake2b(digest_size=8)
        """Of all that was ever sent, and when: two worlds are the same if theirs are."""
        self.cut_off: dict[str, None] = {}
        """Hosts whose packets get lost."""

    def listen(self, take: Callable[[End], None], address: Address) -> Listener:
        """Accept connections for the current process; `take` gets its end of each."""
        process = process_of(None)
        assert process is not None
        listener = self._listeners[address] = Listener(self, take, address, process)
        return listener

    def bind(self, host: str, port: int) -> BoundSocket:
        """Return what accepts connections one by one, in the current process."""
        return BoundSocket(self, Address(host, port))

    def forget(self, address: Address) -> None:
        """Nobody listens there any more."""
        self._listeners.pop(address, None)

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[asyncio.Transport, Any]:
        """As `loop.create_connection`. Raises OSError."""
        process = process_of(None)
        assert process is not None
        await asyncio.sleep(self.latency())
        host = self.aliases[host]() if host in self.aliases else host
        if host in self.cut_off or process.host.name in self.cut_off:
            await asyncio.sleep(SILENCE_S)
            raise TimeoutError("connection timed out")
        listener = self._listeners.get((host, port))
        if listener is None or not listener.process.alive:
            raise ConnectionRefusedError(f"connection to {host}:{port} refused")
        self._ports += 1
        connection = Connection(
            self, (process, listener.process), Address(process.host.name, self._ports), (host, port)
        )
        near, far = connection.ends
        near.open(factory())
        self._loop.call_soon(listener.take, far, context=listener.process.context)
        return near, near.protocol

    def latency(self) -> float:
        """Of one packet."""
        return self._chance.uniform(*self.latency_s)


class Listener:
    """In the place of `asyncio.Server`."""

    def __init__(self, network: Network, take: Callable[[End], None], address: Address, process: Process) -> None:
        """Of one process."""
        self._network = network
        self._address = address
        self.take = take
        self.process = process

    def close(self) -> None:
        """Accept no more."""
        self._network.forget(self._address)


class BoundSocket:
    """In the place of a socket that is bound: for `loop.sock_accept`."""

    def __init__(self, network: Network, address: Address) -> None:
        """Nobody can connect before `listen`."""
        self._network = network
        self._address = address
        self._come: deque[Accepted] = deque()
        self._waiting: asyncio.Future[None] | None = None

    def listen(self, _: int) -> None:
        """As sockets."""
        self._network.listen(self._take, self._address)

    def close(self) -> None:
        """As sockets: who was not accepted is cut off."""
        self._network.forget(self._address)
        for accepted in self._come:
            accepted.close()

    def _take(self, end: End) -> None:
        self._come.append(Accepted(end))
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def accept(self) -> tuple[Accepted, tuple[str, int]]:
        """As `loop.sock_accept`."""
        while not self._come:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        accepted = self._come.popleft()
        return accepted, accepted.end.addresses["peername"]


class Accepted(NamedTuple):
    """In the place of the socket of a connection; only `loop.connect_accepted_socket` uses it."""

    end: End

    def close(self) -> None:
        """As sockets."""
        self.end.open(asyncio.Protocol())
        self.end.abort()


class Connection:
    """Two ends."""

    def __init__(
        self, network: Network, processes: tuple[Process, Process], near: tuple[str, int], far: tuple[str, int]
    ) -> None:
        """Who connected, and who listened."""
        self.silent = [False, False]
        """Whether what an end sends gets lost."""
        first, second = End(network, self, 0, processes[0]), End(network, self, 1, processes[1])
        first.peer, second.peer = second, first
        first.addresses = {"sockname": near, "peername": far}
        second.addresses = {"sockname": far, "peername": near}
        self.ends = first, second
        self.network = network
        network.connections[self] = None

    def cut(self) -> None:
        """Reset it, for both ends to notice."""
        for end in self.ends:
            end.schedule(end.lose, ConnectionResetError("connection reset by peer"))

    def gone(self) -> None:
        """Both ends know that it is over."""
        if all(end.lost for end in self.ends):
            self.network.connections.pop(self, None)


class End(asyncio.Transport):
    """One end of a connection."""

    peer: End
    addresses: dict[str, tuple[str, int]]

    def __init__(self, network: Network, connection: Connection, number: int, process: Process) -> None:
        """`open` gives it its protocol."""
        super().__init__()
        self.protocol: Any = None
        self.lost = False
        self.sent_ms = 0
        """When what is being received was sent, by the sender's clock."""
        self._network = network
        self.connection = connection
        self._number = number
        self.process = process
        self._loop = asyncio.get_running_loop()
        self._received: deque[tuple[bytes, int]] = deque()
        self._received_bytes = 0
        self._on_way = 0
        self._arrives = 0.0
        self._reading, self._pumping, self._closing, self._paused, self._eof = True, False, False, False, False
        self._high, self._low = 64 * 1024, 16 * 1024
        process.connections[self] = None

    def open(self, protocol: Any) -> None:
        """Tell the protocol, in its own process."""
        self.protocol = protocol
        protocol.connection_made(self)
        self._pump()

    # -- asyncio.Transport

    def get_extra_info(self, name: str, default: object = None) -> Any:
        """The addresses."""
        return self.addresses.get(name, default)

    def is_closing(self) -> bool:
        """Whether it is over, or nearly."""
        return self._closing or self.lost

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send."""
        if self.is_closing() or not data or not self.process.alive:
            return
        sent = bytes(data)
        self._network.digest.update(b"%.9f %b" % (self._loop.time(), sent))
        self._on_way += len(sent)
        self._after_latency(self.peer._arrived, sent, self.process.host.now_ms())
        self._mind_limits()

    def writelines(self, list_of_data: Any) -> None:
        """Send all of it."""
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Send what was written, then the end."""
        if self.is_closing() or not self.process.alive:
            return
        self._closing = True
        self._after_latency(self.peer._ended)
        self.schedule(self.lose, None)

    def abort(self) -> None:
        """Throw away what was not sent."""
        if self.lost or not self.process.alive:
            return
        self._closing = True
        self._after_latency(self.peer.lose, ConnectionResetError("connection reset by peer"))
        self.schedule(self.lose, None)

    def pause_reading(self) -> None:
        """Nothing more, please."""
        self._reading = False

    def resume_reading(self) -> None:
        """Go on."""
        self._reading = True
        self._pump()

    def is_reading(self) -> bool:
        """Whether it is not paused."""
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When the protocol is told to pause and to go on."""
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """What the other side's system did not take."""
        return max(self._on_way + self.peer._received_bytes - SOCKET_BYTES, 0)

    # -- the network's side

    def killed(self) -> None:
        """The process is gone; its system closes the connection."""
        self.lost = True
        self._after_latency(self.peer.lose, ConnectionResetError("connection reset by peer"))
        self.connection.gone()

    def schedule(self, work: Callable[..., object], *args: object) -> None:
        """Soon, in this end's process."""
        self._loop.call_soon(work, *args, context=self.process.context)

    def lose(self, error: Exception | None) -> None:
        """It is over."""
        if self.lost:
            return
        self.lost = True
        self.process.connections.pop(self, None)
        self.connection.gone()
        if self.protocol is not None:
            self.protocol.connection_lost(error)

    def _after_latency(self, work: Callable[..., object], *args: object) -> None:
        """At the other end, in order; never if the line swallows it."""
        # What was sent later arrives later, if only by a nanosecond: the loop does not keep the order of one instant.
        self._arrives = max(self._arrives + 1e-9, self._loop.time() + self._network.latency())
        if self.connection.silent[self._number]:
            return
        cut_off = self._network.cut_off
        if self.process.host.name in cut_off or self.peer.process.host.name in cut_off:
            return
        self._loop.call_at(self._arrives, work, *args, context=self.peer.process.context)

    def _arrived(self, data: bytes, sent_ms: int) -> None:
        self.peer._on_way -= len(data)
        if self.lost:
            return
        self._received.append((data, sent_ms))
        self._received_bytes += len(data)
        self._pump()

    def _ended(self) -> None:
        self._eof = True
        self._pump()

    def _pump(self) -> None:
        """Hand on what has arrived, a portion for each turn of the loop."""
        if not self._pumping and self.protocol is not None and (self._received or self._eof):
            self._pumping = True
            self.schedule(self._hand_on)

    def _hand_on(self) -> None:
        self._pumping = False
        if self.lost or not self._reading:
            return
        if self._closing:
            self._received.clear()  # whoever closes is not told anything any more
            return
        if self._received:
            data, self.sent_ms = self._received.popleft()
            if isinstance(self.protocol, asyncio.BufferedProtocol):
                buffer: Any = self.protocol.get_buffer(-1)
                portion = data[: len(buffer)]
                if len(portion) < len(data):
                    self._received.appendleft((data[len(portion) :], self.sent_ms))
                buffer[: len(portion)] = portion
                self._received_bytes -= len(portion)
                self.protocol.buffer_updated(len(portion))
            else:
                self._received_bytes -= len(data)
                self.protocol.data_received(data)
            self.peer._mind_limits()
            self._pump()
        elif self._eof and not self._closing:
            self.close()

    def _mind_limits(self) -> None:
        size = self.get_write_buffer_size()
        if self.lost or self.protocol is None:
            return
        if not self._paused and size > self._high:
            self._paused = True
            self.schedule(self.protocol.pause_writing)
        elif self._paused and size <= self._low:
            self._paused = False
            self.schedule(self.protocol.resume_writing)
