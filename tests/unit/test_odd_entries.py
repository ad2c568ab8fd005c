"""Entries as a producer that lies writes them: whatever is asked of them, there is an answer, for they go on."""

import random

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from bridge.protocol.entries import chunk_of, stored_entry
from bridge.protocol.frames import FrameDecoder, encode_frame, without_broker_metadata
from bridge.protocol.pulsar_pb2 import BaseCommand, MessageMetadata
from bridge.protocol.sticky_keys import HASHES, KeySharing
from spark_jobs.ledgers.entry import LedgerEntry, deliver_at_of, message_count_of
from spark_jobs.stages.source import key_of, properties_of

TEXT = st.text("a=/\u00e9\u20ac\U0001f600", max_size=8)
WHOLE = st.integers(-(2**31), 2**31 - 1)
MESSAGE = BaseCommand(type=BaseCommand.MESSAGE, message={"consumer_id": 1, "message_id": {"ledgerId": 1, "entryId": 2}})


@st.composite
def metadatas(draw: st.DrawFn) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=draw(st.integers(0, 2**64 - 1)), publish_time=1)
    if draw(st.booleans()):
        metadata.deliver_at_time = draw(st.integers(-(2**63), 2**63 - 1))
    if draw(st.booleans()):
        metadata.num_messages_in_batch = draw(WHOLE)
    if draw(st.booleans()):
        metadata.partition_key, metadata.partition_key_b64_encoded = draw(TEXT), draw(st.booleans())
    if draw(st.booleans()):
        metadata.ordering_key = draw(st.binary())
    if draw(st.booleans()):
        metadata.num_chunks_from_msg, metadata.chunk_id = draw(WHOLE), draw(WHOLE)
        metadata.uuid = draw(TEXT)
    if draw(st.booleans()):
        metadata.properties.add(key=draw(TEXT), value=draw(TEXT))
    return metadata.SerializeToString()


def mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randrange(4)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


@given(metadatas(), st.binary(max_size=20), st.randoms(use_true_random=False), st.sampled_from(["", "0e01", "0e02"]))
def test_there_is_an_answer(metadata: bytes, payload: bytes, chance: random.Random, magic: str) -> None:
    size = len(metadata).to_bytes(4, "big")
    raw = bytes.fromhex(magic) + (b"\0\0\0\0" if magic else b"") + size + mutated(metadata, chance) + payload
    raw = raw if chance.random() < 0.8 else mutated(raw, chance)
    (frame,) = FrameDecoder().feed(encode_frame(MESSAGE, raw))
    stored = stored_entry(frame, frame.command().message)
    assert stored.raw == raw
    assert stored.message_count >= 1
    for sharing in (KeySharing(), KeySharing(sticky=True)):
        assert 1 <= sharing.hash_of(raw) < HASHES
    hash(chunk_of(raw))
    assert raw.endswith(without_broker_metadata(raw))


@given(metadatas(), st.randoms(use_true_random=False))
def test_there_is_a_row(metadata: bytes, chance: random.Random) -> None:
    try:
        read = MessageMetadata.FromString(mutated(metadata, chance))
    except DecodeError:
        return
    entry = LedgerEntry(1, 2, read, b"")
    assert message_count_of(entry) >= 1
    assert type(key_of(entry)) in (str, type(None))
    assert {type(text) for row in properties_of(entry) for text in row} <= {str}
    assert type(deliver_at_of(entry)) in (int, type(None))
