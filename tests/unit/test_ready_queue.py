"""What goes out next, in order, and what an operator keeps from going out."""

from bridge.dispatch.dispatcher import Offer
from bridge.dispatch.ready_queue import ReadyQueue
from tracker import encode_key


def offer(entry: int, due_ms: int | None = None) -> Offer:
    key = None if due_ms is None else encode_key(due_ms, 1, entry)
    return Offer(1, entry, 1, key, b"raw")


def queue_of(*entries: int) -> ReadyQueue:
    queue = ReadyQueue()
    queue.add(map(offer, entries))
    return queue


def numbers(offers: list[Offer]) -> list[int]:
    return [each.entry for each in offers]


def test_what_did_not_go_out_goes_first_next_time_in_its_order() -> None:
    queue = queue_of(1, 2, 3, 4)
    taken = queue.take(3)
    assert (numbers(taken), len(queue)) == ([1, 2, 3], 1)
    queue.put_first(taken[1:])
    queue.add([offer(5)])
    assert numbers(queue.take(10)) == [2, 3, 4, 5]
    assert queue.take(1) == []


def test_what_is_early_is_taken_out_and_the_rest_stays_in_order() -> None:
    queue = queue_of(1, 2, 3, 4)
    assert numbers(queue.take_out(lambda each: each.entry % 2 == 0)) == [2, 4]
    assert queue.take_out(lambda each: False) == []
    assert numbers(queue.take(10)) == [1, 3]


def test_who_waits_longest_is_the_one_due_first() -> None:
    queue = queue_of(1)
    assert queue.oldest_due_ms() is None
    queue.add([offer(2, 500), offer(3, 200), offer(4, 900)])
    assert queue.oldest_due_ms() == 200
    found = queue.find((1, 3))
    assert found is not None
    assert found.entry == 3
    assert queue.find((1, 7)) is None


def test_what_is_held_goes_out_first_once_it_is_let_go() -> None:
    queue = queue_of(1, 2, 3)
    queue.hold((1, 2))
    assert numbers(queue.without_held(queue.take(3))) == [1, 3]
    queue.add([offer(4)])
    queue.let_go((1, 2))
    assert numbers(queue.without_held(queue.take(3))) == [2, 4]


def test_what_is_held_and_was_not_about_to_go_out_waits_for_its_turn() -> None:
    queue = ReadyQueue()
    queue.hold((1, 2))
    queue.let_go((1, 2))
    assert len(queue) == 0


def test_what_is_dropped_never_goes_out_and_nothing_is_known_after_clear() -> None:
    queue = queue_of(1, 2)
    queue.hold((1, 1))
    queue.hold((1, 2))
    assert queue.without_held(queue.take(2)) == []
    queue.drop((1, 1))
    queue.let_go((1, 1))
    assert len(queue) == 0
    queue.clear()
    queue.let_go((1, 2))
    assert len(queue) == 0
