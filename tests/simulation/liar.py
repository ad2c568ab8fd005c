"""Frames of a client that lies: any command with any field, ids used twice, answers to nothing, bytes changed."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from bridge.protocol.frames import encode_frame
from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from bridge.protocol.pulsar_pb2 import BaseCommand, MessageMetadata

OWN_TOPIC = "persistent://public/default/own"
"""The only topic that the broker lets an intruder have."""
_SMALL = (0, 1, 1, 1, 2, 2, 3, 7, 50)
_LARGE = (1_000, 2**31 - 1, 2**31, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_DEPTH = 3
_KNOWN = {
    "ack", "close_consumer", "close_producer", "consumerStats", "flow", "getLastMessageId", "lookupTopic",
    "partitionMetadata", "ping", "pong", "producer", "redeliverUnacknowledgedMessages", "seek", "send", "subscribe",
    "unsubscribe",
}  # fmt: skip


class Liar:
    """Makes frames of chance; well formed ones often enough that handles come to be."""

    def __init__(self, chance: random.Random, topic: str) -> None:
        """`topic`: one that is not for it."""
        self._chance = chance
        self._texts = (
            OWN_TOPIC, OWN_TOPIC, OWN_TOPIC, OWN_TOPIC, topic, "s", "own", "own", HIDDEN_SUBSCRIPTION, "",
            "not a topic", "persistent://public/default/own-partition-0", "non-persistent://public/default/own",
            "persistent://a/b", "\u00e9" * 40, "x" * 3_000,
        )  # fmt: skip
        self._fields: list[Any] = [field for field in BaseCommand.DESCRIPTOR.fields if field.name != "type"]
        self._known = [field for field in self._fields if field.name in _KNOWN]

    def frame(self) -> bytes:
        """Return the bytes of one frame, or of what is none."""
        chance = self._chance
        raw = self._sensible() if chance.random() < 0.6 else self._command(self._field())
        return self._spoilt(raw) if chance.random() < 0.02 else raw

    def _field(self) -> Any:
        """Mostly of commands that are for a broker: the others end a session."""
        return self._chance.choice(self._fields if self._chance.random() < 0.1 else self._known)

    # -- well formed

    def _sensible(self) -> bytes:
        """What makes a producer or a consumer on the topic of its own, and uses them."""
        chance = self._chance
        number = chance.choice((1, 2, 3))
        command: Any = BaseCommand()
        kind = chance.choice(("subscribe", "subscribe", "flow", "flow", "producer", "send", "send", "ack", "close"))
        if kind == "subscribe":
            command.type = BaseCommand.SUBSCRIBE
            command.subscribe.topic, command.subscribe.subscription = OWN_TOPIC, "own"
            command.subscribe.subType, command.subscribe.consumer_id = chance.choice((1, 1, 1, 0, 2, 3)), number
            command.subscribe.request_id, command.subscribe.initialPosition = chance.randrange(1, 100), 1
        elif kind == "flow":
            command.type = BaseCommand.FLOW
            command.flow.consumer_id, command.flow.messagePermits = number, chance.choice((1, 10, 1_000))
        elif kind == "producer":
            command.type = BaseCommand.PRODUCER
            command.producer.topic, command.producer.producer_id = OWN_TOPIC, number
            command.producer.request_id = chance.randrange(1, 100)
        elif kind == "send":
            return self._send(number)
        elif kind == "ack":
            command.type = BaseCommand.ACK
            command.ack.consumer_id, command.ack.ack_type = number, 0
            command.ack.message_id.add(ledgerId=chance.randrange(1, 12), entryId=chance.randrange(0, 60))
        else:
            command.type = BaseCommand.CLOSE_CONSUMER
            command.close_consumer.consumer_id, command.close_consumer.request_id = number, chance.randrange(1, 100)
        return encode_frame(command)

    def _send(self, number: int) -> bytes:
        chance = self._chance
        command = BaseCommand(type=BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id = number, chance.randrange(100)
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=chance.choice(_SMALL))
        if chance.random() < 0.5:
            metadata.deliver_at_time = chance.choice((-1, 0, 1_800_000_060_000, 1_800_000_600_000, 2**62))
        body = metadata.SerializeToString()
        return encode_frame(command, len(body).to_bytes(4, "big") + body + b"own")

    # -- of any kind

    def _command(self, field: FieldDescriptor) -> bytes:
        command: Any = BaseCommand()
        command.type = BaseCommand.Type.Value(_type_of(field.name))
        self._fill(getattr(command, field.name), 0)
        getattr(command, field.name).SetInParent()
        raw: bytes = command.SerializePartialToString()
        entry = self._chance.randbytes(self._chance.choice((0, 0, 0, 5, 40)))
        return (len(raw) + len(entry) + 4).to_bytes(4, "big") + len(raw).to_bytes(4, "big") + raw + entry

    def _fill(self, message: Any, depth: int) -> None:
        chance = self._chance
        for field in message.DESCRIPTOR.fields:
            needed = field.is_required
            if chance.random() > (0.97 if needed else 0.35):
                continue
            if field.is_repeated:
                for _ in range(chance.choice((1, 1, 2, 20))):
                    self._add(getattr(message, field.name), field, depth)
            elif field.message_type is not None:
                if depth < _DEPTH:
                    self._fill(getattr(message, field.name), depth + 1)
                    getattr(message, field.name).SetInParent()
            else:
                setattr(message, field.name, self._value(field))

    def _add(self, values: Any, field: FieldDescriptor, depth: int) -> None:
        if field.message_type is None:
            values.append(self._value(field))
        elif depth < _DEPTH:
            self._fill(values.add(), depth + 1)

    def _value(self, field: Any) -> Any:
        chance, kind = self._chance, field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING:
            if field.type == FieldDescriptor.TYPE_BYTES:
                return chance.randbytes(chance.choice((0, 1, 30)))
            return chance.choice(self._texts)
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return chance.random() < 0.5
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return chance.choice(field.enum_type.values).number
        number = chance.choice(_LARGE if chance.random() < 0.03 else _SMALL)
        if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
            return float(number)
        bits = 32 if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
        number %= 1 << bits
        signed = kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
        return number - (1 << bits) if signed and number >> (bits - 1) else number

    # -- broken

    def _spoilt(self, raw: bytes) -> bytes:
        chance, changed = self._chance, bytearray(raw)
        how = chance.randrange(4)
        if how == 0:
            for _ in range(chance.choice((1, 3, 10))):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
        elif how == 1:
            del changed[chance.randrange(len(changed)) :]
        elif how == 2:
            at = chance.randrange(len(changed))
            changed[at:at] = chance.randbytes(chance.choice((1, 4, 100)))
        else:
            changed[:4] = chance.choice((0, 1, 8, 2**20, 2**31, 2**32 - 1)).to_bytes(4, "big")
        return bytes(changed)


def _type_of(field_name: str) -> str:
    """BaseCommand's type for one of its fields."""
    return _TYPES[field_name]


def _types() -> dict[str, str]:
    """By name: what is left of both when letter case and underscores are."""
    plain = {name.replace("_", "").lower(): name for name in BaseCommand.Type.keys()}  # noqa: SIM118
    found: dict[str, str] = {}
    for field in BaseCommand.DESCRIPTOR.fields:
        name = field.name.replace("_", "").lower()
        for wanted in (name, _OTHERWISE.get(name, "")):
            if wanted in plain:
                found[field.name] = plain[wanted]
    return found


_OTHERWISE = {
    "lookuptopic": "lookup",
    "lookuptopicresponse": "lookupresponse",
    "partitionmetadata": "partitionedmetadata",
    "partitionmetadataresponse": "partitionedmetadataresponse",
    "consumerstatsresponse": "consumerstatsresponse",
}
_TYPES = _types()


def connect_command(role: str) -> Message:
    """Return a CONNECT by somebody."""
    command = BaseCommand(type=BaseCommand.CONNECT)
    command.connect.client_version, command.connect.protocol_version = "liar", 20
    command.connect.auth_method_name, command.connect.auth_data = "role", role.encode()
    return command
