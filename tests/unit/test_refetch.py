"""What is read again for redelivery: it holds others back for a moment, never for good, and none is forgotten."""

import asyncio
from collections.abc import Sequence

import pytest
from sortedcontainers import SortedDict

from bridge.broker.connection import BrokerError
from bridge.broker.fetch import Fetched
from bridge.dispatch.dispatcher import PositionKey, Redelivery
from bridge.dispatch.refetch import Refetch
from bridge.limits import DispatchLimits
from bridge.net.tasks import Tasks
from bridge.protocol.entries import StoredEntry
from tests.helpers import wait_until_async

WAITING = Redelivery(None, 1, 1, ())


class Scene:
    """A replay queue, a broker that answers when told to, and what there is to tell."""

    def __init__(self, *entries: int, batch: int = 500) -> None:
        self.replay: SortedDict[PositionKey, Redelivery] = SortedDict({(1, entry): WAITING for entry in entries})
        self.asked: list[list[int]] = []
        self.broken: set[int] = set()
        self.deleted: set[int] = set()
        self.refuses = False
        self.answers = asyncio.Event()
        self.answers.set()
        self.woken = 0
        self.gone: list[PositionKey] = []
        self.reasons: list[str] = []
        self.failed: list[Exception] = []
        tasks = Tasks(self.failed.append)
        quick = DispatchLimits(refetch_hold_s=0.05, refetch_retry_s=0.01, refetch_batch=batch)
        self.refetch = Refetch(self.replay, self.fetch, self.wake, self.gone.append, self.reasons.append, tasks, quick)

    def wake(self) -> None:
        self.woken += 1

    async def fetch(self, positions: Sequence[PositionKey]) -> Fetched:
        self.asked.append([entry for _, entry in positions])
        await self.answers.wait()
        await asyncio.sleep(0)
        if self.refuses:
            raise BrokerError("refused")
        there = [each for each in positions if each[1] not in self.broken | self.deleted]
        failed = [each for each in positions if each[1] in self.broken]
        gone = [each for each in positions if each[1] in self.deleted]
        found = {each: StoredEntry(*each, None, 1, False, b"%d" % each[1]) for each in there}
        return Fetched(found, gone, failed, [BrokerError("broken")] if failed else [])

    def pump(self, at_hand: Sequence[int] = (), early: Sequence[int] = (), limit: int = 300) -> list[int]:
        """Take what can go out, in order."""

        def kept(position: PositionKey, key: bytes | None) -> bytes | None:
            return b"kept" if position[1] in at_hand else None

        offers = self.refetch.take_next(limit, kept, lambda position, key: position[1] in early)
        return [offer.entry for offer in offers]


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


async def test_what_is_read_holds_back_what_is_behind_it() -> None:
    scene = Scene(1, 2, 3, 4)
    assert scene.pump(at_hand=[1, 3]) == [1]
    assert scene.refetch._held
    assert scene.pump(at_hand=[3]) == []
    await settle()
    assert not scene.refetch.holding
    assert scene.woken == 1
    assert scene.pump(at_hand=[3]) == [2, 3, 4]
    assert scene.asked == [[2, 4]]


async def test_limits_and_what_is_early() -> None:
    scene = Scene(*range(2_000))
    everything = range(2_000)
    assert scene.pump(everything, limit=2) == [0, 1]
    assert scene.pump(everything, early=range(900), limit=2) == [900, 901]
    assert scene.pump(everything, early=range(900), limit=0) == []


async def test_a_read_that_fails_lets_the_others_go_ahead_and_is_tried_again() -> None:
    scene = Scene(1, 2, 3)
    scene.broken = {1}
    assert scene.pump(at_hand=[3]) == []
    await settle()
    assert scene.pump(at_hand=[3]) == [2, 3]
    assert list(scene.refetch.aside) == [(1, 1)]
    assert scene.reasons == ["broken"]
    scene.broken.clear()
    await wait_until_async(lambda: (1, 1) in scene.replay)
    assert scene.replay[1, 1] is WAITING
    assert scene.pump() == [1]
    scene.refetch.clear()


