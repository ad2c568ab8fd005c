"""What a Key_Shared subscription sends next: of what is new, of what has to be read again, of what is not due."""

import asyncio
import gc
import weakref
from collections.abc import Sequence

from bridge.broker.connection import BrokerError
from bridge.broker.fetch import Fetched
from bridge.dispatch.dispatcher import Offer, PositionKey
from bridge.dispatch.keyed.keyed_dispatcher import KeyedDispatcher
from bridge.dispatch.keyed.keyed_queues import KeyedReadyQueue, KeyedRefetch
from bridge.limits import DispatchLimits
from bridge.net.tasks import Tasks
from bridge.protocol.entries import StoredEntry
from bridge.protocol.sticky_keys import KeySharing
from tests.helpers import wait_until_async
from tracker.keys import encode_key

USUAL = DispatchLimits(refetch_retry_s=0.01)
LOW, HIGH = 10_000, 50_000
"""Hashes; with ranges they are the consumers' of these names."""
RANGES = {"low": ((1, 30_000),), "high": ((30_001, 65_535),)}


class Scene:
    """Consumers with ranges, a broker that answers when told to, and what there is to tell."""

    def __init__(self, *names: str, permits: int = 100, limits: DispatchLimits = USUAL) -> None:
        self.woken = 0
        self.dispatcher: KeyedDispatcher[str] = KeyedDispatcher(limits, KeySharing(sticky=True), self.wake)
        self.ready = KeyedReadyQueue(self.dispatcher)
        self.asked: list[list[int]] = []
        self.broken: set[int] = set()
        self.deleted: set[int] = set()
        self.answers = asyncio.Event()
        self.answers.set()
        self.gone: list[PositionKey] = []
        self.reasons: list[str] = []
        self.failed: list[Exception] = []
        self.refetch = KeyedRefetch(
            self.dispatcher,
            self.fetch,
            self.wake,
            self.gone.append,
            self.reasons.append,
            Tasks(self.failed.append),
            limits,
        )
        for name in names:
            self.add(name, permits)

    def add(self, name: str, permits: int = 100) -> None:
        self.dispatcher.add_consumer(name, 0, name, RANGES[name])
        self.dispatcher.flow(name, permits, True)

    def wake(self) -> None:
        self.woken += 1

    async def fetch(self, positions: Sequence[PositionKey]) -> Fetched:
        self.asked.append([entry for _, entry in positions])
        await self.answers.wait()
        await asyncio.sleep(0)
        there = [each for each in positions if each[1] not in self.broken | self.deleted]
        failed = [each for each in positions if each[1] in self.broken]
        gone = [each for each in positions if each[1] in self.deleted]
        found = {each: StoredEntry(*each, None, 1, False, b"read") for each in there}
        return Fetched(found, gone, failed, [BrokerError("broken")] if failed else [])

    def pump(
        self, *new: Offer, at_hand: Sequence[int] = (), early: Sequence[int] = (), limit: int = 300
    ) -> dict[str, list[int]]:
        """Send what can go out, as an outlet does; returns who got what."""

        def kept(position: PositionKey, key: bytes | None) -> bytes | None:
            return b"kept" if position[1] in at_hand else None

        again = self.refetch.take_next(limit, kept, lambda position, key: position[1] in early)
        self.ready.add(new)
        assigned, left = self.dispatcher.assign(again + self.ready.take(limit - len(again)))
        assert not left
        self.dispatcher.check()
        return {name: [offer.entry for offer in batch] for name, batch in assigned}

    def hand_out(self, *offers: Offer) -> None:
        assert sum(map(len, self.pump(*offers).values())) == len(offers)


def offer(entry: int, sticky_hash: int = LOW, due_ms: int | None = None, raw: bytes = b"x") -> Offer:
    key = None if due_ms is None else encode_key(due_ms, 1, entry)
    return Offer(1, entry, 1, key, raw, sticky_hash=sticky_hash)


