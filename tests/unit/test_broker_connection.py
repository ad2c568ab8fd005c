"""What a broker says on a connection of the bridge's own, and says wrongly: nobody waits for ever, or for another."""

import asyncio
from collections.abc import AsyncIterator
from struct import pack

import pytest
import pytest_asyncio

from bridge.broker.acknowledger import acknowledge
from bridge.broker.connection import BrokerConnection, BrokerError, connect
from bridge.broker.fetch import fetch_entries, read_range
from bridge.broker.pool import BrokerPool
from bridge.broker.reader import EntryReader, open_reader
from bridge.limits import ConnectionLimits
from bridge.protocol.entries import StoredEntry
from bridge.protocol.frames import encode_frame, encode_varint
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandLookupTopicResponse, MessageMetadata
from tests.fake_broker import FakeBroker, last_message_id, message, success
from tests.helpers import wait_until_async
from tracker import EARLIEST, Position

TOPIC = "persistent://public/default/t"


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as started:
        yield started


@pytest_asyncio.fixture
async def connection(broker: FakeBroker) -> AsyncIterator[BrokerConnection]:
    opened = await connect(broker.url, ConnectionLimits())
    yield opened
    opened.close()
    await opened.closed


class Told:
    """What a reader's owner is told."""

    def __init__(self, raises: Exception | None = None) -> None:
        self.entries: list[StoredEntry] = []
        self.closed: list[Exception] = []
        self.raises = raises

    def on_entries(self, entries: list[StoredEntry]) -> None:
        if self.raises is not None:
            raise self.raises
        self.entries += entries


async def reader_of(connection: BrokerConnection, told: Told) -> EntryReader:
    return await open_reader(connection, TOPIC, EARLIEST, told.on_entries, told.closed.append)


def raw_frame(command: bytes, entry: bytes = b"") -> bytes:
    return pack(">II", 4 + len(command) + len(entry), len(command)) + command + entry


def command_of(kind: int, body: bytes) -> bytes:
    """A command whose body is not what protobuf would write."""
    return b"\x08" + encode_varint(kind) + encode_varint(kind << 3 | 2) + encode_varint(len(body)) + body


def entry(deliver_at_time: int | None = None) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, deliver_at_time=deliver_at_time)
    body = metadata.SerializeToString()
    return pack(">I", len(body)) + body + b"payload"


UNKNOWN_ERROR = command_of(BaseCommand.ERROR, b"\x10" + encode_varint(9_999) + b"\x1a\x03odd")
PASSED_OVER = {
    "an unknown command": raw_frame(command_of(120, b"\x08\x01")),
    "an unknown command of a high number": raw_frame(command_of(300, b"")),
    "a command without a body": raw_frame(b"\x08" + encode_varint(BaseCommand.SUCCESS)),
    "an answer to a request nobody made": success(4_711),
    "an error to a request nobody made": raw_frame(command_of(BaseCommand.ERROR, b"\x08\xe7\x24\x10\x01\x1a\x01x")),
    "a message for a consumer that is not there": message(4_711, 1, 1, entry()),
    "a message without a body": raw_frame(b"\x08" + encode_varint(BaseCommand.MESSAGE)),
    "a consumer closed that is not there": encode_frame(
        BaseCommand(type=BaseCommand.CLOSE_CONSUMER, close_consumer={"consumer_id": 4_711, "request_id": 1})
    ),
    "another CONNECTED": encode_frame(BaseCommand(type=BaseCommand.CONNECTED, connected={"server_version": "x"})),
    "an error of an unknown code to nobody": raw_frame(UNKNOWN_ERROR),
}


@pytest.mark.parametrize("odd", PASSED_OVER.values(), ids=PASSED_OVER)
async def test_what_means_nothing_here_is_passed_over(
    broker: FakeBroker, connection: BrokerConnection, odd: bytes
) -> None:
    told = Told()
    reader = await reader_of(connection, told)
    broker.send(odd)
    broker.send(message(reader.consumer_id, 1, 1, entry()))
    assert await reader.last_position() == Position(1, 7)
    assert [each.entry for each in told.entries] == [1]
    assert not told.closed
    reader.close()


