"""Who gets which entry."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import hypothesis
from hypothesis import strategies as st

from bridge.dispatch.dispatcher import Dispatcher, Offer, PositionKey, Redelivery, still_unacked
from bridge.dispatch.unacked_limits import UnackedLimits
from bridge.limits import DispatchLimits
from bridge.protocol.entries import Chunk

Names = Dispatcher[str]
USUAL = DispatchLimits()


def offers(count: int, start: int = 0, messages: int = 1) -> list[Offer]:
    return [Offer(1, entry, messages, None, b"") for entry in range(start, start + count)]


def with_consumers(names: str, permits: int = 0, level: int = 0, limits: DispatchLimits = USUAL) -> Names:
    dispatcher: Names = Dispatcher(limits)
    for name in names:
        dispatcher.add_consumer(name, level)
        dispatcher.flow(name, permits, True)
    return dispatcher


def given(assigned: Iterable[tuple[str, Sequence[Offer]]]) -> dict[str, list[int]]:
    return {name: [offer.entry for offer in batch] for name, batch in assigned}


def take_replay(dispatcher: Dispatcher[str], limit: int) -> list[tuple[PositionKey, Redelivery]]:
    return [dispatcher.replay.popitem(0) for _ in range(min(limit, len(dispatcher.replay)))]


def replay(dispatcher: Names) -> list[tuple[int, int]]:
    return [(position[1], again.redelivery_count) for position, again in dispatcher.replay.items()]


# -- permits and turns


def test_no_more_than_permits() -> None:
    dispatcher = with_consumers("a", permits=3)
    assigned, left = dispatcher.assign(offers(5))
    assert given(assigned) == {"a": [0, 1, 2]}
    assert [offer.entry for offer in left] == [3, 4]
    assert dispatcher.capacity() == 0


def test_nobody_there() -> None:
    dispatcher: Names = Dispatcher(USUAL)
    assigned, left = dispatcher.assign(offers(2))
    assert assigned == []
    assert len(left) == 2
    assert dispatcher.capacity() == 0


def test_round_robin_in_batches() -> None:
    dispatcher = with_consumers("abc", permits=1_000)
    size = USUAL.round_robin_batch
    assigned, _ = dispatcher.assign(offers(size * 3))
    assert {name: len(entries) for name, entries in given(assigned).items()} == {"a": size, "b": size, "c": size}


def test_round_robin_goes_on_where_it_stopped() -> None:
    dispatcher = with_consumers("abc", permits=1_000)
    order = [next(iter(given(dispatcher.assign(offers(1, start=number))[0]))) for number in range(6)]
    assert order == ["a", "b", "c", "a", "b", "c"]


def test_a_lone_consumer_gets_all_at_once() -> None:
    dispatcher = with_consumers("a", permits=1_000)
    assert given(dispatcher.assign(offers(500))[0]) == {"a": list(range(500))}


def test_a_batch_may_take_permits_below_zero() -> None:
    """As the broker: the batch cannot be split, the consumer pays with later permits."""
    dispatcher = with_consumers("a", permits=3)
    assigned, left = dispatcher.assign(offers(2, messages=10))
    assert given(assigned) == {"a": [0]}
    assert len(left) == 1
    dispatcher.flow("a", 7, True)
    assert dispatcher.capacity() == 0
    dispatcher.flow("a", 1, True)
    assert dispatcher.capacity() == 1
    dispatcher.check()


def test_priority_levels() -> None:
    dispatcher = with_consumers("ab", permits=5, level=1)
    dispatcher.add_consumer("first", 0)
    dispatcher.flow("first", 4, True)
    assigned, _ = dispatcher.assign(offers(10))
    assert given(assigned) == {"first": [0, 1, 2, 3], "a": [4, 5, 6, 7, 8], "b": [9]}


def test_a_connection_that_is_full_gets_nothing() -> None:
    dispatcher = with_consumers("ab", permits=10)
    dispatcher.flow("a", 0, False)
    assert given(dispatcher.assign(offers(5))[0]) == {"b": [0, 1, 2, 3, 4]}
    dispatcher.flow("a", 0, True)
    assert dispatcher.capacity() == 15


def test_permits_of_a_consumer_that_left() -> None:
    dispatcher = with_consumers("a")
    dispatcher.remove_consumer("a")
    dispatcher.flow("a", 10, True)
    assert dispatcher.capacity() == 0
    assert dispatcher.remove_consumer("a") == 0


# -- acks


def test_acks() -> None:
    dispatcher = with_consumers("a", permits=10)
    dispatcher.assign(offers(3))
    assert dispatcher.ack(1, 1)
    assert not dispatcher.ack(1, 1)
    assert not dispatcher.ack(9, 9)
    assert sorted(dispatcher.unacked) == [(1, 0), (1, 2)]
    dispatcher.check()


def test_an_ack_while_it_waits_for_redelivery() -> None:
    dispatcher = with_consumers("a", permits=10)
    dispatcher.assign(offers(2))
    dispatcher.redeliver("a", None)
    assert dispatcher.ack(1, 0)
    assert replay(dispatcher) == [(1, 1)]


def test_the_brokers_mark_delete_position_acks_what_is_below() -> None:
    dispatcher = with_consumers("a", permits=10)
    dispatcher.assign(offers(6))
    dispatcher.redeliver("a", [(1, 0), (1, 5)])
    assert dispatcher.advance(1, 3) == 4
    assert sorted(dispatcher.unacked) == [(1, 4)]
    assert replay(dispatcher) == [(5, 1)]
    dispatcher.check()


def test_batch_acks_add_up() -> None:
    """Bits: 1 = still unacked. A client that reports an older state takes nothing back."""
    dispatcher = with_consumers("a", permits=10)
    dispatcher.assign(offers(1, messages=4))
    dispatcher.ack_partly(1, 0, (0b1110,))
    dispatcher.ack_partly(1, 0, (0b1011,))
    dispatcher.redeliver("a", None)
    ((_, again),) = take_replay(dispatcher, 10)
    assert again.ack_set == (0b1010,)


@hypothesis.given(
    count=st.integers(1, 200),
    acked=st.lists(st.sets(st.integers(0, 199)), min_size=1, max_size=4),
    trim=st.booleans(),
    excess=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
)
def test_what_is_left_of_a_batch(count: int, acked: list[set[int]], trim: bool, excess: list[int]) -> None:
    """As sets of message numbers; clients leave out words of zeros at the end, or add nonsense behind it."""
    left: tuple[int, ...] = ()
    for gone in acked:
        bits = sum(1 << number for number in range(count) if number not in gone)
        words = [bits >> shift & 2**64 - 1 for shift in range(0, count, 64)]
        while trim and len(words) > 1 and not words[-1]:
            words.pop()
        signed = [word - 2**64 if word >= 2**63 else word for word in words]
        if not trim:
            signed += excess
        left = still_unacked(left, signed, count)
    expected = set(range(count)) - set().union(*acked)
    assert {number for number in range(64 * len(left)) if left[number // 64] >> number % 64 & 1} == expected
    assert any(left) == bool(expected)


def test_batches_too_large_to_note() -> None:
    dispatcher = with_consumers("a", permits=10)
    dispatcher.assign(offers(1, messages=2**31 - 1))
    assert dispatcher.ack_partly(1, 0, (1,) * 10_000) == ()


def test_acks_of_a_batch_that_waits_for_redelivery() -> None:
    dispatcher = with_consumers("a", permits=10)
    dispatcher.assign(offers(1, messages=4))
    dispatcher.ack_partly(1, 0, (0b1110,))
    dispatcher.redeliver("a", None)
    assert dispatcher.ack_partly(1, 0, (0b0111,)) == (0b0110,)
    assert dispatcher.ack_partly(1, 1, (0b0111,)) is None
    assert dispatcher.replay[1, 0].ack_set == (0b0110,)


# -- redelivery


def test_redelivery_counts() -> None:
    dispatcher = with_consumers("a", permits=100)
    dispatcher.assign(offers(3))
    for count in range(1, 4):
        assert dispatcher.redeliver("a", [(1, 1)]) == 1
        ((position, again),) = take_replay(dispatcher, 10)
        assert (position, again.redelivery_count) == ((1, 1), count)
        dispatcher.assign([Offer(1, 1, 1, None, b"", again.redelivery_count)])
    dispatcher.check()


def test_redelivery_of_everything_of_one_consumer() -> None:
    dispatcher = with_consumers("ab", permits=100)
    assigned = given(dispatcher.assign(offers(40))[0])
    assert dispatcher.redeliver("a", None) == 20
    assert [entry for entry, _ in replay(dispatcher)] == assigned["a"]


def test_nobody_asks_for_what_another_has() -> None:
    dispatcher = with_consumers("ab", permits=100)
    dispatcher.assign(offers(40))
    others = [position for position, each in dispatcher.unacked.items() if each.consumer.consumer == "b"]
    assert dispatcher.redeliver("a", others) == 0
    assert dispatcher.redeliver("a", [(7, 7)]) == 0
    assert dispatcher.redeliver("nobody", None) == 0


def test_what_a_consumer_leaves_keeps_its_count() -> None:
    """The broker counts when a client asks, not when it leaves."""
    dispatcher = with_consumers("ab", permits=5)
    dispatcher.assign(offers(5))
    dispatcher.redeliver("a", [(1, 2)])
    ((_, again),) = take_replay(dispatcher, 1)
    dispatcher.flow("a", 1, True)
    dispatcher.assign([Offer(1, 2, 1, None, b"", again.redelivery_count)])
    holder = next(iter(dispatcher.unacked.values())).consumer.consumer
    left = dispatcher.remove_consumer(holder) + dispatcher.remove_consumer("ab".replace(holder, ""))
    assert left == 5
    assert replay(dispatcher) == [(0, 0), (1, 0), (2, 1), (3, 0), (4, 0)]
    dispatcher.check()


def test_replay_is_in_order_of_position() -> None:
    dispatcher = with_consumers("a", permits=100)
    dispatcher.assign(offers(10))
    dispatcher.redeliver("a", [(1, 7), (1, 2), (1, 5)])
    taken = take_replay(dispatcher, 2)
    assert [position[1] for position, _ in taken] == [2, 5]
    dispatcher.put_back(*taken[0])
    assert [entry for entry, _ in replay(dispatcher)] == [2, 7]


def test_clear_keeps_consumers_and_permits() -> None:
    dispatcher = with_consumers("ab", permits=30)
    dispatcher.assign(offers(40))
    dispatcher.redeliver("a", [(1, 0)])
    dispatcher.clear()
    assert not dispatcher.unacked
    assert not dispatcher.replay
    assert dispatcher.capacity() == 20
    dispatcher.check()


# -- limits


SMALL = DispatchLimits(max_unacked_per_consumer=10, max_unacked_per_subscription=16, round_robin_batch=4)


def test_a_consumer_that_does_not_ack_is_blocked_until_half_is_acked() -> None:
    dispatcher = with_consumers("a", permits=100, limits=SMALL)
    assigned, left = dispatcher.assign(offers(50))
    assert given(assigned) == {"a": list(range(10))}
    assert len(left) == 40
    assert dispatcher.capacity() == 0
    for entry in range(4):
        dispatcher.ack(1, entry)
    assert dispatcher.capacity() == 0
    dispatcher.ack(1, 4)
    assert dispatcher.capacity() > 0
    assert given(dispatcher.assign(offers(50, start=10))[0]) == {"a": [10, 11, 12, 13, 14]}


def test_a_blocked_consumer_does_not_block_others() -> None:
    dispatcher = with_consumers("ab", permits=100, limits=replace(SMALL, max_unacked_per_subscription=1_000))
    for start in range(0, 200, 20):
        assigned, _ = dispatcher.assign(offers(20, start=start))
        for entry in given(assigned)["b"]:
            dispatcher.ack(1, entry)
    assert dispatcher.capacity() == 100 - dispatcher.consumers[1].delivered
    assert dispatcher.consumers[0].unacked_messages == 10
    dispatcher.check()


def test_redelivery_frees_a_blocked_consumer() -> None:
    dispatcher = with_consumers("a", permits=100, limits=SMALL)
    dispatcher.assign(offers(10))
    assert dispatcher.capacity() == 0
    dispatcher.redeliver("a", None)
    assert dispatcher.capacity() > 0


def test_a_subscription_that_does_not_ack_is_blocked_until_half_is_acked() -> None:
    dispatcher = with_consumers("abc", permits=100, limits=SMALL)
    dispatcher.assign(offers(16))
    assert dispatcher.capacity() == 0
    dispatcher.add_consumer("d", 0)
    dispatcher.flow("d", 100, True)
    assert dispatcher.capacity() == 0
    for entry in range(8):
        dispatcher.ack(1, entry)
    assert dispatcher.capacity() > 0


def test_no_more_entries_are_asked_for_than_may_be_unacked() -> None:
    dispatcher = with_consumers("ab", permits=100, limits=SMALL)
    dispatcher.assign(offers(10))
    assert dispatcher.capacity() == 6


def test_departure_unblocks_the_subscription() -> None:
    dispatcher = with_consumers("ab", permits=100, limits=SMALL)
    dispatcher.assign(offers(16))
    dispatcher.remove_consumer("a")
    assert dispatcher.capacity() > 0


def test_a_large_batch_and_the_limit() -> None:
    """Never stuck: a batch larger than the limit goes out, and blocks."""
    dispatcher = with_consumers("a", permits=100, limits=SMALL)
    assigned, left = dispatcher.assign(offers(3, messages=50))
    assert given(assigned) == {"a": [0]}
    assert len(left) == 2
    dispatcher.ack(1, 0)
    assert given(dispatcher.assign(left)[0]) == {"a": [1]}


# -- chunked messages


def chunk(entry: int, uuid: str, *, last: bool = False) -> Offer:
    return Offer(1, entry, 1, None, b"", chunk=Chunk(uuid, last))


def test_chunks_go_where_the_first_one_went() -> None:
    dispatcher = with_consumers("ab", permits=100)
    sent = [chunk(0, "x"), chunk(1, "y"), chunk(2, "x"), chunk(3, "y", last=True), chunk(4, "x", last=True)]
    assigned = given(dispatcher.assign(sent)[0])
    assert sorted(assigned.values()) == [[0, 2, 4], [1, 3]]


def test_a_chunk_waits_for_the_permits_of_its_consumer() -> None:
    dispatcher = with_consumers("a", permits=1)
    dispatcher.add_consumer("b", 0)
    dispatcher.assign([chunk(0, "x")])
    dispatcher.flow("b", 100, True)
    assigned, left = dispatcher.assign([chunk(1, "x", last=True), *offers(1, start=2)])
    assert given(assigned) == {"b": [2]}
    assert not left
    assert replay(dispatcher) == [(1, 0)]
    dispatcher.flow("a", 1, True)
    assert given(dispatcher.assign([chunk(1, "x", last=True)])[0]) == {"a": [1]}


def test_chunks_of_a_consumer_that_left_go_to_another() -> None:
    dispatcher = with_consumers("a", permits=1)
    dispatcher.assign([chunk(0, "x")])
    dispatcher.remove_consumer("a")
    dispatcher.add_consumer("b", 0)
    dispatcher.flow("b", 10, True)
    assert given(dispatcher.assign([chunk(0, "x"), chunk(1, "x", last=True)])[0]) == {"b": [0, 1]}


# -- limits of the broker's policies


def test_turns_are_of_entries_and_permits_of_messages() -> None:
    dispatcher = with_consumers("ab", permits=1_000, limits=replace(USUAL, round_robin_batch=4))
    dispatcher.add_consumer("c", 0)
    dispatcher.flow("c", 12, True)
    assigned = given(dispatcher.assign(offers(14, messages=5))[0])
    assert assigned == {"a": [0, 1, 2, 3, 11, 12, 13], "b": [4, 5, 6, 7], "c": [8, 9, 10]}
    dispatcher.check()


def test_counts_are_forgotten_with_the_last_consumer() -> None:
    dispatcher = with_consumers("ab", permits=1)
    dispatcher.assign(offers(2))
    dispatcher.redeliver("a", None)
    dispatcher.remove_consumer("a")
    assert replay(dispatcher) == [(0, 1)], "another one is there"
    dispatcher.remove_consumer("b")
    dispatcher.forget_counts()
    assert replay(dispatcher) == [(0, 0), (1, 0)]


def test_limits_of_consumers_that_change() -> None:
    dispatcher = with_consumers("a", permits=100)
    dispatcher.set_unacked_limits(UnackedLimits(10, 0))
    assert given(dispatcher.assign(offers(50))[0]) == {"a": list(range(10))}
    assert dispatcher.capacity() == 0
    dispatcher.set_unacked_limits(UnackedLimits(18, 0))
    assert dispatcher.capacity() == 0, "more than half of it is unacked"
    dispatcher.set_unacked_limits(UnackedLimits(20, 0))
    assert len(given(dispatcher.assign(offers(50, start=10))[0])["a"]) == 10
    dispatcher.set_unacked_limits(UnackedLimits(0, 0))
    assert len(given(dispatcher.assign(offers(90, start=20))[0])["a"]) == 80, "as many as it has permits for"
    dispatcher.flow("a", 100, True)
    dispatcher.set_unacked_limits(UnackedLimits(100, 0))
    assert dispatcher.capacity() == 0, "lowered below what is unacked"
    dispatcher.check()


def test_the_limit_of_a_subscription_holds_for_what_is_new() -> None:
    """In messages; the last batch goes out as a whole. What the bridge has memory for is another limit."""
    dispatcher = with_consumers("ab", permits=100)
    assert dispatcher.room_for_new() == USUAL.max_unacked_per_subscription
    dispatcher.set_unacked_limits(UnackedLimits(0, 10))
    dispatcher.assign(offers(3, messages=4))
    assert dispatcher.room_for_new() == 0
    assert dispatcher.capacity() > 0
    dispatcher.redeliver("a", None)
    assert dispatcher.room_for_new() == 10
    dispatcher.assign([again.offer(position, b"") for position, again in take_replay(dispatcher, 3)])
    dispatcher.ack(1, 0)
    dispatcher.set_unacked_limits(UnackedLimits(0, 17))
    assert dispatcher.room_for_new() == 0, "half of it has to be acked"
    dispatcher.ack(1, 1)
    assert dispatcher.room_for_new() == 13
    dispatcher.check()


def test_the_limit_of_a_subscription_when_a_consumer_leaves() -> None:
    dispatcher = with_consumers("ab", permits=100)
    dispatcher.set_unacked_limits(UnackedLimits(0, 40))
    dispatcher.assign(offers(40))
    assert dispatcher.room_for_new() == 0
    dispatcher.remove_consumer("a")
    assert dispatcher.room_for_new() == 0, "20 are unacked: fewer than that have to be"
    dispatcher.remove_consumer("b")
    assert dispatcher.room_for_new() == 40
    dispatcher.check()