# -- what is new


def test_what_is_nobodys_waits_for_somebody() -> None:
    scene = Scene("low")
    assert scene.pump(offer(1, HIGH), offer(2)) == {"low": [2]}
    assert len(scene.ready) == 1
    scene.add("high")
    assert scene.pump() == {"high": [1]}
    assert not scene.ready


def test_as_many_wait_as_there_is_room_for() -> None:
    limits = DispatchLimits(look_ahead_per_consumer=4, look_ahead_per_subscription=6, look_ahead_bytes=50)
    scene = Scene("low", "high", limits=limits)
    scene.dispatcher.flow("high", -100, True)
    scene.pump()
    assert scene.ready.lacks(100) == 6
    scene.pump(*(offer(entry, HIGH) for entry in range(4)))
    assert scene.ready.lacks(100) == 2
    scene.pump(offer(4, HIGH, raw=bytes(100)))
    assert scene.ready.lacks(100) == 0
    assert not scene.ready.has_room, "enough bytes"
    scene.dispatcher.flow("high", 100, True)
    assert scene.pump() == {"high": [0, 1, 2, 3, 4]}
    assert scene.ready.has_room


def test_one_key_does_not_keep_others_from_their_turn() -> None:
    scene = Scene("low", permits=0)
    scene.pump(*(offer(entry, 7) for entry in range(50)), offer(50, 8), offer(51, 9))
    scene.dispatcher.flow("low", 25, True)
    found = scene.pump()["low"]
    assert {50, 51} <= set(found)
    assert [entry for entry in found if entry < 50] == list(range(23))


def test_what_needs_not_go_any_more() -> None:
    scene = Scene("low", permits=0)
    scene.pump(*(offer(entry) for entry in range(5)))
    scene.ready.drop_all(lambda each: each.entry in (0, 3))
    scene.dispatcher.flow("low", 10, True)
    assert scene.pump() == {"low": [1, 2, 4]}


def test_what_an_operator_let_go_is_first_of_its_key() -> None:
    scene = Scene("low", permits=0)
    scene.pump(offer(1), offer(2))
    scene.ready.hold((1, 1))
    assert scene.ready.without_held([offer(1)]) == []
    scene.ready.drop_all(lambda each: each.entry == 1)
    scene.ready.let_go((1, 1))
    scene.dispatcher.flow("low", 10, True)
    assert scene.pump() == {"low": [1, 2]}


def test_who_waits_longest() -> None:
    scene = Scene("low", permits=0)
    assert scene.ready.oldest_due_ms() is None
    scene.pump(offer(1, 7, due_ms=2_000), offer(2, 8, due_ms=1_000), offer(3, 9))
    assert scene.ready.oldest_due_ms() == 1_000
    assert scene.ready.find((1, 2)) == offer(2, 8, due_ms=1_000)
    assert scene.ready.find((1, 4)) is None


# -- what comes again


async def settle() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


async def test_what_is_read_holds_up_its_own_key() -> None:
    scene = Scene("low", "high")
    scene.hand_out(offer(1), offer(2), offer(3, HIGH))
    scene.dispatcher.redeliver("low", None)
    scene.dispatcher.redeliver("high", None)
    assert scene.pump(offer(4), offer(5, HIGH), at_hand=[2, 3]) == {"high": [3, 5]}
    assert scene.pump(at_hand=[2]) == {}, "2 does not overtake 1, nor does 4"
    assert scene.asked == []
    await settle()
    assert scene.asked == [[1]]
    assert scene.woken
    assert scene.pump(at_hand=[2]) == {"low": [1, 2, 4]}


async def test_a_key_is_read_in_one_go() -> None:
    scene = Scene("low")
    scene.hand_out(*(offer(entry) for entry in range(20)))
    scene.dispatcher.redeliver("low", None)
    assert scene.pump() == {}
    await settle()
    assert scene.asked == [list(range(20))]
    assert scene.pump() == {"low": list(range(20))}


