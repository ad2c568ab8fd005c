"""The balance of a subscription's books, and what it is drawn from."""

from collections.abc import Iterable

from bridge.dispatch.dispatcher import Again
from bridge.dispatch.entry_notes import GivenBefore, GoneUnacked
from bridge.intake.given import Given
from bridge.operate.balance import Found, Index, Places, Snapshot, Taken, by_counters, one_by_one
from bridge.operate.books import Balance
from bridge.protocol.entries import StoredEntry
from tracker import AckSet, Position
from tracker.position_set import PositionSet

LEDGER = 3
NOTHING = PositionSet()


def of(*entries: int) -> PositionSet:
    return PositionSet((LEDGER, entry) for entry in entries)


def acked(upto: int, *single: int) -> AckSet:
    acks = AckSet(Position(LEDGER, upto))
    for entry in single:
        acks.add(LEDGER, entry)
    return acks


def snapshot(
    acks: AckSet,
    in_flight: Iterable[int] = (),
    to_redeliver: Iterable[int] = (),
    ready: Iterable[int] = (),
    in_transactions: Iterable[int] = (),
    to_come: Iterable[int] = (),
    read_behind: int | None = None,
    withheld: Iterable[int] = (),
    cancelled: Iterable[int] = (),
    expired: Iterable[int] = (),
    handed_out: Iterable[int] = (),
) -> Snapshot:
    """Of a topic with a ledger of ten entries, read up to its end."""
    return Snapshot(
        ledger_sizes={LEDGER: 10},
        upto=Position(LEDGER, 9),
        acks=acks,
        taken=Taken(of(*in_flight), of(*to_redeliver), of(*ready), of(*in_transactions)),
        to_come=of(*to_come),
        read_behind=None if read_behind is None else Position(LEDGER, read_behind),
        withheld=of(*withheld),
        cancelled=of(*cancelled),
        expired=of(*expired),
        handed_out=of(*handed_out),
    )


def drawn(part: Snapshot, *stored: int, noted: Iterable[int] = ()) -> Found:
    return one_by_one(part, Index(of(*stored), of(*noted)))


# -- the balance


def test_each_place_is_counted() -> None:
    part = snapshot(
        acked(1, 3),
        in_flight=[2],
        to_redeliver=[4],
        ready=[5],
        in_transactions=[6],
        to_come=[7],
        withheld=[8],
        cancelled=[1],
        expired=[0],
        handed_out=[2, 5],
    )
    found = drawn(part, 2, 5, 9)
    expected = Places(
        published=10,
        acked=1,
        cancelled=1,
        expired=1,
        in_flight=1,
        to_redeliver=1,
        ready=1,
        in_transactions=1,
        pending=1,
        unread=1,
        withheld=1,
    )
    assert found == Found(expected, NOTHING, NOTHING)
    assert expected.difference == 0
    counted = by_counters(part, NOTHING).places
    assert counted.plus(Places(pending=1)) == expected


def test_what_is_acked_is_not_counted_where_it_also_waits() -> None:
    """A queue may hold what somebody has acked meanwhile: it is sorted out when its turn comes."""
    found = drawn(snapshot(acked(4), in_flight=[2, 5], ready=[3], handed_out=[5]), 5, 6, 7, 8, 9)
    assert found.places == Places(published=10, acked=5, in_flight=1, pending=4)
    assert not found.twice


def test_what_is_in_no_place_is_found() -> None:
    part = snapshot(acked(4), in_flight=[5], handed_out=[5, 6])
    found = drawn(part, 5, 6, 8, 9)
    assert list(found.missing) == [(LEDGER, 6), (LEDGER, 7)], "handed out and in no hand; not stored at all"
    assert found.places.difference == 2
    assert by_counters(part, NOTHING).places.plus(Places(pending=4 - 2)).difference == 2


def test_what_is_in_two_places_is_found() -> None:
    part = snapshot(acked(4), in_flight=[5, 6], to_redeliver=[6], ready=[7], handed_out=[5, 6])
    found = drawn(part, 5, 6, 7, 8, 9)
    assert list(found.twice) == [(LEDGER, 6), (LEDGER, 7)], "in two hands; in one and to be handed out again"
    assert not found.missing
    assert list(by_counters(part, NOTHING).twice) == [(LEDGER, 6)]


def test_what_is_to_be_read_is_not_missing_unless_it_is_delayed() -> None:
    part = snapshot(acked(1), to_come=[3], read_behind=4)
    found = drawn(part, 2, 6, noted=[6, 8])
    assert list(found.missing) == [(LEDGER, 4), (LEDGER, 8)], "immediate and passed; delayed and not stored"
    assert found.places == Places(published=10, acked=2, pending=2, unread=4)
    assert by_counters(part, of(6, 8)).places.unread == 4


def test_what_is_being_filled_has_its_place() -> None:
    part = snapshot(acked(1))
    gap = (Position(LEDGER, 3), Position(LEDGER, 7))
    found = one_by_one(part, Index(of(2, 5, 9), NOTHING, (gap,)))
    assert found.places == Places(published=10, acked=2, pending=3, to_fill=4)
    assert list(found.missing) == [(LEDGER, 8)]


