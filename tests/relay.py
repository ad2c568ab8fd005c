"""Addresses in front of one broker, which look like several brokers to whoever follows lookups."""

import asyncio
import contextlib
from urllib.parse import urlsplit

from bridge.protocol.frames import Frame, FrameDecoder, encode_frame
from bridge.protocol.pulsar_pb2 import BaseCommand

ROOM = 8 * 1024 * 1024


class Relay:
    """Passes everything on; remembers who its clients said they are."""

    def __init__(self, broker_url: str, homes: dict[str, str] | None = None) -> None:
        """`homes`: topics, and the service URLs that lookups of them are answered with."""
        self.url = ""
        self.said: list[bytes] = []
        """Credentials, in CONNECT or in answer to a challenge."""
        self._broker = urlsplit(broker_url)
        self._homes = {} if homes is None else homes
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "Relay":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"pulsar://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Wherever a task was when the test ended: nothing that it had opened stays open.
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*[writer.wait_closed() for writer in self._writers], return_exceptions=True)

    def _accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self._writers.add(to_client)
        task = asyncio.get_running_loop().create_task(self._serve(client, to_client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        broker, to_broker = await asyncio.open_connection(self._broker.hostname, self._broker.port)
        self._writers.add(to_broker)
        asked: dict[int, str] = {}
        pairs = ((client, to_broker), (broker, to_client))
        ways = [asyncio.create_task(self._pass(source, target, asked)) for source, target in pairs]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for writer in (to_client, to_broker):
                writer.close()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, asked: dict[int, str]) -> None:
        decoder = FrameDecoder(ROOM)
        with contextlib.suppress(OSError):
            while data := await source.read(64 * 1024):
                for frame in decoder.feed(data):
                    target.write(self._look(frame, asked))
                await target.drain()

    def _look(self, frame: Frame, asked: dict[int, str]) -> bytes | memoryview:
        if frame.type == BaseCommand.CONNECT:
            self.said.append(frame.command().connect.auth_data)
        elif frame.type == BaseCommand.AUTH_RESPONSE:
            self.said.append(frame.command().authResponse.response.auth_data)
        elif frame.type == BaseCommand.LOOKUP:
            lookup = frame.command().lookupTopic
            asked[lookup.request_id] = lookup.topic
        elif frame.type == BaseCommand.LOOKUP_RESPONSE:
            command = frame.command()
            response = command.lookupTopicResponse
            home = self._homes.get(asked.get(response.request_id, ""))
            if home is not None and response.HasField("brokerServiceUrl"):
                response.brokerServiceUrl, response.proxy_through_service_url = home, False
                return encode_frame(command)
        return frame.data
