"""What a bridge makes of the others, look by look."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.limits import Limits
from bridge.members.balance import Balance
from bridge.members.membership import Member
from bridge.members.plan import Owned
from bridge.net.failures import Failures

A, B, C = (Member(f"pulsar://{name}:6650", f"http://{name}:8081") for name in "abc")


class Others:
    """In the place of brokers, other bridges, and this one's topics: this one is A."""

    def __init__(self) -> None:
        self.listed = [A, B]
        self.own: dict[str, float] = {}
        self.shares: dict[str, dict[str, float] | None] = {B.url: {}}
        self.ready: set[str] = set()
        self.draining: set[str] = set()
        self.invited: set[str] = set()
        self.elsewhere: set[str] = set()
        self.taken: list[str] = []
        context = SimpleNamespace(
            limits=Limits(), advertised_url=A.url, standby_count=1, failures=Failures(), randbits=lambda bits: 0
        )
        self.balance = Balance(cast(Any, self), cast(Any, self), self.ask, cast(Any, context))

    async def ask(self, member: Member) -> Owned:
        share = self.shares[member.url]
        if share is None:
            raise OSError("it is silent")
        return Owned(share, member.url in self.draining)

    # -- the membership

    async def look(self) -> list[Member]:
        return self.listed

    # -- the topics

    async def owned(self) -> dict[str, float]:
        return self.own

    def invite(self, names: set[str], owned_elsewhere: dict[str, float]) -> None:
        self.invited, self.elsewhere = set(names), set(owned_elsewhere)

    def is_ready(self, name: str) -> bool:
        return name in self.ready

    def take_over(self, name: str) -> bool:
        if name in self.ready:
            self.taken.append(name)
        return name in self.ready


@pytest.fixture
def others() -> Others:
    return Others()


async def test_it_reads_what_it_wants_and_takes_it_when_it_is_ready(others: Others) -> None:
    others.shares[B.url] = {f"t{number}": 1.0 for number in range(6)}
    await others.balance.look()
    assert others.invited == others.elsewhere == set(others.shares[B.url] or ())
    assert others.taken == []
    others.ready = {f"t{number}" for number in range(6)}
    await others.balance.look()
    assert len(others.taken) == 3


async def test_what_is_on_its_way_counts_as_here(others: Others) -> None:
    others.shares[B.url] = {f"t{number}": 1.0 for number in range(4)}
    others.ready = {f"t{number}" for number in range(4)}
    for _ in range(5):
        await others.balance.look()
        others.shares[B.url] = {topic: 1.0 for topic in others.shares[B.url] or () if topic not in others.taken}
    assert len(others.taken) == 2
    assert others.invited >= set(others.taken), "it is not let go of meanwhile"


async def test_who_does_not_answer_stops_moves(others: Others) -> None:
    others.listed, others.shares[C.url] = [A, B, C], None
    others.shares[B.url] = {f"t{number}": 1.0 for number in range(6)}
    others.ready = {f"t{number}" for number in range(6)}
    await others.balance.look()
    assert others.taken == []
    assert [(member.url in others.balance.shares) for member in others.balance.members] == [True, True, False]


async def test_who_is_not_listed_for_a_moment_and_answers_is_there(others: Others) -> None:
    others.shares[B.url] = {"t": 1.0}
    await others.balance.look()
    others.listed = [A]
    await others.balance.look()
    assert others.balance.members == [A, B]
    assert "t" in others.elsewhere
    others.shares[B.url] = None
    await others.balance.look()
    assert others.balance.members == [A], "it is gone"


async def test_what_nobody_owns_any_more_is_served_by_who_remembers_it(
    others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    others.shares[B.url] = {"t": 1.0}
    await others.balance.look()
    others.listed, others.shares[B.url] = [A], None
    await others.balance.look()
    assert "t" not in others.invited
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now + 60)
    await others.balance.look()
    monkeypatch.undo()
    assert others.invited == {"t"}


async def test_who_is_draining_is_left_alone_and_left_with_nothing(others: Others) -> None:
    others.own = {"mine": 1.0}
    others.shares[B.url] = {f"t{number}": 1.0 for number in range(3)}
    others.ready = {f"t{number}" for number in range(3)}
    others.balance.drain(True)
    await others.balance.look()
    assert (others.invited, others.taken) == (set(), [])
    assert set(others.balance.leaving) == {A.url}
    others.balance.drain(False)
    others.draining = {B.url}
    await others.balance.look()
    assert len(others.taken) == 3
    assert set(others.balance.leaving) == {B.url}
