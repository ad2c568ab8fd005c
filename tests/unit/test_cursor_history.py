"""What is believed of acks, checkpoints and indexes when the broker's cursor is read anew."""

import pytest

from bridge.clock import system_randbits
from bridge.ledgers.cursor_history import IDENTITY_PROPERTY, UNKNOWN, history_of, new_history, takes_back
from bridge.ledgers.internal_stats import LedgerState
from bridge.topics.checkpoints import Checkpoint, CheckpointBook, checkpoint_properties, read_checkpoint
from tracker import AckSet, Position

STATE = LedgerState(Position(7, 9), {5: 10, 7: 10})
END = Position(7, 9)


def acks(mark_delete_position: Position, *single: tuple[int, int]) -> AckSet:
    found = AckSet(mark_delete_position)
    for position in single:
        found.add(*position)
    return found


def test_histories_are_never_the_same_by_chance_or_by_default() -> None:
    assert len({new_history(system_randbits) for _ in range(100)}) == 100
    assert all(history_of({"delay-bridge-history": new}) == new for new in (new_history(system_randbits), 1))
    assert history_of({}) == history_of({"delay-bridge-history": -3}) == UNKNOWN


@pytest.mark.parametrize(
    ("known", "told", "same", "expected"),
    [
        (acks(Position(5, 4)), acks(Position(5, 2)), True, False),
        (acks(Position(5, 4)), acks(Position(5, 2)), False, True),
        (acks(Position(5, 4)), acks(Position(5, 4)), False, False),
        (acks(Position(5, 4), (7, 1)), acks(Position(5, 4), (7, 1)), False, False),
        (acks(Position(5, 4), (7, 1)), acks(Position(5, 4), (7, 2)), False, True),
        (acks(Position(5, 9)), acks(Position(7, -1)), False, False),
        (acks(Position(9, 1)), acks(Position(7, 9)), False, True),
        (AckSet(), acks(Position(5, 4)), False, False),
    ],
    ids=[
        "forgotten", "set back", "where it was", "single acks", "others", "past the end of a ledger", "another topic",
        "nothing known",
    ],
)  # fmt: skip
def test_acks_are_void_only_where_the_cursor_may_be_another_and_lacks_some(
    known: AckSet, told: AckSet, same: bool, expected: bool
) -> None:
    assert takes_back(known, 3, told, 3 if same else 4, STATE) is expected


def test_without_a_mark_the_broker_is_believed() -> None:
    assert takes_back(acks(Position(5, 4)), UNKNOWN, acks(Position(5, 2)), UNKNOWN, STATE)


def test_a_checkpoint_stands_on_its_acks() -> None:
    before = acks(Position(5, 3), (5, 5), (7, 1), (7, 8))
    checkpoint = Checkpoint.of(Position(7, 2), 3, before)
    assert checkpoint.acked == 2
    assert checkpoint.holds(3, before, STATE)
    assert not checkpoint.holds(4, before, STATE)
    assert not checkpoint.holds(UNKNOWN, before, STATE)
    assert not checkpoint.holds(3, acks(Position(5, 3), (5, 5), (7, 8)), STATE), "one was forgotten"
    assert not checkpoint.holds(3, acks(Position(5, 2), (5, 5), (7, 1)), STATE), "the cursor fell back"
    assert checkpoint.holds(3, acks(Position(5, 5), (7, 1)), STATE), "the mark-delete position went on"
    assert checkpoint.holds(3, acks(END), STATE)


def test_checkpoints_through_the_cursor_of_the_hidden_subscription() -> None:
    checkpoint = Checkpoint(Position(7, -1), 3, Position(5, 3), 2)
    assert read_checkpoint(checkpoint_properties("a:b", checkpoint), "a:b") == checkpoint
    assert read_checkpoint({"ledger:s": 5, "entry:s": 3}, "s") is None, "of a version that said less"
    assert checkpoint_properties("s", checkpoint._replace(history=UNKNOWN)) == {}
    told = checkpoint_properties("s", checkpoint) | checkpoint_properties("gone", checkpoint) | {IDENTITY_PROPERTY: 11}
    book = CheckpointBook(told, {"s"}, system_randbits)
    assert book.identity == book.told_identity == 11
    assert book.properties == {**checkpoint_properties("s", checkpoint), IDENTITY_PROPERTY: 11}
    assert book.start_of("s", 4, acks(Position(5, 3)), STATE) == Position(5, 3)
    assert book.start_of("s", 3, acks(Position(5, 3), (5, 5), (5, 6)), STATE) == Position(7, -1)
    assert CheckpointBook({}, (), system_randbits).identity != UNKNOWN
