"""The dispatcher against a plain model: nothing lost, nothing at two consumers at once, no permit exceeded."""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from bridge.dispatch.dispatcher import Dispatcher, Offer, Redelivery
from bridge.limits import DispatchLimits
from tests.helpers import examples

LIMITS = DispatchLimits(max_unacked_per_consumer=12, max_unacked_per_subscription=20, round_robin_batch=3)
LARGEST_BATCH = 5


class DispatcherMachine(RuleBasedStateMachine):
    """Each entry is in exactly one place: not offered yet, at one consumer, waiting for redelivery, or acked."""

    consumers = Bundle("consumers")

    def __init__(self) -> None:
        super().__init__()
        self.dispatcher: Dispatcher[int] = Dispatcher(LIMITS)
        self.sizes: list[int] = []
        self.pending: list[Offer] = []
        self.held: dict[int, set[int]] = {}
        self.granted: dict[int, int] = {}
        self.writable: dict[int, bool] = {}
        self.waiting: dict[int, int] = {}  # for redelivery, with the count expected
        self.counts: dict[int, int] = {}
        self.acked: set[int] = set()
        self.names = 0

    # -- consumers

    @initialize(target=consumers)
    def first_consumer(self) -> int:
        return self.add_consumer(0)

    @rule(target=consumers, level=st.integers(0, 2))
    def add(self, level: int) -> int:
        return self.add_consumer(level)

    def add_consumer(self, level: int) -> int:
        self.names += 1
        self.dispatcher.add_consumer(self.names, level)
        self.held[self.names], self.granted[self.names], self.writable[self.names] = set(), 0, True
        return self.names

    @rule(name=consumes(consumers))
    def remove(self, name: int) -> None:
        held = self.held.pop(name)
        assert self.dispatcher.remove_consumer(name) == len(held)
        for entry in held:
            self.waiting[entry] = self.counts[entry]

    @rule(name=consumers, permits=st.integers(0, 15), writable=st.booleans())
    def flow(self, name: int, permits: int, writable: bool) -> None:
        self.dispatcher.flow(name, permits, writable)
        self.granted[name] += permits
        self.writable[name] = writable

    # -- entries

    @rule(sizes=st.lists(st.integers(1, LARGEST_BATCH), min_size=1, max_size=12))
    def publish(self, sizes: list[int]) -> None:
        for size in sizes:
            self.pending.append(Offer(1, len(self.sizes), size, None, b""))
            self.sizes.append(size)

    @rule()
    def pump(self) -> None:
        """As a tracked subscription does: redeliveries first, then new entries, while there is capacity."""
        capacity = self.dispatcher.capacity()
        if not capacity:
            return
        offers: list[Offer] = []
        replay = self.dispatcher.replay
        for (_, entry), again in [replay.popitem(0) for _ in range(min(capacity, len(replay)))]:
            assert again.redelivery_count == self.waiting.pop(entry)
            assert again.message_count == self.sizes[entry]
            offers.append(Offer(1, entry, again.message_count, None, b"", again.redelivery_count))
        again_count = len(offers)
        offers += self.pending
        self.pending = []
        assigned, left = self.dispatcher.assign(offers)
        for name, batch in assigned:
            for offer in batch:
                self.deliver(name, offer)
        assert [*self.given(assigned), *left] or not offers
        assert len(self.given(assigned)) + len(left) == len(offers)
        for offer in left:
            if offer.entry in {each.entry for each in offers[:again_count]}:
                self.hold_back(offer)
            else:
                self.pending.append(offer)

    def given(self, assigned: list[tuple[int, Any]]) -> list[Offer]:
        return [offer for _, batch in assigned for offer in batch]

    def deliver(self, name: int, offer: Offer) -> None:
        assert self.writable[name]
        assert self.granted[name] > 0, "handed out without a permit"
        assert offer.entry not in self.acked
        assert not any(offer.entry in held for held in self.held.values()), "at two consumers at once"
        self.granted[name] -= offer.message_count
        self.held[name].add(offer.entry)
        self.counts[offer.entry] = offer.redelivery_count

    def hold_back(self, offer: Offer) -> None:
        again = Redelivery(None, offer.message_count, offer.redelivery_count, ())
        self.dispatcher.put_back((1, offer.entry), again)
        self.waiting[offer.entry] = offer.redelivery_count

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        entry = data.draw(st.integers(0, max(len(self.sizes) - 1, 0)))
        known = entry in self.waiting or any(entry in held for held in self.held.values())
        assert self.dispatcher.ack(1, entry) == known
        if known:
            self.settle(entry)

    def settle(self, entry: int) -> None:
        self.acked.add(entry)
        self.waiting.pop(entry, None)
        for held in self.held.values():
            held.discard(entry)

    @rule(name=consumers)
    def ack_all(self, name: int) -> None:
        for entry in list(self.held[name]):
            assert self.dispatcher.ack(1, entry)
            self.settle(entry)

    @rule(name=consumers, data=st.data())
    def redeliver_some(self, name: int, data: st.DataObject) -> None:
        wanted = data.draw(st.sets(st.integers(0, max(len(self.sizes) - 1, 0)), max_size=6))
        own = wanted & self.held[name]
        assert self.dispatcher.redeliver(name, [(1, entry) for entry in sorted(wanted)]) == len(own)
        self.release(name, own)

    @rule(name=consumers)
    def redeliver_all(self, name: int) -> None:
        assert self.dispatcher.redeliver(name, None) == len(self.held[name])
        self.release(name, set(self.held[name]))

    def release(self, name: int, entries: set[int]) -> None:
        for entry in entries:
            self.held[name].discard(entry)
            self.waiting[entry] = self.counts[entry] + 1

    @precondition(lambda self: self.sizes)
    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        limit = data.draw(st.integers(0, len(self.sizes) - 1))
        known = {entry for held in self.held.values() for entry in held} | set(self.waiting)
        passed = {entry for entry in known if entry <= limit}
        assert self.dispatcher.advance(1, limit) == len(passed)
        for entry in passed:
            self.settle(entry)

    @rule()
    def clear(self) -> None:
        """A seek to the start: whatever is not acked is offered again from the cursor."""
        self.dispatcher.clear()
        back = {entry for held in self.held.values() for entry in held} | set(self.waiting)
        for held in self.held.values():
            held.clear()
        self.waiting.clear()
        self.pending = [Offer(1, entry, self.sizes[entry], None, b"") for entry in sorted(back)] + self.pending

    # -- what always holds

    @invariant()
    def counters_are_right(self) -> None:
        self.dispatcher.check()

    @invariant()
    def every_entry_is_in_one_place(self) -> None:
        places = [
            *(entry for held in self.held.values() for entry in held),
            *self.waiting,
            *self.acked,
            *(offer.entry for offer in self.pending),
        ]
        # An entry acked before it was offered stays with the caller, which drops it.
        assert sorted(places) == sorted(set(places))
        assert set(places) == set(range(len(self.sizes)))

    @invariant()
    def both_sides_agree(self) -> None:
        assert {position[1] for position in self.dispatcher.unacked} == {
            entry for held in self.held.values() for entry in held
        }
        assert {position[1]: again.redelivery_count for position, again in self.dispatcher.replay.items()} == (
            self.waiting
        )

    @invariant()
    def no_consumer_holds_much_more_than_its_limit(self) -> None:
        for held in self.held.values():
            assert sum(self.sizes[entry] for entry in held) < LIMITS.max_unacked_per_consumer + LARGEST_BATCH

    @invariant()
    def there_is_capacity_unless_something_blocks(self) -> None:
        """No stall: with permits, room in the connection and nothing unacked, entries go out."""
        if any(self.held.values()):
            return
        ready = any(self.granted[name] > 0 and self.writable[name] for name in self.held)
        assert (self.dispatcher.capacity() > 0) == ready


DispatcherMachine.TestCase.settings = settings(
    max_examples=examples(300, fast=100),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestDispatcher = DispatcherMachine.TestCase
