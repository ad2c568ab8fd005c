"""Frames of Pulsar's binary protocol, without I/O.

A frame on the wire (all sizes big-endian, 4 bytes)::

    total size | command size | command | entry

`entry` is there for SEND and MESSAGE only and stays opaque here: an optional broker entry metadata block
(magic 0x0e02), an optional checksum (magic 0x0e01), metadata size, metadata, payload. It is never
copied apart or encoded anew on its way through, so its checksum stays valid.
"""

from struct import Struct
from typing import NamedTuple

from google.protobuf.message import DecodeError, EncodeError, Message

from bridge.protocol.errors import FrameTooLarge, MalformedFrame
from bridge.protocol.pulsar_pb2 import BaseCommand, MessageMetadata

DEFAULT_MAX_MESSAGE_SIZE = 5 * 1024 * 1024
FRAME_PADDING = 10 * 1024
"""A broker accepts frames of `max_message_size` plus this, for the command and the metadata."""

CHECKSUM_MAGIC = b"\x0e\x01"
BROKER_ENTRY_METADATA_MAGIC = b"\x0e\x02"

_SIZE = Struct(">I")
_SIZES = Struct(">II")
_unpack_size = _SIZE.unpack_from
_unpack_sizes = _SIZES.unpack_from
_TYPE_TAG = 0x08  # field 1, varint: every client writes the command's type first


RUN = 0
"""The type of several frames in a row that nobody looks into; no command has it."""

NOTHING: frozenset[int] = frozenset()

_WITHOUT_NAMES = frozenset(
    {
        BaseCommand.SEND,
        BaseCommand.SEND_RECEIPT,
        BaseCommand.MESSAGE,
        BaseCommand.FLOW,
        BaseCommand.ACK,
        BaseCommand.ACK_RESPONSE,
        BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
    }
)
"""Commands of each message, which name no topic and no subscription: whether text in them is text does not matter."""


class Frame(NamedTuple):
    """One whole frame: its command type and its bytes, sizes included. Of type RUN: several whole frames."""

    type: int
    data: memoryview

    def command(self) -> BaseCommand:
        """Parse the command. Raises MalformedFrame, but not for what is missing in it: a newer enum's value is, too."""
        (size,) = _unpack_size(self.data, 4)
        try:
            command = BaseCommand.FromString(bytes(self.data[8 : 8 + size]))
        except DecodeError as error:
            raise MalformedFrame(f"unreadable command of type {self.type}") from error
        if self.type not in _WITHOUT_NAMES:
            _check_text(command)
        return command

    def entry(self) -> bytes:
        """The bytes behind the command: headers and payload, as received."""
        (size,) = _unpack_size(self.data, 4)
        return bytes(self.data[8 + size :])


def _check_text(message: Message) -> None:
    """Text that is not UTF-8 is left as bytes by the parser. Raises MalformedFrame naming the field."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            if isinstance(value, bytes) or (field.is_repeated and any(isinstance(each, bytes) for each in value)):
                raise MalformedFrame(f"{field.full_name} is no UTF-8: {value!r:.100}")
        elif field.type == field.TYPE_MESSAGE:
            for each in value if field.is_repeated else (value,):
                _check_text(each)


class FrameDecoder:
    """Cuts a byte stream into frames; keeps at most one incomplete frame.

    The announced size is checked before anything is buffered, so a peer cannot make it hold more
    than one frame of `max_frame_size` bytes.
    """

    def __init__(self, max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE) -> None:
        """`max_message_size`: bytes, as the broker's CONNECTED announces it."""
        self.limit_to(max_message_size)
        self._rest = bytearray()

    def limit_to(self, max_message_size: int) -> None:
        """Change the limit, for frames not begun yet; the peers agree on it in CONNECTED."""
        self.max_frame_size = max_message_size + FRAME_PADDING

    @property
    def buffered(self) -> int:
        """Bytes of the incomplete frame held."""
        return len(self._rest)

    def feed(self, data: bytes, relayed: frozenset[int] = NOTHING) -> list[Frame]:
        """Return the frames that `data` completes, in order. Raises FrameTooLarge or MalformedFrame.

        Neighbours whose types are in `relayed` come as one Frame of type RUN, so that passing on
        many small frames costs one write.
        """
        rest = self._rest
        if rest:
            if not self._completes(data):
                rest += data
                return []
            rest += data
            data = bytes(rest)
            rest.clear()
        view = memoryview(data)
        length = len(data)
        position = run_start = 0
        frames: list[Frame] = []
        while length - position >= 8:
            size, command_size = _unpack_sizes(data, position)
            if not 6 <= size <= self.max_frame_size:
                self._checked_size(size)
            end = position + 4 + size
            if end > length:
                break
            if data[position + 8] == _TYPE_TAG and data[position + 9] < 0x80 and 2 <= command_size <= size - 4:
                kind = data[position + 9]
            else:
                kind = _command_type(data, position, end)
            if kind not in relayed:
                if run_start < position:
                    frames.append(Frame(RUN, view[run_start:position]))
                frames.append(Frame(kind, view[position:end]))
                run_start = end
            position = end
        if run_start < position:
            frames.append(Frame(RUN, view[run_start:position]))
        if position < length:
            if length - position >= 4:
                self._checked_size(_unpack_size(data, position)[0])
            rest += view[position:]
        return frames

    def _completes(self, data: bytes) -> bool:
        """Whether `data` completes the frame held: a large frame must not be scanned again for every chunk."""
        head = bytes(self._rest[:4]) + data[: max(0, 4 - len(self._rest))]
        if len(head) < 4:
            return False
        return len(self._rest) + len(data) >= 4 + self._checked_size(_unpack_size(head)[0])

    def _checked_size(self, size: int) -> int:
        if size > self.max_frame_size:
            raise FrameTooLarge(f"frame of {size} bytes, the limit is {self.max_frame_size}")
        if size < 6:
            raise MalformedFrame(f"frame of {size} bytes, too short for a command")
        return size