BROKEN = {
    "a frame shorter than a command": pack(">II", 3, 0),
    "a frame larger than agreed": pack(">II", 1 << 30, 4),
    "a command longer than its frame": pack(">II", 20, 4_000) + bytes(16),
    "a command that is none": raw_frame(b"\xff\xff\xff\xff\xff\xff"),
}


@pytest.mark.parametrize("odd", BROKEN.values(), ids=BROKEN)
async def test_what_is_no_frame_ends_the_connection(
    broker: FakeBroker, connection: BrokerConnection, odd: bytes
) -> None:
    """All who wait and read are told."""
    told = Told()
    reader = await reader_of(connection, told)
    broker.answers[BaseCommand.GET_LAST_MESSAGE_ID] = lambda _: [odd]
    with pytest.raises(BrokerError, match="closed"):
        await reader.last_position()
    assert [type(each) for each in told.closed] == [BrokerError]
    assert connection.is_closed


@pytest.mark.parametrize(
    ("raw", "deliver_at_ms"),
    [
        (b"", None),
        (b"\x00", None),
        (pack(">I", 1_000) + b"short", None),
        (pack(">I", 4) + b"\xff\xff\xff\xff", None),
        (b"\x0e\x02" + pack(">I", 1 << 31), None),
        (entry(deliver_at_time=-5), -5),
        (entry(deliver_at_time=(1 << 63) - 1), (1 << 63) - 1),
    ],
)
async def test_a_message_with_broken_metadata_is_passed_on(
    broker: FakeBroker, connection: BrokerConnection, raw: bytes, deliver_at_ms: int | None
) -> None:
    told = Told()
    reader = await reader_of(connection, told)
    broker.send(message(reader.consumer_id, 1, 1, raw) + message(reader.consumer_id, 1, 2, entry()))
    await wait_until_async(lambda: len(told.entries) == 2, "both")
    assert (told.entries[0].deliver_at_ms, told.entries[0].raw) == (deliver_at_ms, raw)
    reader.close()


async def test_an_answer_of_another_type_is_none(broker: FakeBroker, connection: BrokerConnection) -> None:
    """Taken for what was asked, it would say that the topic ends at 0:0, or that its broker is anywhere."""
    reader = await reader_of(connection, Told())
    broker.answers[BaseCommand.GET_LAST_MESSAGE_ID] = lambda it: [success(it.getLastMessageId.request_id)]
    with pytest.raises(BrokerError, match="gave another answer: SUCCESS"):
        await reader.last_position()
    pool = BrokerPool(broker.url, ConnectionLimits())
    broker.answers[BaseCommand.LOOKUP] = lambda it: [success(it.lookupTopic.request_id)]
    with pytest.raises(BrokerError, match="gave another answer: SUCCESS"):
        await pool.for_topic(TOPIC)
    broker.answers[BaseCommand.SUBSCRIBE] = lambda it: [last_message_id(it.subscribe.request_id)]
    with pytest.raises(BrokerError, match="gave another answer: GET_LAST_MESSAGE_ID_RESPONSE"):
        await reader_of(connection, Told())
    del broker.answers[BaseCommand.GET_LAST_MESSAGE_ID]
    assert await reader.last_position() == Position(1, 7)
    reader.close()
    await pool.close()


async def test_an_error_of_an_unknown_code_is_an_error(broker: FakeBroker, connection: BrokerConnection) -> None:
    reader = await reader_of(connection, Told())

    def refuse(command: BaseCommand) -> list[bytes]:
        request_id = b"\x08" + encode_varint(command.getLastMessageId.request_id)
        return [raw_frame(command_of(BaseCommand.ERROR, request_id + b"\x10" + encode_varint(9_999) + b"\x1a\x03odd"))]

    broker.answers[BaseCommand.GET_LAST_MESSAGE_ID] = refuse
    with pytest.raises(BrokerError, match="odd"):
        await reader.last_position()
    reader.close()