async def test_a_broker_that_refuses() -> None:
    scene = Scene(1, 2, 3)
    scene.refuses = True
    assert scene.pump(at_hand=[3]) == []
    await settle()
    assert scene.pump(at_hand=[3]) == [3]
    scene.refuses = False
    await wait_until_async(lambda: len(scene.replay) == 2)
    assert scene.pump() == [1, 2]
    scene.refetch.clear()


async def test_a_read_that_takes_long_lets_the_others_go_ahead() -> None:
    scene = Scene(1, 2)
    scene.answers.clear()
    assert scene.pump(at_hand=[2]) == []
    await wait_until_async(lambda: not scene.refetch.holding)
    assert scene.woken == 1
    scene.replay[1, 3] = WAITING  # not at hand either, and nothing waits for it
    scene.replay[1, 4] = WAITING
    assert scene.pump(at_hand=[2, 4]) == [2, 4]
    assert set(scene.refetch.aside) == {(1, 1), (1, 3)}
    scene.answers.set()
    await wait_until_async(lambda: len(scene.replay) == 2)
    assert scene.pump() == [1, 3]
    scene.refetch.clear()


@pytest.mark.parametrize("where", ["read", "held back", "aside"])
async def test_a_defect_is_told_to_whoever_dispatches(where: str) -> None:
    scene = Scene(1, 2, 3)
    broken = {"read": "_fetch", "held back": "_on_found", "aside": "_settle"}[where]
    if where != "read":
        scene.answers.clear()
    if where == "aside":
        assert scene.pump() == []
        await wait_until_async(lambda: bool(scene.refetch.aside))
        scene.answers.set()
    setattr(scene.refetch, broken, None)
    scene.pump()
    await wait_until_async(lambda: bool(scene.failed))
    assert isinstance(scene.failed[0], TypeError)
    scene.refetch.clear()
    await settle()


async def test_one_that_always_fails_does_not_keep_the_others_aside() -> None:
    scene = Scene(1, 2, batch=1)
    scene.broken = {1, 2}
    for _ in range(2):
        scene.pump()
        await settle()
    assert len(scene.refetch.aside) == 2
    scene.broken = {1}
    await wait_until_async(lambda: (1, 2) in scene.replay)
    assert scene.pump() == [2]
    scene.refetch.clear()


async def test_acked_meanwhile() -> None:
    scene = Scene(1, 2, 3)
    scene.broken = {1}
    scene.pump()
    await settle()
    del scene.replay[1, 2]
    assert not scene.refetch.discard((1, 2))
    assert scene.refetch.discard((1, 1))
    assert scene.pump() == [3]
    await wait_until_async(lambda: scene.refetch._aside_task is None)
    assert not scene.replay
    assert not scene.refetch._kept


async def test_acked_up_to_a_position() -> None:
    scene = Scene(1, 2, 3)
    scene.broken = {1, 3}
    scene.pump()
    await settle()
    scene.refetch.advance((1, 2))
    assert list(scene.refetch.aside) == [(1, 3)]
    scene.refetch.clear()


async def test_deleted_in_the_broker() -> None:
    scene = Scene(1, 2)
    scene.deleted = {1}
    scene.pump()
    await settle()
    assert scene.gone == [(1, 1)]
    assert scene.pump() == [2]


async def test_no_more_is_kept_than_two_batches() -> None:
    scene = Scene(*range(100), batch=10)
    scene.refuses = True
    for _ in range(100):
        scene.pump()
        await settle()
    assert len(scene.refetch.aside) == 100
    scene.refuses = False
    for _ in range(20):
        await asyncio.sleep(0.005)
        assert len(scene.refetch._kept) <= 20
    sent: list[int] = []

    def all_sent() -> bool:
        sent.extend(scene.pump())
        return len(sent) == 100

    await wait_until_async(all_sent, interval=0.005)
    assert sorted(sent) == list(range(100))
    scene.refetch.clear()


async def test_clear() -> None:
    scene = Scene(1, 2)
    scene.answers.clear()
    scene.pump()
    scene.refetch.clear()
    assert not scene.refetch.holding
    scene.answers.set()
    assert scene.pump() == []  # asked anew, by a read of its own
    await settle()
    assert scene.pump() == [1, 2]