async def test_what_cannot_be_read_is_tried_again_and_holds_up_its_own_key() -> None:
    scene = Scene("low")
    scene.hand_out(offer(1, 7), offer(2, 7), offer(3, 8))
    scene.broken = {1}
    scene.dispatcher.redeliver("low", None)
    assert scene.pump() == {}
    await settle()
    assert scene.pump(offer(4, 7)) == {"low": [3]}
    assert scene.reasons[0] == "broken"
    scene.broken = set()
    await wait_until_async(lambda: scene.pump() == {"low": [1, 2, 4]}, "what can be read at last", interval=0.002)
    assert not scene.failed


async def test_what_is_gone_holds_up_nothing() -> None:
    scene = Scene("low")
    scene.hand_out(offer(1), offer(2))
    scene.deleted = {1}
    scene.dispatcher.redeliver("low", None)
    scene.pump()
    await settle()
    assert scene.gone == [(1, 1)]
    assert scene.pump(offer(3)) == {"low": [2, 3]}


async def test_what_is_acked_while_it_is_read() -> None:
    scene = Scene("low")
    scene.hand_out(offer(1), offer(2))
    scene.answers.clear()
    scene.dispatcher.redeliver("low", None)
    scene.pump()
    await settle()
    scene.dispatcher.ack(1, 1)
    scene.dispatcher.ack(1, 2)
    assert scene.pump(offer(3)) == {"low": [3]}
    scene.answers.set()
    await settle()
    assert scene.pump() == {}


async def test_forgetting() -> None:
    scene = Scene("low")
    scene.hand_out(offer(1), offer(2))
    scene.answers.clear()
    scene.dispatcher.redeliver("low", [(1, 1)])
    scene.pump(offer(3))
    await settle()
    scene.dispatcher.clear()
    scene.ready.clear()
    scene.refetch.clear()
    assert scene.pump() == {}
    assert scene.pump(offer(1)) == {"low": [1]}


def test_what_is_not_due_any_more_holds_up_nothing() -> None:
    """The clock was set back since it was handed out."""
    scene = Scene("low")
    scene.hand_out(offer(1, due_ms=1_000))
    scene.dispatcher.redeliver("low", None)
    early = scene.refetch.take_next(10, lambda *_: b"kept", lambda *_: True)
    assert early == []
    assigned, _ = scene.dispatcher.assign([*scene.ready.take(0)])
    assert assigned == []
    scene.refetch.take_next(10, lambda *_: b"kept", lambda *_: True)
    scene.ready.add([offer(2)])
    assert scene.dispatcher.assign(scene.ready.take(10))[0][0][1][0].entry == 2
    assert scene.pump(at_hand=[1]) == {"low": [1]}


# -- acks


def test_an_ack_wakes_when_others_waited_for_it() -> None:
    scene = Scene("low")
    scene.hand_out(offer(1), offer(2))
    RANGES["takes over"] = ((1, 30_000),)
    scene.add("takes over")
    assert scene.pump(offer(3)) == {}
    scene.dispatcher.ack(1, 1)
    assert scene.woken == 0
    scene.dispatcher.ack(1, 2)
    assert scene.woken == 1
    assert scene.pump() == {"takes over": [3]}


def test_nothing_is_kept_of_a_consumer_that_has_left() -> None:
    class Member:
        """Of the subscription."""

    dispatcher: KeyedDispatcher[Member] = KeyedDispatcher(USUAL, KeySharing(), lambda: None)
    ready = KeyedReadyQueue(dispatcher)
    member: Member | None = Member()
    assert member is not None
    dispatcher.add_consumer(member, 0, "a")
    dispatcher.flow(member, 5, True)
    dispatcher.begin_slice()
    ready.add([offer(1)])
    assert dispatcher.assign(ready.take(5))[0]
    left = weakref.ref(member)
    dispatcher.remove_consumer(member)
    member = None
    gc.collect()
    assert left() is None