def test_ledgers_add_up() -> None:
    sizes = {1: 4, LEDGER: 10, 5: 7}
    whole = Snapshot(
        ledger_sizes=sizes,
        upto=Position(5, 2),
        acks=AckSet(Position(LEDGER, 0)),
        taken=Taken(PositionSet([(LEDGER, 1), (5, 0)]), NOTHING, NOTHING, NOTHING),
        to_come=NOTHING,
        read_behind=None,
        withheld=NOTHING,
        cancelled=PositionSet([(1, 0)]),
        expired=NOTHING,
        handed_out=NOTHING,
    )
    index = Index(PositionSet([(LEDGER, entry) for entry in range(2, 10)] + [(5, 1)]), NOTHING)
    found = Found()
    for ledger in sizes:
        found = found.plus(one_by_one(whole.part([ledger]), index))
    assert found.places == Places(published=17, acked=4, cancelled=1, in_flight=2, pending=9)
    assert list(found.missing) == [(5, 2)]
    assert found == one_by_one(whole, index)


def test_books_close_only_if_everything_does() -> None:
    closed = Places(published=1, acked=1)
    assert Balance(0, Position(1, 0), closed, by_counters=0).closes
    assert not Balance(0, unknown="nobody knows").closes
    assert not Balance(0, Position(1, 0), closed, by_counters=2).closes, "counters are wrong"
    assert not Balance(0, Position(1, 0), closed, missing=(), twice=(Position(1, 0),)).closes


# -- what nobody is given


def entries(*positions: tuple[int, int]) -> list[StoredEntry]:
    return [StoredEntry(ledger, entry, None, 1, False, b"") for ledger, entry in positions]


def test_what_a_reader_is_not_given() -> None:
    given = Given(Position(3, 1), 100)
    given.note(entries((3, 2), (3, 3), (3, 6)))
    given.note(entries((3, 7), (3, 8)))
    given.note(entries((6, 1), (6, 2)))
    sizes = {2: 5, 3: 11, 5: 2, 6: 9}
    expected = [(3, 4), (3, 5), (3, 9), (3, 10), (5, 0), (5, 1), (6, 0)]
    assert list(given.withheld(sizes)) == expected
    given.note(entries((6, 1), (6, 2), (6, 4)))
    assert list(given.withheld(sizes)) == [*expected, (6, 3)], "read again from further back"
    given.marker(Position(6, 4))
    assert (6, 4) in given.withheld(sizes)


def test_of_what_is_acked_it_is_forgotten() -> None:
    given = Given(Position(3, -1), 2)
    given.note(entries((3, 0), (3, 2), (5, 0), (5, 2), (5, 4)))
    given.forget_below(Position(5, 1))
    assert list(given.withheld({3: 9, 4: 9, 5: 9})) == [(5, 1), (5, 3)], "not that all of the others is withheld"
    given.note(entries((5, 6)))
    given.forget_below(Position(5, 1))
    assert not given.withheld({3: 9, 4: 9, 5: 9}), "too many to remember"
    given.note(entries((5, 7), (5, 9)))
    assert list(given.withheld({5: 12})) == [(5, 8)]


# -- how entries went that nobody acked


def test_what_the_cursor_jumped_over() -> None:
    gone = GoneUnacked(10)
    sizes = {3: 6, 4: 3, 8: 9}
    acks = AckSet(Position(3, 0))
    for entry in (1, 2):
        acks.add(3, entry)
    gone.note_jump(acks, Position(3, 2), [])
    gone.settle(sizes, Position(8, 9), NOTHING)
    assert not gone.passed, "all of it was acked"
    gone.cancelled.add((3, 4))
    gone.note_jump(acks, Position(8, 1), [(8, 0)])
    gone.settle({3: 6, 4: 3}, Position(4, 2), NOTHING)
    assert not gone.passed, "how many entries that are is not known yet"
    gone.settle(sizes, Position(8, 4), PositionSet([(8, 1)]))
    assert list(gone.passed) == [(3, 3), (3, 5), (4, 0), (4, 1), (4, 2)], "not what a transaction or nobody has"
    gone.take_back(AckSet(Position(3, 3)))
    assert (list(gone.passed), list(gone.cancelled)) == ([(3, 3)], [])


# -- who had one before


def test_what_was_given_before_is_told_once() -> None:
    before = GivenBefore()
    before.note([(3, 1), (3, 2)], Again.resumed)
    before.note([(3, 2), (3, 3)], Again.cursor_moved)
    assert before.take((3, 2)) is Again.resumed
    assert before.take((3, 2)) is None
    assert before.take((3, 3)) is Again.cursor_moved
    assert before.take((3, 9)) is None
    before.advance(Position(4, 0))
    assert not before


def test_what_was_acked_here_and_taken_back_was_given() -> None:
    before, gone = GivenBefore(), GoneUnacked(10)
    before.begin(acked(2))
    gone.cancelled.add((LEDGER, 5))
    before.note_taken_back(acked(2, 4, 5), gone)
    assert before.take((LEDGER, 4)) is Again.cursor_moved
    assert before.take((LEDGER, 1)) is None, "others had handed it out"
    assert before.take((LEDGER, 5)) is None, "cancelled: nobody had it"
    assert before.take((LEDGER, 6)) is None
