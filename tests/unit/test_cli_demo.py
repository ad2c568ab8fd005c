"""How the demo counts and what it shows."""

import io

import pytest
from rich.console import Console

from bridge.cli.trials.demo import _line_writer, _print_result
from bridge.showcase.demo import Tally


def tally_of(*received: tuple[int, int, float], published: int) -> Tally:
    tally = Tally(published, published=published)
    for each in received:
        tally.received(*each)
    return tally


def test_all_well() -> None:
    tally = tally_of((0, 1_000, 1_000.0), (1, 1_000, 1_004.5), published=2)
    assert tally.good
    assert (tally.early, tally.lost, tally.duplicates) == (0, 0, 0)
    assert tally.percentile_ms(1.0) == 4.5


def test_a_fraction_of_a_millisecond_is_early() -> None:
    tally = tally_of((0, 1_000, 999.9), published=1)
    assert tally.early == 1
    assert not tally.good


def test_twice_is_a_duplicate_and_counts_once() -> None:
    tally = tally_of((0, 1_000, 1_001.0), (0, 1_000, 1_500.0), published=1)
    assert (tally.delivered, tally.duplicates, tally.percentile_ms(1.0)) == (1, 1, 1.0)
    assert not tally.good


def test_what_does_not_come_is_lost() -> None:
    tally = tally_of((0, 1_000, 1_001.0), published=3)
    assert tally.lost == 2
    assert not tally.good


def test_what_the_broker_did_not_take_is_no_success() -> None:
    tally = tally_of((0, 1_000, 1_001.0), published=1)
    tally.messages, tally.refused = 2, 1
    assert tally.lost == 0
    assert not tally.good


def test_percentiles_are_lateness_seen() -> None:
    tally = tally_of(*((number, 0, float(number + 1)) for number in range(1_000)), published=1_000)
    assert [tally.percentile_ms(share) for share in (0.5, 0.99, 0.999, 1.0)] == [500, 990, 999, 1_000]
    assert Tally(1).percentile_ms(0.5) == 0


def test_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("bridge.cli.trials.demo.time.monotonic", lambda: now)
    out = io.StringIO()
    write = _line_writer(Console(file=out))
    tally = Tally(2)
    for now, published, came in ((10.0, 1, 0), (10.1, 2, 0), (13.0, 2, 0), (13.1, 2, 2), (20.0, 2, 0)):  # noqa: B007
        tally.published = published
        for number in range(came):
            tally.received(number, 0, 1.0)
        write(tally)
    assert out.getvalue().splitlines() == [
        "published 1  pending 1  delivered 0",
        "published 2  pending 2  delivered 0",
        "published 2  pending 0  delivered 2",
    ]


def test_result(capsys: pytest.CaptureFixture[str]) -> None:
    _print_result(tally_of((0, 0, 1234.56), (1, 0, 1.0), published=3))
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert ["max", "1,234.6", "ms"] in rows
    assert ["early", "0"] in rows
    assert ["lost", "1"] in rows
    assert ["duplicates", "0"] in rows
    assert "2 of 3 messages delivered" in out
