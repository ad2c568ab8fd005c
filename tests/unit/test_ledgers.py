"""Which ranges a topic is cut into."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.errors import LedgerReadError
from spark_jobs.ledgers.access import access_from
from spark_jobs.ledgers.stats import LedgerRange, TopicState, fair_share, grouped, ranges_of
from tracker import EARLIEST, Position

EVERYTHING = Position(2**63 - 1, -1)


def state(*ledgers: tuple[int, int], last: Position | None = None) -> TopicState:
    newest = max(ledgers, default=(0, 0))
    return TopicState(last or Position(newest[0], newest[1] - 1), ledgers)


def test_the_open_ledger_counts_with_its_current_entries() -> None:
    body: dict[str, Any] = {
        "lastConfirmedEntry": "7:4",
        "currentLedgerEntries": 5,
        "ledgers": [{"ledgerId": 3, "entries": 10}, {"ledgerId": 7, "entries": 0}],
        "cursors": {
            "a%2Fb+c%2B": {
                "markDeletePosition": "3:2",
                "readPosition": "3:9",
                "individuallyDeletedMessages": "[(3:4..3:5]]",
            }
        },
    }
    found = TopicState.of(body, "http://broker:8080")
    assert found.ledgers == ((3, 10), (7, 5))
    assert found.read_positions == {"a/b c+": Position(3, 9)}
    acks = found.cursors["a/b c+"]
    assert [entry for entry in range(10) if acks.contains(3, entry)] == [0, 1, 2, 5]


@pytest.mark.parametrize("body", [{}, {"lastConfirmedEntry": "x"}, {"lastConfirmedEntry": "1:1", "ledgers": [{}]}])
def test_an_answer_that_lacks_what_is_needed_is_an_error(body: dict[str, Any]) -> None:
    with pytest.raises(LedgerReadError, match="internalStats"):
        TopicState.of(body, "http://broker:8080")


def test_cuts_lie_at_the_same_places_wherever_reading_starts() -> None:
    topic = state((3, 10), (7, 5))
    assert ranges_of(topic, EARLIEST, EVERYTHING, 4) == [
        LedgerRange(3, 0, 3),
        LedgerRange(3, 4, 7),
        LedgerRange(3, 8, 9),
        LedgerRange(7, 0, 3),
        LedgerRange(7, 4, 4),
    ]
    assert ranges_of(topic, Position(3, 5), Position(7, 2), 4) == [
        LedgerRange(3, 6, 7),
        LedgerRange(3, 8, 9),
        LedgerRange(7, 0, 2),
    ]


def test_nothing_is_read_beyond_what_is_confirmed() -> None:
    assert ranges_of(state((3, 10), last=Position(3, 6)), EARLIEST, EVERYTHING, 100) == [LedgerRange(3, 0, 6)]
    assert ranges_of(TopicState(Position(3, -1), ()), EARLIEST, EVERYTHING, 100) == []
    with pytest.raises(LedgerReadError, match="not 0"):
        ranges_of(state((3, 10)), EARLIEST, EVERYTHING, 0)


@given(
    st.lists(st.integers(0, 30), max_size=5),
    st.tuples(st.integers(-1, 12), st.integers(-1, 30)),
    st.tuples(st.integers(-1, 12), st.integers(-1, 30)),
    st.integers(1, 9),
)
def test_ranges_hold_every_entry_once(
    sizes: list[int], after: tuple[int, int], upto: tuple[int, int], split_entries: int
) -> None:
    ledgers = tuple((2 * number + 1, size) for number, size in enumerate(sizes))
    topic = TopicState(Position(100, 0), ledgers)
    ranges = ranges_of(topic, Position(*after), Position(*upto), split_entries)
    found = [(one.ledger, entry) for one in ranges for entry in range(one.first, one.last + 1)]
    assert found == [
        (ledger, entry) for ledger, size in ledgers for entry in range(size) if after < (ledger, entry) <= upto
    ]
    assert all(0 < one.entries <= split_entries for one in ranges)
    assert [one for group in grouped(ranges, 3) for one in group] == ranges


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "serviceUrl is missing"),
        ({"serviceUrl": "pulsar://a"}, "webUrl is missing"),
        ({"serviceUrl": "http://a", "webUrl": "http://a"}, "'http://a'"),
        ({"serviceUrl": "pulsar://a:x", "webUrl": "http://a"}, "'pulsar://a:x'"),
        ({"serviceUrl": "pulsar://a", "webUrl": "http://a", "authToken": "t", "authTokenFile": "f"}, "not both"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(LedgerReadError, match=said):
        access_from(options)


def test_a_token_is_not_shown(tmp_path: Any) -> None:
    access = access_from({"serviceUrl": "pulsar://a", "webUrl": "http://a", "authToken": "secret"})
    assert "secret" not in repr(access)
    (tmp_path / "token").write_text("from a file\n")
    file = {"serviceUrl": "pulsar://a", "webUrl": "http://a", "authTokenFile": str(tmp_path / "token")}
    assert access_from(file).auth_token() == "from a file"
    with pytest.raises(LedgerReadError, match="gone"):
        access_from(file | {"authTokenFile": str(tmp_path / "gone")}).auth_token()


@pytest.mark.parametrize(
    ("ranges", "most", "processors", "share", "tasks"),
    [(40, 8, 2, 7, 6), (16, 8, 2, 8, 2), (4, 8, 2, 2, 2), (1, 8, 2, 1, 1), (0, 8, 2, 1, 0), (100, 8, 64, 2, 50)],
)
def test_all_processors_are_through_at_the_same_time(
    ranges: int, most: int, processors: int, share: int, tasks: int
) -> None:
    assert fair_share(ranges, most, processors) == share
    assert len(grouped([LedgerRange(1, 0, each) for each in range(ranges)], share)) == tasks
