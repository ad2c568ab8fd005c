"""Frames cut from any chunks, and refused before they cost memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.protocol import commands
from bridge.protocol.entries import stored_entry
from bridge.protocol.errors import FrameTooLarge, MalformedFrame, ProtocolError
from bridge.protocol.frames import (
    BROKER_ENTRY_METADATA_MAGIC,
    CHECKSUM_MAGIC,
    FRAME_PADDING,
    RUN,
    Frame,
    FrameDecoder,
    MessageFramer,
    encode_frame,
    encode_varint,
    entry_metadata,
    without_broker_metadata,
)
from bridge.protocol.pulsar_pb2 import BaseCommand, BrokerEntryMetadata, MessageMetadata

UINT64 = st.integers(0, 2**64 - 1)
UINT32 = st.integers(0, 2**32 - 1)


def ping() -> BaseCommand:
    return BaseCommand(type=BaseCommand.PING, ping={})


def flow(consumer_id: int) -> BaseCommand:
    return BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": consumer_id, "messagePermits": 1})


def message(entry_id: int) -> BaseCommand:
    message_id = {"ledgerId": 1, "entryId": entry_id}
    return BaseCommand(type=BaseCommand.MESSAGE, message={"consumer_id": 1, "message_id": message_id})


FRAMES = st.one_of(
    st.just(encode_frame(ping())),
    st.integers(0, 2**40).map(lambda number: encode_frame(flow(number))),
    st.builds(lambda number, entry: encode_frame(message(number), entry), UINT64, st.binary(max_size=300)),
)
STREAMS = st.lists(FRAMES, max_size=20)


@st.composite
def chunked_streams(draw: st.DrawFn) -> tuple[list[bytes], list[bytes]]:
    """Frames, and the same bytes cut anywhere."""
    frames = draw(STREAMS)
    stream = b"".join(frames)
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    return frames, [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


# -- cutting


@given(chunked_streams())
def test_any_chunks_give_the_same_frames(case: tuple[list[bytes], list[bytes]]) -> None:
    frames, chunks = case
    decoder = FrameDecoder()
    found = [bytes(frame.data) for chunk in chunks for frame in decoder.feed(chunk)]
    assert found == frames
    assert decoder.buffered == 0


@given(chunked_streams())
def test_runs_hold_neighbours_of_relayed_types_only(case: tuple[list[bytes], list[bytes]]) -> None:
    frames, chunks = case
    decoder = FrameDecoder()
    relayed = frozenset({int(BaseCommand.MESSAGE), int(BaseCommand.PING)})
    found = [frame for chunk in chunks for frame in decoder.feed(chunk, relayed)]
    assert b"".join(bytes(frame.data) for frame in found) == b"".join(frames)
    for frame in found:
        types = {each.type for each in FrameDecoder().feed(bytes(frame.data))}
        assert types <= relayed if frame.type == RUN else types == {frame.type}
        assert frame.type == RUN or frame.type not in relayed


def test_types_and_commands() -> None:
    frames = FrameDecoder().feed(encode_frame(ping()) + encode_frame(message(5), b"entry"))
    assert [frame.type for frame in frames] == [BaseCommand.PING, BaseCommand.MESSAGE]
    assert frames[1].command().message.message_id.entryId == 5
    assert frames[1].entry() == b"entry"
    assert frames[0].entry() == b""


def test_a_large_frame_in_small_chunks() -> None:
    frame = encode_frame(message(1), bytes(1_000_000))
    decoder = FrameDecoder()
    for start in range(0, len(frame) - 1_000, 1_000):
        assert decoder.feed(frame[start : start + 1_000]) == []
        assert decoder.buffered == start + 1_000
    (found,) = decoder.feed(frame[decoder.buffered :])
    assert bytes(found.data) == frame


def test_a_type_that_is_not_written_first() -> None:
    """Any order of fields is good protobuf."""
    body = ping().SerializeToString()
    swapped = body[2:] + body[:2]
    assert BaseCommand.FromString(swapped).type == BaseCommand.PING
    data = (4 + len(swapped)).to_bytes(4, "big") + len(swapped).to_bytes(4, "big") + swapped
    assert FrameDecoder().feed(data)[0].type == BaseCommand.PING


# -- refusing


@pytest.mark.parametrize("limit", [0, 100, 5 * 1024 * 1024])
def test_the_size_is_checked_before_anything_is_kept(limit: int) -> None:
    decoder = FrameDecoder(limit)
    largest = limit + FRAME_PADDING
    decoder.feed(largest.to_bytes(4, "big"))
    decoder = FrameDecoder(limit)
    with pytest.raises(FrameTooLarge, match=str(largest + 1)):
        decoder.feed((largest + 1).to_bytes(4, "big"))
    assert decoder.buffered == 0


@pytest.mark.parametrize("cut", range(4))
def test_a_size_in_pieces_is_checked_as_soon_as_it_is_whole(cut: int) -> None:
    data = (2**31).to_bytes(4, "big")
    decoder = FrameDecoder(1_000)
    if cut:
        decoder.feed(data[:cut])
    with pytest.raises(FrameTooLarge):
        decoder.feed(data[cut:])
    assert decoder.buffered < 4


def test_an_oversized_frame_behind_good_ones() -> None:
    decoder = FrameDecoder(1_000)
    with pytest.raises(FrameTooLarge):
        decoder.feed(encode_frame(ping()) * 3 + b"\x7f\xff\xff\xff")


def test_a_changed_limit() -> None:
    frame = encode_frame(message(1), bytes(50_000))
    decoder = FrameDecoder(1_000)
    decoder.limit_to(100_000)
    assert len(decoder.feed(frame)) == 1
    decoder.limit_to(1_000)
    with pytest.raises(FrameTooLarge):
        decoder.feed(frame)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x05\x00\x00\x00\x01\x08",
        b"\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\x00\x00\x00\x08\x00\x00\x00\x05\x08\x12\x00\x00",
        b"\x00\x00\x00\x08\xff\xff\xff\xff\x08\x12\x00\x00",
        b"\x00\x00\x00\x08\x00\x00\x00\x04\xff\xff\xff\xff",
    ],
)
def test_sizes_that_contradict_each_other(data: bytes) -> None:
    with pytest.raises(MalformedFrame):
        FrameDecoder().feed(data)


def test_a_command_that_cannot_be_parsed() -> None:
    body = b"\x08\x12\xff\xff\xff\xff"
    data = (4 + len(body)).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body
    (frame,) = FrameDecoder().feed(data)
    with pytest.raises(MalformedFrame, match="type 18"):
        frame.command()


def test_a_required_field_that_is_missing_deep_inside() -> None:
    command = BaseCommand(type=BaseCommand.LOOKUP)
    command.lookupTopic.topic, command.lookupTopic.request_id = "t", 1
    command.lookupTopic.properties.add(value="of what?")
    with pytest.raises(MalformedFrame, match=r"lookupTopic.properties\[0\].key"):
        encode_frame(command)


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_nonsense_gives_frames_or_a_typed_error(chunks: list[bytes]) -> None:
    decoder = FrameDecoder(100)
    try:
        for chunk in chunks:
            for frame in decoder.feed(chunk):
                frame.command()
                stored_entry(frame, message(1).message)
    except ProtocolError:
        return
    assert decoder.buffered < 4 + 100 + FRAME_PADDING


# -- building


@given(UINT64, st.integers(-1, 2**31 - 1), UINT64, UINT64, UINT32, st.integers(0, 2**20), st.lists(UINT64, max_size=70))
def test_message_heads_equal_protobufs(
    consumer_id: int,
    partition: int,
    ledger: int,
    entry: int,
    redelivery_count: int,
    entry_size: int,
    ack_set: list[int],
) -> None:
    command = BaseCommand(type=BaseCommand.MESSAGE)
    command.message.consumer_id = consumer_id
    command.message.message_id.ledgerId = ledger
    command.message.message_id.entryId = entry
    command.message.message_id.partition = partition
    if redelivery_count:
        command.message.redelivery_count = redelivery_count
    signed = [word - 2**64 if word >= 2**63 else word for word in ack_set]
    command.message.ack_set.extend(signed)
    expected = encode_frame(command, bytes(entry_size))
    framer = MessageFramer(consumer_id, partition)
    for words in (ack_set, signed):  # as read from an ACK they are signed
        head = framer.head(ledger, entry, redelivery_count, entry_size, tuple(words))
        assert head == expected[: len(expected) - entry_size]


def test_heads_of_changing_ledgers() -> None:
    framer = MessageFramer(1)
    for ledger in (5, 5, 300, 5):
        (frame,) = FrameDecoder().feed(framer.head(ledger, 7, 0, 0))
        assert frame.command().message.message_id.ledgerId == ledger


@given(UINT64)
def test_varints(value: int) -> None:
    command = flow(value).flow
    assert command.SerializeToString().startswith(b"\x08" + encode_varint(value))


# -- entries


def entry_of(metadata: MessageMetadata, payload: bytes, *, checksum: bool, broker_metadata: bool) -> bytes:
    body = metadata.SerializeToString()
    result = len(body).to_bytes(4, "big") + body + payload
    if checksum:
        result = CHECKSUM_MAGIC + b"\x01\x02\x03\x04" + result  # passed on, never looked at
    if broker_metadata:
        block = BrokerEntryMetadata(broker_timestamp=1, index=2).SerializeToString()
        result = BROKER_ENTRY_METADATA_MAGIC + len(block).to_bytes(4, "big") + block + result
    return result


@given(st.booleans(), st.booleans(), st.integers(-(2**63), 2**63 - 1) | st.none(), st.binary(max_size=50))
def test_metadata_behind_any_headers(
    checksum: bool, broker_metadata: bool, deliver_at: int | None, payload: bytes
) -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=7)
    if deliver_at is not None:
        metadata.deliver_at_time = deliver_at
    raw = entry_of(metadata, payload, checksum=checksum, broker_metadata=broker_metadata)
    assert entry_metadata(raw) == metadata
    (frame,) = FrameDecoder().feed(encode_frame(message(9), raw))
    stored = stored_entry(frame, frame.command().message)
    assert (stored.ledger, stored.entry, stored.message_count) == (1, 9, 7)
    assert stored.deliver_at_ms == deliver_at
    assert stored.raw == raw
    assert not stored.marker


@given(st.booleans(), st.binary(max_size=50))
def test_without_what_the_broker_has_noted(checksum: bool, payload: bytes) -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2)
    bare = entry_of(metadata, payload, checksum=checksum, broker_metadata=False)
    assert without_broker_metadata(bare) == bare
    assert without_broker_metadata(entry_of(metadata, payload, checksum=checksum, broker_metadata=True)) == bare
    assert without_broker_metadata(BROKER_ENTRY_METADATA_MAGIC) == BROKER_ENTRY_METADATA_MAGIC


def test_markers() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, marker_type=20)
    raw = entry_of(metadata, b"", checksum=True, broker_metadata=False)
    (frame,) = FrameDecoder().feed(encode_frame(message(9), raw))
    assert stored_entry(frame, frame.command().message).marker


@given(st.integers(0, 80), st.booleans(), st.booleans())
def test_an_entry_cut_short(length: int, checksum: bool, broker_metadata: bool) -> None:
    metadata = MessageMetadata(producer_name="producer", sequence_id=1, publish_time=2)
    raw = entry_of(metadata, b"", checksum=checksum, broker_metadata=broker_metadata)
    if length >= len(raw):
        return
    with pytest.raises(MalformedFrame):
        entry_metadata(raw[:length])


def test_a_frame_knows_its_own_sizes() -> None:
    data = encode_frame(ping(), b"abc")
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert Frame(BaseCommand.PING, memoryview(data)).entry() == b"abc"


@pytest.mark.parametrize(
    ("command", "text", "field"),
    [
        (commands.subscribe_shared("t", "text", 1, 2, "n"), b"text", "CommandSubscribe.subscription"),
        (commands.lookup("text", 1, False), b"text", "CommandLookupTopic.topic"),
        (
            BaseCommand(
                type=BaseCommand.PRODUCER,
                producer={"topic": "t", "producer_id": 1, "request_id": 1, "metadata": [{"key": "k", "value": "text"}]},
            ),
            b"text",
            "KeyValue.value",
        ),
        (
            BaseCommand(
                type=BaseCommand.ADD_PARTITION_TO_TXN,
                addPartitionToTxn={"request_id": 1, "partitions": ["t", "text"]},
            ),
            b"text",
            "CommandAddPartitionToTxn.partitions",
        ),
    ],
)
def test_text_that_is_none(command: BaseCommand, text: bytes, field: str) -> None:
    """The parser would leave bytes in its place, wherever it is."""
    (frame,) = FrameDecoder().feed(encode_frame(command).replace(text, b"te\xfft"))
    with pytest.raises(MalformedFrame, match=f"{field} is no UTF-8"):
        frame.command()
    (frame,) = FrameDecoder().feed(encode_frame(command))
    assert frame.command() == command
