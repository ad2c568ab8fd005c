"""When a cursor that stands still is to be given acks again."""

from bridge.dispatch.acks.standstill import Standstill
from tracker import AckSet, Position

AFTER_S = 10.0


def acked(*positions: tuple[int, int]) -> AckSet:
    acks = AckSet(Position(3, 4))
    for position in positions:
        acks.add(*position)
    return acks


def test_said_after_a_while_and_then_less_and_less_often() -> None:
    standstill, acks = Standstill(AFTER_S), acked((3, 5))
    asked_at = [at for at in range(100) if standstill.note(Position(3, 4), acks, at)]
    assert asked_at == [10, 30, 70]


def test_not_while_it_moves() -> None:
    standstill, acks = Standstill(AFTER_S), acked(*((3, entry) for entry in range(5, 50)))
    assert not any(standstill.note(Position(3, at), acks, 9.0 * at) for at in range(4, 40))


def test_not_when_it_stands_where_it_should() -> None:
    standstill, acks = Standstill(AFTER_S), acked((3, 6), (4, 1))
    assert not any(standstill.note(Position(3, 4), acks, at) for at in range(100))


def test_counted_from_when_it_last_stood_as_it_should() -> None:
    standstill, acks = Standstill(AFTER_S), acked()
    assert not standstill.note(Position(3, 4), acks, 0)
    acks.add(3, 5)
    assert not any(standstill.note(Position(3, 4), acks, at) for at in (1, 9))
    assert standstill.note(Position(3, 4), acks, 10)


def test_what_lies_behind_a_position() -> None:
    assert acked((3, 5)).is_acked_behind(Position(3, 4))
    assert acked().is_acked_behind(Position(3, 3)), "the mark-delete position is known to be higher"
    assert acked((4, 0)).is_acked_behind(Position(3, 4)), "it may be the last of its ledger"
    assert not acked((4, 1)).is_acked_behind(Position(3, 4))
    assert not acked((3, 6), (4, 0)).is_acked_behind(Position(3, 4))
    assert not acked().is_acked_behind(Position(3, 4))
