"""Key_Shared against a plain model: nothing lost, a key never with two consumers, the order of each key kept."""

from collections.abc import Iterable
from typing import Any, cast

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from bridge.dispatch.dispatcher import Offer
from bridge.dispatch.keyed.keyed_dispatcher import KeyedDispatcher
from bridge.dispatch.keyed.keyed_queues import KeyedReadyQueue, KeyedRefetch
from bridge.limits import DispatchLimits
from bridge.protocol.sticky_keys import KeySharing

LIMITS = DispatchLimits(
    max_unacked_per_consumer=12,
    max_unacked_per_subscription=30,
    round_robin_batch=3,
    look_ahead_per_consumer=6,
    look_ahead_per_subscription=15,
    dispatch_slice=8,
)
HASHES = (1, 20_000, 40_000)
"""Few, so that they meet; of three quarters of the ring, and of the ranges."""
LARGEST_BATCH = 3


class KeyedMachine(RuleBasedStateMachine):
    """Each entry is in exactly one place: not taken yet, waiting for its key's turn, at one consumer, waiting for
    redelivery, or acked. Entries are numbered in the order in which they came."""

    consumers = Bundle("consumers")
    sharing = KeySharing()

    def __init__(self) -> None:
        super().__init__()
        self.dispatcher: KeyedDispatcher[int] = KeyedDispatcher(LIMITS, self.sharing, lambda: None)
        self.ready = KeyedReadyQueue(self.dispatcher)
        nothing = cast(Any, None)
        self.refetch = KeyedRefetch(self.dispatcher, nothing, nothing, nothing, nothing, nothing, LIMITS, nothing)
        self.hashes: list[int] = []
        self.sizes: list[int] = []
        self.pending: list[Offer] = []
        self.delivered: set[int] = set()
        self.held: dict[int, set[int]] = {}
        self.permits: dict[int, int] = {}
        self.again: set[int] = set()
        self.acked: set[int] = set()
        self.names = 0

    # -- consumers

    @initialize(target=consumers)
    def first_consumer(self) -> int:
        return self.add_consumer()

    @rule(target=consumers, permits=st.integers(0, 9))
    def add(self, permits: int) -> int:
        name = self.add_consumer()
        self.dispatcher.flow(name, permits, True)
        self.permits[name] += permits
        return name

    def add_consumer(self) -> int:
        self.names += 1
        name = self.names
        quarter = name % 4 * 16_384
        self.dispatcher.add_consumer(name, 0, f"c{name % 7}", ((quarter, quarter + 16_383),))
        self.held[name], self.permits[name] = set(), 0
        return name

    @rule(name=consumes(consumers))
    def remove(self, name: int) -> None:
        held = self.held.pop(name)
        assert self.dispatcher.remove_consumer(name) == len(held)
        self.again |= held

    @rule(name=consumers, permits=st.integers(1, 9))
    def flow(self, name: int, permits: int) -> None:
        self.dispatcher.flow(name, permits, True)
        self.permits[name] += permits

    # -- entries

    @rule(drawn=st.lists(st.tuples(st.sampled_from(HASHES), st.integers(1, LARGEST_BATCH)), min_size=1, max_size=12))
    def publish(self, drawn: list[tuple[int, int]]) -> None:
        for sticky_hash, size in drawn:
            self.pending.append(Offer(1, len(self.hashes), size, None, b"x", sticky_hash=sticky_hash))
            self.hashes.append(sticky_hash)
            self.sizes.append(size)
        self.pump()

    @rule()
    def pump(self) -> None:
        """As an outlet does, until nothing moves any more."""
        while self.dispatcher.capacity() and self.pump_once():
            pass

    def pump_once(self) -> int:
        budget = min(self.dispatcher.capacity(), LIMITS.dispatch_slice)
        again = self.refetch.take_next(budget, lambda *_: b"x", lambda *_: False)
        budget -= len(again)
        lacks = max(self.ready.lacks(budget), 0)
        taken, self.pending = self.pending[:lacks], self.pending[lacks:]
        self.ready.add(taken)
        assigned, left = self.dispatcher.assign(again + self.ready.take(budget))
        assert not left
        sent = 0
        for name, batch in assigned:
            for offer in batch:
                self.deliver(name, offer.entry)
                sent += 1
        return max(sent, len(taken))

    def deliver(self, name: int, entry: int) -> None:
        assert self.permits[name] > 0, "handed out without a permit"
        assert entry not in self.acked
        assert not any(entry in held for held in self.held.values()), "at two consumers at once"
        if self.is_ordered:
            self.check_order(name, entry)
        self.permits[name] -= self.sizes[entry]
        self.held[name].add(entry)
        self.again.discard(entry)
        self.delivered.add(entry)

    def check_order(self, name: int, entry: int) -> None:
        same = {other for other, sticky_hash in enumerate(self.hashes) if sticky_hash == self.hashes[entry]}
        for other_name, held in self.held.items():
            assert other_name == name or not held & same, "one key at two consumers"
        assert not any(other < entry for other in self.again & same), "overtakes what is delivered again"
        if entry not in self.again:
            assert not self.again & same, "new before what is delivered again"
            before = {other for other in same if other < entry}
            assert before <= self.delivered | self.acked, "overtakes what is new"

    @property
    def is_ordered(self) -> bool:
        return not self.sharing.out_of_order

    # -- what comes back

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        for entry in self.some_held(data):
            assert self.dispatcher.ack(1, entry)
            next(held for held in self.held.values() if entry in held).remove(entry)
            self.acked.add(entry)

    @precondition(lambda self: self.again)
    @rule(data=st.data())
    def ack_what_waits(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(sorted(self.again)))
        assert self.dispatcher.ack(1, entry)
        self.again.remove(entry)
        self.acked.add(entry)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def redeliver(self, data: st.DataObject) -> None:
        entries = self.some_held(data)
        for name, held in self.held.items():
            own = held & set(entries)
            assert self.dispatcher.redeliver(name, [(1, entry) for entry in sorted(own)]) == len(own)
            held -= own
        self.again |= set(entries)

    def some_held(self, data: st.DataObject) -> Iterable[int]:
        held = sorted(entry for each in self.held.values() for entry in each)
        return data.draw(st.lists(st.sampled_from(held), min_size=1, max_size=6, unique=True))

    # -- always

    @invariant()
    def counters_agree(self) -> None:
        self.dispatcher.check()
        assert {entry for _, entry in self.dispatcher.replay} == self.again
        waiting = {offer.entry for offer in self.dispatcher.order.all_new()}
        pending = {offer.entry for offer in self.pending}
        assert waiting | pending == set(range(len(self.hashes))) - self.delivered - self.acked
        assert len(self.ready) <= LIMITS.look_ahead_per_subscription + LIMITS.dispatch_slice

    def teardown(self) -> None:
        """Once one consumer with permits for everything acks what it gets, it gets everything."""
        for name in list(self.held):
            self.remove(name)
        self.names += 1
        self.dispatcher.add_consumer(self.names, 0, "last", ((0, 65_535),))
        self.held[self.names], self.permits[self.names] = set(), 0
        for _ in range(len(self.hashes) + 1):
            self.flow(self.names, LARGEST_BATCH)
            self.pump()
            for entry in list(self.held[self.names]):
                assert self.dispatcher.ack(1, entry)
                self.held[self.names].remove(entry)
                self.acked.add(entry)
        assert self.acked == set(range(len(self.hashes)))
        super().teardown()


class StickyMachine(KeyedMachine):
    """Ranges that may be nobody's, or asked for by two whose leaving crosses their coming."""

    sharing = KeySharing(sticky=True)


class UnorderedMachine(KeyedMachine):
    sharing = KeySharing(out_of_order=True)


USUAL = settings(max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TestAutoSplit = KeyedMachine.TestCase
TestAutoSplit.settings = USUAL
TestSticky = StickyMachine.TestCase
TestSticky.settings = USUAL
TestUnordered = UnorderedMachine.TestCase
TestUnordered.settings = USUAL
