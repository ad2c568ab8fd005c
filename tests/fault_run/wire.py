"""Relays that are cut, held, or swallow what goes one way: networks between clients, bridges and their broker."""

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal

Way = Literal["there", "back"]
"""From who connected, or to them."""
READ_BYTES = 256 * 1024


class Wire:
    """From one address to another, as many connections as come; its methods but `start` may be called from any thread.

    Made, started and used by a `Network`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, listen: tuple[str, int], target: tuple[str, int]) -> None:
        self.address = listen
        self._loop = loop
        self._target = target
        self._server: asyncio.Server | None = None
        self._links: dict[tuple[asyncio.StreamWriter, asyncio.StreamWriter], None] = {}  # in order
        self._passes = {way: asyncio.Event() for way in ("there", "back")}
        self._swallows: set[str] = set()
        self._refuses = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        for passes in self._passes.values():
            passes.set()
        self._server = await asyncio.start_server(self._serve, *self.address, limit=READ_BYTES)
        self.address = self._server.sockets[0].getsockname()[:2]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self._heal()
        self._cut(1.0, random.Random())
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return "pulsar://{}:{}".format(*self.address)

    # -- what may happen to it

    def cut(self, share: float = 1.0, seed: int = 0) -> None:
        """Connections end, all or a random share of them."""
        self._soon(lambda: self._cut(share, random.Random(seed)))

    def refuse(self, refuses: bool) -> None:
        """Nobody who connects gets through."""
        self._soon(lambda: setattr(self, "_refuses", refuses))

    def hold(self, way: Way) -> None:
        """Nothing gets through one way, and what comes waits, as while packets are lost."""
        self._soon(self._passes[way].clear)

    def swallow(self, way: Way) -> None:
        """What is sent one way is gone; a connection that has lost something has to be cut."""
        self._soon(lambda: self._swallows.add(way))

    def heal(self) -> None:
        """Everything passes again; who has lost something is cut off."""
        self._soon(self._heal)

    def _heal(self) -> None:
        if self._swallows:
            self._cut(1.0, random.Random())
        self._swallows.clear()
        self._refuses = False
        for passes in self._passes.values():
            passes.set()

    def _cut(self, share: float, chance: random.Random) -> None:
        for link in chance.sample(list(self._links), round(share * len(self._links))):
            for writer in link:
                writer.transport.abort()

    def _soon(self, work: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(work)

    # -- what goes through it

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._refuses:
            writer.transport.abort()
            return
        try:
            there_reader, there = await asyncio.open_connection(*self._target, limit=READ_BYTES)
        except OSError:
            writer.transport.abort()
            return
        self._links[writer, there] = None
        ways = [
            asyncio.create_task(self._pump("there", reader, there)),
            asyncio.create_task(self._pump("back", there_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._links.pop((writer, there), None)
            for way in ways:
                way.cancel()
            for end in (writer, there):
                end.transport.abort()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pump(self, way: Way, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(READ_BYTES):
                await self._passes[way].wait()
                if way not in self._swallows:
                    target.write(data)
                    await target.drain()


class Network:
    """Wires, in a thread of their own; `close` ends them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._wires: list[Wire] = []

    def wire(self, listen: tuple[str, int], target: tuple[str, int]) -> Wire:
        """Listening; port 0 takes a free one."""
        wire = Wire(self._loop, listen, target)
        self._run(wire.start())
        self._wires.append(wire)
        return wire

    def close(self) -> None:
        for wire in self._wires:
            self._run(wire.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
