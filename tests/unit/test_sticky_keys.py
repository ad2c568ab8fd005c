"""Keys of entries and their hashes, as the broker computes them, and how consumers ask for keys to be shared."""

import base64
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from bridge.protocol.pulsar_pb2 import CommandSubscribe, KeySharedMode, MessageMetadata
from bridge.protocol.sticky_keys import HASHES, KeySharing, hashed, ranges_of, sticky_key


def entry(**fields: Any) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=7, publish_time=1)
    for name, value in fields.items():
        setattr(metadata, name, value)
    body = metadata.SerializeToString()
    return len(body).to_bytes(4, "big") + body + b"payload"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"hello", 0x248BFA47),
        (b"hello, world", 0x149BBB7F),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
        (b"\xff", 0xFD6CF10D),
        (b"\0\0\0\0", 0x2362F9DE),
    ],
)
def test_murmur3(data: bytes, expected: int) -> None:
    assert hashed(data) == expected & 0x7FFFFFFF


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({}, b"p-7"),
        ({"partition_key": "k"}, b"k"),
        ({"partition_key": ""}, b""),
        ({"partition_key": "k\u00e9"}, b"k\xc3\xa9"),
        ({"partition_key": "k", "ordering_key": b"\x00o"}, b"\x00o"),
        ({"partition_key": base64.b64encode(b"\x01k").decode(), "partition_key_b64_encoded": True}, b"\x01k"),
        ({"partition_key": "no base64", "partition_key_b64_encoded": True}, b"no base64"),
    ],
)
def test_key_of_an_entry(fields: dict[str, Any], key: bytes) -> None:
    """The ordering key first; without any key that of the producer and its number, so such entries spread."""
    assert sticky_key(entry(**fields)) == key


@pytest.mark.parametrize("partition_key_b64_encoded", [True, False])
def test_a_key_that_is_no_text(partition_key_b64_encoded: bool) -> None:
    """Clients that are not Java's write keys of any bytes; the broker reads them as text all the same."""
    raw = entry(partition_key="kkkk", partition_key_b64_encoded=partition_key_b64_encoded)
    assert sticky_key(raw.replace(b"kkkk", b"\xff\xc3(a")) == "\ufffd\ufffd(a".encode()


def test_what_cannot_be_read_has_one_key() -> None:
    assert sticky_key(b"\x00\x00\x00\x05x") == b"NONE_KEY"


@hypothesis.given(st.text(), st.booleans())
def test_hashes_are_never_0(key: str, sticky: bool) -> None:
    assert 1 <= KeySharing(sticky).hash_of(entry(partition_key=key)) < HASHES


def test_0_is_1_where_consumers_name_their_ranges() -> None:
    key = next(str(number) for number in range(1 << 20) if hashed(str(number).encode()) % HASHES == 0)
    assert KeySharing(sticky=True).hash_of(entry(partition_key=key)) == 1


def subscribe(**fields: Any) -> CommandSubscribe:
    command = CommandSubscribe(topic="t", subscription="s", subType=CommandSubscribe.Key_Shared)
    command.consumer_id = command.request_id = 1
    for name, value in fields.items():
        setattr(command, name, value)
    return command


def test_other_types_share_no_keys() -> None:
    assert KeySharing.of(subscribe(subType=CommandSubscribe.Shared)) is None


def test_without_a_wish_keys_are_split_and_ordered() -> None:
    assert KeySharing.of(subscribe()) == KeySharing(sticky=False, out_of_order=False)
    assert ranges_of(subscribe()) == ()


def test_wishes() -> None:
    command = subscribe()
    command.keySharedMeta.keySharedMode = KeySharedMode.STICKY
    command.keySharedMeta.allowOutOfOrderDelivery = True
    for start, end in ((0, 9), (-5, 3), (65_000, 1 << 20), (1 << 20, 1 << 21), (5, 4)):
        command.keySharedMeta.hashRanges.add(start=start, end=end)
    assert KeySharing.of(command) == KeySharing(sticky=True, out_of_order=True)
    assert ranges_of(command) == ((0, 9), (0, 3), (65_000, 65_535))