def _command_type(data: bytes, start: int, end: int) -> int:
    """The type where it is not written first, or the frame's fault."""
    (size,) = _unpack_size(data, start + 4)
    first = start + 8
    if size < 2 or first + size > end:
        raise MalformedFrame(f"command of {size} bytes in a frame of {end - start - 4}")
    try:
        return int(BaseCommand.FromString(data[first : first + size]).type)
    except DecodeError as error:
        raise MalformedFrame("unreadable command") from error


def encode_frame(command: BaseCommand, entry: bytes = b"") -> bytes:
    """A frame of `command`, followed by `entry` for SEND and MESSAGE.

    Raises MalformedFrame if something required is missing: it was in the frame that the command is made of.
    """
    try:
        body = command.SerializeToString()
    except EncodeError as error:
        raise MalformedFrame(str(error)) from error
    return _SIZES.pack(4 + len(body) + len(entry), len(body)) + body + entry


def entry_metadata(entry: bytes) -> MessageMetadata:
    """The metadata of an entry as a broker sends it. Raises MalformedFrame."""
    if entry[:2] == CHECKSUM_MAGIC and len(entry) >= 10:  # nearly every one: in the fewest steps
        end = 10 + _unpack_size(entry, 6)[0]
        if end <= len(entry):
            try:
                return MessageMetadata.FromString(entry[10:end])
            except DecodeError as error:
                raise MalformedFrame("unreadable message metadata") from error
    return _metadata(entry)[0]


def as_text(value: str | bytes) -> str:
    """Text of an entry's metadata, which its producer may have written in any bytes: the parser leaves as bytes what is
    no UTF-8. As a broker, and Java's clients, read it (source: `LightProtoCodec.readString`).
    """
    return value if isinstance(value, str) else value.decode(errors="replace")


def entry_parts(entry: bytes) -> tuple[MessageMetadata, bytes]:
    """The metadata and the payload, compressed or not, of an entry as a broker sends it. Raises MalformedFrame."""
    metadata, end = _metadata(entry)
    return metadata, entry[end:]


def without_broker_metadata(entry: bytes) -> bytes:
    """An entry without what the broker has noted of it, as for clients that do not know of that.

    Source: `Commands.skipBrokerEntryMetadataIfExist`.
    """
    if entry[:2] != BROKER_ENTRY_METADATA_MAGIC or len(entry) < 6:
        return entry
    return entry[6 + _read_size(entry, 2) :]


def _metadata(entry: bytes) -> tuple[MessageMetadata, int]:
    """With where it ends: the payload may be large, and few want a copy."""
    position = 0
    if entry[:2] == BROKER_ENTRY_METADATA_MAGIC:
        position = 6 + _read_size(entry, 2)
    if entry[position : position + 2] == CHECKSUM_MAGIC:
        position += 6
    size = _read_size(entry, position)
    start = position + 4
    if start + size > len(entry):
        raise MalformedFrame(f"metadata of {size} bytes in an entry of {len(entry)}")
    try:
        return MessageMetadata.FromString(entry[start : start + size]), start + size
    except DecodeError as error:
        raise MalformedFrame("unreadable message metadata") from error


def _read_size(entry: bytes, position: int) -> int:
    if position + 4 > len(entry):
        raise MalformedFrame(f"entry of {len(entry)} bytes ends within its headers")
    return int(_unpack_size(entry, position)[0])


def encode_varint(value: int) -> bytes:
    """Protobuf's varint of an unsigned 64-bit number."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class MessageFramer:
    """Builds the head of MESSAGE frames for one consumer, several times faster than through protobuf.

    The layout is that of `BaseCommand(type=MESSAGE, message=CommandMessage(…))`; a test compares both.
    """

    def __init__(self, consumer_id: int, partition: int = -1) -> None:
        """`consumer_id`: as the client chose it in SUBSCRIBE; `partition`: of the topic, -1 without partitions."""
        self._consumer = b"\x08" + encode_varint(consumer_id)
        self._partition = b"\x18" + encode_varint(partition % (1 << 64))
        self._ledger = -1
        self._ledger_bytes = b""
        self._epoch = b""

    def set_epoch(self, epoch: int) -> None:
        """Say this consumer epoch from now on."""
        self._epoch = b"\x28" + encode_varint(epoch)

    def head(
        self, ledger: int, entry: int, redelivery_count: int, entry_size: int, ack_set: tuple[int, ...] = ()
    ) -> bytes:
        """Sizes and command; the entry's `entry_size` bytes follow. `ack_set`: 64-bit words, 1 = still unacked."""
        if ledger != self._ledger:
            self._ledger = ledger
            self._ledger_bytes = b"\x08" + encode_varint(ledger) + b"\x10"
        message_id = self._ledger_bytes + encode_varint(entry) + self._partition
        message = self._consumer + b"\x12" + bytes((len(message_id),)) + message_id
        if redelivery_count:
            message += b"\x18" + encode_varint(redelivery_count)
        for word in ack_set:
            message += b"\x20" + encode_varint(word & 0xFFFF_FFFF_FFFF_FFFF)
        message += self._epoch
        command = b"\x08\x09\x4a" + encode_varint(len(message)) + message
        return _SIZES.pack(4 + len(command) + entry_size, len(command)) + command
