"""The least of a broker that connections of the bridge and of its clients come up against, to answer wrongly with."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from bridge.protocol import commands
from bridge.protocol.frames import FrameDecoder, encode_frame
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandMessage
from tests.helpers import wait_until_async

Answer = Callable[[BaseCommand], list[bytes]]


def success(request_id: int) -> bytes:
    return encode_frame(BaseCommand(type=BaseCommand.SUCCESS, success={"request_id": request_id}))


def last_message_id(request_id: int, ledger: int = 1, entry: int = 7) -> bytes:
    command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
    response = command.getLastMessageIdResponse
    response.request_id = request_id
    response.last_message_id.ledgerId, response.last_message_id.entryId = ledger, entry
    return encode_frame(command)


def message(consumer_id: int, ledger: int, entry: int, raw: bytes) -> bytes:
    body = CommandMessage(consumer_id=consumer_id)
    body.message_id.ledgerId, body.message_id.entryId = ledger, entry
    return encode_frame(BaseCommand(type=BaseCommand.MESSAGE, message=body), raw)


class FakeBroker:
    """Answers what it must; `answers` says otherwise by type of command. `send` speaks to all who are connected."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: dict[int, Answer] = {}
        self.heard: list[BaseCommand] = []
        self._writers: list[asyncio.Transport] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "FakeBroker":
        broker = self

        class Side(asyncio.Protocol):
            def __init__(self) -> None:
                self._decoder = FrameDecoder()

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                self._transport = cast(asyncio.Transport, transport)
                broker._writers.append(self._transport)

            def data_received(self, data: bytes) -> None:
                for frame in self._decoder.feed(data):
                    command = frame.command()
                    broker.heard.append(command)
                    answer = broker.answers.get(command.type, broker._answer)
                    self._transport.write(b"".join(answer(command)))

            def connection_lost(self, exc: Exception | None) -> None:
                broker._writers.remove(self._transport)

        self._server = await asyncio.get_running_loop().create_server(Side, "127.0.0.1", 0)
        self.url = f"pulsar://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
        await wait_until_async(lambda: not self._writers, "the end of all connections")

    def send(self, data: bytes) -> None:
        for writer in self._writers:
            writer.write(data)

    @property
    def connections(self) -> int:
        return len(self._writers)

    def _answer(self, command: BaseCommand) -> list[bytes]:
        if command.type == BaseCommand.CONNECT:
            return [encode_frame(BaseCommand(type=BaseCommand.CONNECTED, connected={"server_version": "fake"}))]
        if command.type == BaseCommand.PING:
            return [encode_frame(commands.pong())]
        if command.type == BaseCommand.LOOKUP:
            request_id = command.lookupTopic.request_id
            return [encode_frame(commands.lookup_connect(request_id, self.url, authoritative=True))]
        if command.type == BaseCommand.GET_LAST_MESSAGE_ID:
            return [last_message_id(command.getLastMessageId.request_id)]
        body: Any = {
            BaseCommand.SUBSCRIBE: command.subscribe,
            BaseCommand.UNSUBSCRIBE: command.unsubscribe,
            BaseCommand.CLOSE_CONSUMER: command.close_consumer,
            BaseCommand.SEEK: command.seek,
        }.get(command.type)
        return [] if body is None else [success(body.request_id)]
