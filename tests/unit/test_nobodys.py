"""What the broker gives to nobody is acked once the broker has said what it is."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from bridge.broker.admin import AdminError
from bridge.broker.answers import is_for_nobody
from bridge.limits import OperatorLimits
from bridge.operate.nobodys import Nobodys
from tracker import Position
from tracker.position_set import PositionSet

TOPIC = "persistent://public/default/t"
LIMITS = OperatorLimits(nobodys_asked_max=3, nobodys_asked_at_once=1)


class Broker:
    """Says of even entries that they are for nobody; one that is asked, and one that acks."""

    generation = 1
    fails = False
    name = "s"
    connected = True

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.acked: list[int] = []

    async def is_for_nobody(self, topic: str, position: Position) -> bool:
        self.asked.append(position.entry)
        if self.fails:
            raise AdminError("no")
        return position.entry % 2 == 0

    def ack_for_nobody(self, positions: Sequence[Position]) -> bool:
        self.acked += [each.entry for each in positions]
        return self.connected


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def nobodys(broker: Broker) -> Nobodys:
    return Nobodys(TOPIC, cast(Any, broker), LIMITS)


def of(*entries: int) -> PositionSet:
    return PositionSet((1, entry) for entry in entries)


async def test_each_is_asked_about_once_and_some_at_a_time(broker: Broker, nobodys: Nobodys) -> None:
    await nobodys.ack(cast(Any, broker), of(0, 1, 2, 3, 4))
    assert (broker.asked, broker.acked) == ([0, 1, 2], [0, 2])
    await nobodys.ack(cast(Any, broker), of(1, 3, 4))
    assert (broker.asked, broker.acked) == ([0, 1, 2, 3, 4], [0, 2, 4])
    await nobodys.ack(cast(Any, broker), of(0, 1, 3))
    assert (broker.asked, broker.acked) == ([0, 1, 2, 3, 4], [0, 2, 4, 0]), "another subscription"


async def test_nothing_is_acked_that_nobody_was_asked_about(broker: Broker, nobodys: Nobodys) -> None:
    broker.fails = True
    await nobodys.ack(cast(Any, broker), of(0, 2))
    assert (broker.asked, broker.acked) == ([0], [])
    broker.fails = False
    await nobodys.ack(cast(Any, broker), of(0, 2))
    assert broker.acked == [0, 2]


def test_what_an_entry_is() -> None:
    assert is_for_nobody({"X-Pulsar-marker-type": "21", "X-Pulsar-txn-aborted": "false"})
    assert is_for_nobody({"X-Pulsar-txn-aborted": "true"})
    assert not is_for_nobody({"X-Pulsar-txn-aborted": "false"})
    assert not is_for_nobody({})
