"""The immediate entries just read, shared and bounded."""

from hypothesis import given
from hypothesis import strategies as st

from bridge.intake.tail_buffer import TailBuffer
from bridge.limits import IntakeLimits
from bridge.protocol.entries import StoredEntry
from tracker import Position

USUAL = IntakeLimits()


def entry(number: int, size: int = 1, ledger: int = 1) -> StoredEntry:
    return StoredEntry(ledger, number, None, 1, False, bytes(size))


def tail_buffer(
    start: Position, max_bytes: int = USUAL.tail_buffer_bytes, max_entries: int = USUAL.tail_buffer_entries
) -> TailBuffer:
    return TailBuffer(start, max_bytes, max_entries)


def test_items_are_numbered_by_arrival() -> None:
    tail = tail_buffer(Position(1, 9))
    tail.push([entry(10), entry(12)])
    tail.push([entry(0, ledger=2)])
    assert (tail.first, tail.end) == (0, 3)
    assert [tail.item(number).entry for number in range(3)] == [10, 12, 0]
    assert tail.floor == Position(1, 9)


def test_the_oldest_make_room() -> None:
    tail = tail_buffer(Position(1, -1), max_entries=3)
    tail.push([entry(number) for number in range(5)])
    assert (tail.first, tail.end) == (2, 5)
    assert tail.floor == Position(1, 1)
    assert tail.get(1, 1) is None
    kept = tail.get(1, 2)
    assert kept is not None
    assert kept is tail.item(2)


def test_bytes_are_bounded() -> None:
    tail = tail_buffer(Position(1, -1), max_bytes=100)
    tail.push([entry(number, size=40) for number in range(5)])
    assert tail.end - tail.first == 2
    tail.push([entry(5, size=101)])
    assert tail.first == tail.end == 6
    assert tail.floor == Position(1, 5)


def test_the_item_behind_a_position() -> None:
    tail = tail_buffer(Position(1, 3))
    tail.push([entry(5), entry(7), entry(1, ledger=3)])
    found = {
        (1, 3): 0,
        (1, 4): 0,
        (1, 5): 1,
        (1, 6): 1,
        (1, 7): 2,
        (2, 0): 2,
        (3, 0): 2,
        (3, 1): 3,
        (9, 9): 3,
    }
    assert {position: tail.number_after(Position(*position)) for position in found} == found


def test_an_empty_buffer() -> None:
    tail = tail_buffer(Position(1, 3))
    assert tail.number_after(Position(1, 3)) == 0
    assert tail.number_after(Position(5, 0)) == 0
    assert tail.get(1, 3) is None


@given(st.lists(st.lists(st.integers(1, 60), max_size=5), max_size=20))
def test_it_holds_everything_behind_its_floor(pushes: list[list[int]]) -> None:
    tail = TailBuffer(Position(0, 0), 150, 6)
    everything: list[StoredEntry] = []
    for sizes in pushes:
        new = [entry(len(everything) + number, size) for number, size in enumerate(sizes)]
        everything += new
        tail.push(new)
        held = [tail.item(number) for number in range(tail.first, tail.end)]
        assert held == [each for each in everything if (each.ledger, each.entry) > tail.floor]
        assert sum(len(each.raw) for each in held) <= 150
        assert len(held) <= 6
        assert all(tail.get(each.ledger, each.entry) is each for each in held)
