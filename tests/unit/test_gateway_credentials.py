"""Challenges of several brokers, and one client that answers."""

from bridge.gateway.credentials import REFRESH, Challenges
from bridge.protocol.frames import Frame, encode_frame
from bridge.protocol.pulsar_pb2 import BaseCommand


class Broker:
    def __init__(self) -> None:
        self.got: list[bytes] = []

    def write(self, data: memoryview) -> None:
        self.got.append(bytes(data))


def frame_of(command: BaseCommand) -> Frame:
    return Frame(command.type, memoryview(encode_frame(command)))


def challenge(data: bytes = REFRESH) -> Frame:
    command = BaseCommand(type=BaseCommand.AUTH_CHALLENGE)
    command.authChallenge.challenge.auth_method_name = "token"
    command.authChallenge.challenge.auth_data = data
    return frame_of(command)


def response(data: bytes) -> Frame:
    command = BaseCommand(type=BaseCommand.AUTH_RESPONSE)
    command.authResponse.response.auth_method_name = "token"
    command.authResponse.response.auth_data = data
    return frame_of(command)


def connect() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CONNECT)
    command.connect.client_version = "x"
    command.connect.auth_data = b"old"
    return command


def test_one_answer_renews_for_all_that_wait() -> None:
    challenges, said = Challenges(), connect()
    first, second, third = Broker(), Broker(), Broker()
    assert challenges.add(first, challenge()) == challenge().data
    assert challenges.add(second, challenge()) is None
    assert challenges.answer(response(b"new"), said) == (True, None)
    assert [bytes(response(b"new").data)] == first.got == second.got
    assert said.connect.auth_data == b"new"
    assert challenges.add(third, challenge()) is not None
    challenges.answer(response(b"newer"), said)
    assert len(first.got) == 1
    assert third.got == [bytes(response(b"newer").data)]


def test_steps_of_a_handshake_are_answered_one_by_one() -> None:
    """And say nothing that another broker could take."""
    challenges, said = Challenges(), connect()
    first, second = Broker(), Broker()
    challenges.add(first, challenge(b"step 1 of the first"))
    assert challenges.add(second, challenge(b"step 1 of the second")) is None
    assert challenges.answer(response(b"to the first"), said) == (True, challenge(b"step 1 of the second").data)
    assert not second.got
    assert challenges.answer(response(b"to the second"), said) == (True, None)
    assert second.got == [bytes(response(b"to the second").data)]
    assert said.connect.auth_data == b"old"


def test_an_answer_that_nobody_asked_for_changes_nothing() -> None:
    challenges, said = Challenges(), connect()
    assert challenges.answer(response(b"new"), said) == (False, None)
    assert said.connect.auth_data == b"old"
