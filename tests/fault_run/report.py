"""What became of a run: one table, and whether every promise was kept."""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.fault_run.account import RETURNED, UNEXPLAINED, Account
from tests.fault_run.faults import Fault
from tests.fault_run.stage import Stage, is_closed

LISTED = 10
EXPLAINED_ALLOWED = (
    "Counted apart, for docs/decisions/0024 promises nothing of them: acks given while something was done, or less "
    "than 1.5 s from it, and less than 2 s before the broker was killed; acks beyond those that a broker stores, where "
    "another bridge than the one that noted them dispatches; what was sought; what was asked for again."
)


@dataclass
class Outcome:
    """Of a run."""

    seed: int
    faults: Counter[str]
    published: int = 0
    copies: int = 0
    received: int = 0
    settled: int = 0
    lost: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    duplicates: Counter[str] = field(default_factory=Counter)
    listed: list[str] = field(default_factory=list)
    open_books: list[str] = field(default_factory=list)
    silence_s: float = 0.0
    took_s: float = 0.0

    @property
    def kept(self) -> bool:
        """Every promise; a copy that comes again and was not acked is none, but has to have a reason."""
        return not (self.lost or self.early or self.duplicates[RETURNED] or self.open_books)

    def figures(self) -> dict[str, Any]:
        """For the table, in its order."""
        explained = {cause: n for cause, n in self.duplicates.most_common() if cause not in (RETURNED, UNEXPLAINED)}
        return {
            "seed": self.seed,
            "faults": sum(self.faults.values()),
            "published": self.published,
            "stored twice by the producer's client": self.copies - self.published,
            "received": self.received,
            "acks that nothing was near": self.settled,
            "lost": len(self.lost),
            "early": len(self.early),
            RETURNED: self.duplicates[RETURNED],
            "books that do not close": len(self.open_books),
            "duplicates, unexplained": self.duplicates[UNEXPLAINED],
            "duplicates, explained": sum(explained.values()),
            **{f"  {cause}": count for cause, count in explained.items()},
            "longest silence of a topic": f"{self.silence_s:.1f} s",
            "took": f"{self.took_s:.0f} s",
            **{f"fault: {kind}": count for kind, count in sorted(self.faults.items())},
        }


def reckon(stage: Stage, seed: int, faults: list[Fault], patience_s: float) -> Outcome:
    """To be called when nothing is published any more."""
    outcome = Outcome(seed, Counter(fault.kind for fault in faults))
    for number, account in enumerate(stage.accounts):
        stage.note_owners(account)
        outcome.published += account.stored
        outcome.copies += account.copies
        outcome.received += account.received
        outcome.settled += account.settled()
        outcome.lost += [f"topic {number}: {_told(account, each)}" for each in account.owed()]
        outcome.early += [f"topic {number}: {each}" for each in account.early]
        counted, listed = account.causes()
        outcome.duplicates += counted
        outcome.listed += [f"topic {number}: {each.told()}{_near(stage, each.at)}" for each in listed]
        outcome.silence_s = max(outcome.silence_s, account.silence[0])
        books, left = stage.books(account, patience_s), stage.backlog(account)
        if not is_closed(books) or left:
            outcome.open_books.append(f"topic {number}: backlog {left} at the broker, {json.dumps(books)[:2000]}")
    return outcome


def _told(account: Account, number: int) -> str:
    message = account.messages[number]
    return f"{number} due {message.deliver_at_ms}, sent {message.sent_ms}, {message.copies}"


def _near(stage: Stage, at: float) -> str:
    near = [each for each in stage.history.events if each.began <= at][-3:]
    return "; before: " + ", ".join(f"{each.kind} {each.began:.2f} to {each.ended:.2f}" for each in near)


def show(outcome: Outcome, console: Console) -> None:
    table = Table(title=f"{sum(outcome.faults.values())} faults, seed {outcome.seed}")
    table.add_column("what")
    table.add_column("how many", justify="right")
    for name, value in outcome.figures().items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else value)
    console.print(table)
    console.print(EXPLAINED_ALLOWED)
    for what in ("lost", "early", "listed", "open_books"):
        for each in getattr(outcome, what)[:LISTED]:
            console.print(f"{what}: {each}", soft_wrap=True)
    console.print("kept" if outcome.kept else "NOT kept")