async def test_an_ack_refused_by_an_unknown_code_is_refused(broker: FakeBroker, connection: BrokerConnection) -> None:
    """Else an operator would be told that a message was cancelled."""

    def refuse(command: BaseCommand) -> list[bytes]:
        fields = b"\x08\x01" + b"\x20" + encode_varint(9_999) + b"\x30" + encode_varint(command.ack.request_id)
        return [raw_frame(command_of(BaseCommand.ACK_RESPONSE, fields))]

    broker.answers[BaseCommand.ACK] = refuse
    with pytest.raises(BrokerError, match="not known here"):
        await acknowledge(connection, TOPIC, "s", [Position(1, 1)])


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:1", "pulsar://", "nonsense"])
async def test_a_lookup_that_names_no_broker(broker: FakeBroker, url: str) -> None:
    pool = BrokerPool(broker.url, ConnectionLimits())

    def mislead(command: BaseCommand) -> list[bytes]:
        response = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
        response.lookupTopicResponse.request_id = command.lookupTopic.request_id
        response.lookupTopicResponse.response = CommandLookupTopicResponse.Connect
        response.lookupTopicResponse.brokerServiceUrl = url
        return [encode_frame(response)]

    broker.answers[BaseCommand.LOOKUP] = mislead
    with pytest.raises(BrokerError):
        await pool.for_topic(TOPIC)
    await pool.close()


async def test_who_fails_to_take_entries_is_told_and_nobody_else(
    broker: FakeBroker, connection: BrokerConnection
) -> None:
    """Others read by the same connection."""
    failing, well = Told(raises=KeyError("unheard of")), Told()
    first, second = await reader_of(connection, failing), await reader_of(connection, well)
    both = message(first.consumer_id, 1, 1, entry()) + message(second.consumer_id, 1, 1, entry())
    broker.send(both + message(first.consumer_id, 1, 2, entry()))
    await wait_until_async(lambda: well.entries, "the other's")
    assert [type(each) for each in failing.closed] == [KeyError]
    assert (first.closed, second.closed, connection.is_closed) == (True, False, False)
    await wait_until_async(
        lambda: any(each.close_consumer.consumer_id == first.consumer_id for each in broker.heard), "CLOSE_CONSUMER"
    )
    second.close()


async def test_what_fails_to_take_a_range_fails(broker: FakeBroker, connection: BrokerConnection) -> None:
    """It is no trouble of the broker's, after which one would read again."""

    def give(command: BaseCommand) -> list[bytes]:
        return [message(command.flow.consumer_id, 1, number, entry()) for number in range(3)]

    broker.answers[BaseCommand.FLOW] = give

    def refuse(entries: list[StoredEntry]) -> None:
        raise KeyError("unheard of")

    with pytest.raises(KeyError):
        await read_range(connection, TOPIC, EARLIEST, Position(1, 2), refuse)
    assert (await fetch_entries(connection, TOPIC, [(1, 1), (1, 2)])).found.keys() == {(1, 1), (1, 2)}


async def test_each_listener_is_told_that_the_connection_is_gone(
    broker: FakeBroker, connection: BrokerConnection
) -> None:
    told = Told()

    def refuse(error: Exception) -> None:
        raise KeyError("unheard of")

    caught: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: caught.append(context.get("exception")))
    await open_reader(connection, TOPIC, EARLIEST, told.on_entries, refuse)
    await reader_of(connection, told)
    connection.close()
    await connection.closed
    await wait_until_async(lambda: caught, "the error")
    asyncio.get_running_loop().set_exception_handler(None)
    assert [type(each) for each in told.closed] == [BrokerError]
    assert isinstance(caught[0], KeyError)
