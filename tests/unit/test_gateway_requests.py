"""Which answer belongs to which request."""

from typing import Any

import pytest

from bridge.gateway.requests import (
    BROKER_INITIATED,
    GATEWAY_REQUEST_ID_BASE,
    RequestsInFlight,
    is_gateways_own,
    request_id_of,
)
from bridge.protocol.errors import MalformedFrame, ProtocolError
from bridge.protocol.frames import Frame, encode_frame
from bridge.protocol.pulsar_pb2 import BaseCommand

FIRST, SECOND = object(), object()
FIELDS = {field.number: field.name for field in BaseCommand.DESCRIPTOR.fields}


def answer(kind: BaseCommand.Type, request_id: int = 1, **fields: Any) -> Frame:
    command = BaseCommand(type=kind)
    body = getattr(command, FIELDS[kind])
    body.request_id = request_id
    if kind == BaseCommand.ERROR:
        fields = {"error": 0, "message": ""}
    for name, value in fields.items():
        setattr(body, name, value)
    return Frame(kind, memoryview(encode_frame(command)))


@pytest.fixture
def told() -> list[bool]:
    return []


@pytest.fixture
def subscribing(told: list[bool]) -> RequestsInFlight:
    """A SUBSCRIBE with the id 1 has gone to the first broker."""
    requests = RequestsInFlight(1_000)
    requests.begin(BaseCommand.SUBSCRIBE, 1)
    requests.sent(1, FIRST, told.append)
    return requests


@pytest.mark.parametrize("kind", [BaseCommand.SUCCESS, BaseCommand.ERROR])
def test_its_answer_is_found_once(subscribing: RequestsInFlight, told: list[bool], kind: BaseCommand.Type) -> None:
    assert subscribing.on_answer(FIRST, answer(kind)) == told.append
    assert subscribing.on_answer(FIRST, answer(kind)) is None
    subscribing.begin(BaseCommand.SUBSCRIBE, 1)


@pytest.mark.parametrize(
    ("asked", "frame"),
    [
        (SECOND, answer(BaseCommand.SUCCESS)),
        (FIRST, answer(BaseCommand.SUCCESS, 2)),
        (FIRST, answer(BaseCommand.ERROR, 2)),
        (FIRST, answer(BaseCommand.PARTITIONED_METADATA_RESPONSE)),
    ],
)
def test_what_is_not_its_answer(subscribing: RequestsInFlight, asked: object, frame: Frame) -> None:
    assert subscribing.on_answer(asked, frame) is None
    with pytest.raises(ProtocolError, match="request id 1 is in use: SEEK while a SUBSCRIBE"):
        subscribing.begin(BaseCommand.SEEK, 1)


def test_ids_that_are_the_gateways() -> None:
    requests = RequestsInFlight(1_000)
    for request_id in (GATEWAY_REQUEST_ID_BASE, BROKER_INITIATED):
        with pytest.raises(ProtocolError):
            requests.begin(BaseCommand.SUBSCRIBE, request_id)
    assert not is_gateways_own(BROKER_INITIATED)
    assert is_gateways_own(GATEWAY_REQUEST_ID_BASE)


def test_a_producer_that_waits_for_its_turn_is_answered_twice() -> None:
    requests = RequestsInFlight(1_000)
    told: list[bool] = []
    requests.begin(BaseCommand.PRODUCER, 1)
    requests.sent(1, FIRST, told.append)
    waits = answer(BaseCommand.PRODUCER_SUCCESS, producer_name="p", producer_ready=False)
    assert requests.on_answer(FIRST, waits) is None
    ready = answer(BaseCommand.PRODUCER_SUCCESS, producer_name="p", producer_ready=True)
    assert requests.on_answer(FIRST, ready) == told.append


def test_who_waits_when_the_client_goes_is_told(subscribing: RequestsInFlight, told: list[bool]) -> None:
    subscribing.end()
    assert told == [False]


def test_too_many() -> None:
    subscribing = RequestsInFlight(1)
    subscribing.begin(BaseCommand.SUBSCRIBE, 1)
    with pytest.raises(ProtocolError, match="more than 1"):
        subscribing.begin(BaseCommand.SEEK, 2)


def test_a_command_without_a_body() -> None:
    frame = Frame(BaseCommand.LOOKUP, memoryview(encode_frame(BaseCommand(type=BaseCommand.LOOKUP))))
    with pytest.raises(MalformedFrame, match="without a body"):
        request_id_of(frame)
