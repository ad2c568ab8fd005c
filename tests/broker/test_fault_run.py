"""A short run of random faults, and the account that it is judged by: `make faults` is the long form."""

from pathlib import Path

import pytest
from rich.console import Console

from tests.fault_run.account import FORGOTTEN, RETURNED, UNEXPLAINED, Account
from tests.fault_run.faults import Fault
from tests.fault_run.history import Happened, History, Move
from tests.fault_run.report import show
from tests.fault_run.run import run
from tests.fault_run.traffic import Load

SHORT = ("kill the owner", "half-cut the broker", "seek", "kill the broker", "unload", "step the clock", "cut clients")
"""Those that take a second or some; each of the others has tests of its own."""


@pytest.mark.timeout(300)
def test_a_few_faults_in_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = [Fault(kind, seed, 1.6) for seed, kind in enumerate([*SHORT, "kill the other bridge"])]
    outcome = run(tmp_path, 1, faults, Load(300, most_delay_ms=6_000), {}, Console(width=120))
    show(outcome, Console(width=120))
    assert outcome.published > 3_000
    assert outcome.settled > 500, "little was there to accuse by"
    assert outcome.kept, capsys.readouterr().out


class Clerk:
    """An account in which one message was received at 100 s, and acked at 101 s."""

    def __init__(self) -> None:
        self.history = History()
        self.account = Account("t", self.history)
        self.account.publish(50_000, 99_000)
        self.account.messages[0].stored = True
        copy = self.receive(100.0)
        copy.acked_at, copy.acked_by = 101.0, "c"

    def receive(self, at: float, at_ms: int = 100_000):  # type: ignore[no-untyped-def]
        return self.account.receive(0, "1:1", at, at_ms, "c", 0)

    def cause(self, at: float = 110.0) -> str:
        """Of its coming once more."""
        self.receive(at)
        (cause,) = self.account.causes()[0]
        return cause


def test_what_was_acked_in_peace_is_not_to_come() -> None:
    clerk = Clerk()
    assert clerk.account.settled() == 1
    clerk.history.events.append(Happened("kill", 103.0, 109.0))
    assert clerk.cause() == RETURNED


@pytest.mark.parametrize("began", [99.0, 101.0, 102.4])
def test_an_ack_near_a_fault_proves_nothing(began: float) -> None:
    clerk = Clerk()
    clerk.history.events.append(Happened("kill", began, began + 0.1))
    assert clerk.account.settled() == 0 or began == 99.0
    assert clerk.cause() == ("acked near a fault" if began > 99.0 else RETURNED)


def test_a_killed_broker_may_forget_what_is_two_seconds_old() -> None:
    clerk = Clerk()
    clerk.history.crashes.append(102.9)
    assert clerk.cause() == "ack not stored by the killed broker yet"
    clerk = Clerk()
    clerk.history.crashes.append(103.1)
    assert clerk.cause() == RETURNED


@pytest.mark.parametrize(("owner", "cause"), [("b", FORGOTTEN), ("a", RETURNED)])
def test_acks_that_a_broker_cannot_store_are_known_to_who_noted_them(owner: str, cause: str) -> None:
    clerk = Clerk()
    clerk.account.owners = [(50.0, "a"), (105.0, owner)]
    clerk.account.holes = [Happened("holes", 90.0, 106.0)]
    assert clerk.cause() == cause
    clerk = Clerk()
    clerk.account.owners = [(50.0, "a"), (105.0, owner)]
    assert clerk.cause() == RETURNED, "it had room for them"


def test_a_seek_gives_again_what_was_published_since_and_it_is_owed() -> None:
    clerk = Clerk()
    clerk.history.moves.append(Move("t", 105.0, 105.2, True, from_ms=40_000))
    assert clerk.account.owed() == [0]
    assert clerk.cause() == "seek"
    assert clerk.account.owed() == [0], "until it is acked again"
    clerk = Clerk()
    clerk.history.moves.append(Move("t", 105.0, 105.2, True, from_ms=60_000))
    assert clerk.account.owed() == []
    assert clerk.cause() == RETURNED


def test_without_an_ack_there_has_to_be_a_reason_too() -> None:
    clerk = Clerk()
    clerk.receive(108.0)
    clerk.account.again.clear()
    assert clerk.cause() == UNEXPLAINED
    clerk.history.away["c"] = [Happened("away", 109.0, 109.1)]
    assert list(clerk.account.causes()[0]) == ["in flight when the topic was taken over"]


def test_early_is_by_the_clock_that_was_most_ahead() -> None:
    clerk = Clerk()
    clerk.receive(98.0, at_ms=98_500)
    assert len(clerk.account.early) == 1
    clerk.history.clocks.append((90.0, 97.0, 600))
    clerk.receive(98.0, at_ms=98_500)
    assert len(clerk.account.early) == 1
    clerk.receive(99.0, at_ms=98_500)
    assert len(clerk.account.early) == 2
    clerk.history.clocks.append((110.0, 120.0, -5_000))
    clerk.receive(115.0, at_ms=99_500)
    assert len(clerk.account.early) == 2, "late by a clock that was set back is not early by one that was not"
