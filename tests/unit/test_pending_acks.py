"""Acks in transactions that have not ended: what they keep from going out, and what their ends make of that."""

import pytest

from bridge.dispatch.acks.pending_acks import Committed, PendingAcks, Transaction
from bridge.dispatch.dispatcher import Dispatcher, Offer, PositionKey
from bridge.limits import DispatchLimits
from tracker import Position

ONE, TWO = Transaction(0, 1), Transaction(0, 2)
A, B, C = (1, 0), (1, 1), (1, 2)
BATCH = 4


class Subscription:
    """A dispatcher with a consumer, and what is pending."""

    def __init__(self, message_count: int = 1, **limits: int) -> None:
        self.dispatcher: Dispatcher[str] = Dispatcher(DispatchLimits(**limits))
        self.dispatcher.add_consumer("c", 0)
        self.dispatcher.flow("c", 100, writable=True)
        self.pending: PendingAcks[str] = PendingAcks(self.dispatcher, DispatchLimits(**limits))
        self.message_count = message_count

    def offer(self, *positions: PositionKey) -> list[tuple[PositionKey, int]]:
        """Entries are about to go out for the first time; returns which do, with their redelivery counts."""
        return self._send([Offer(*each, self.message_count, None, b"") for each in positions])

    def again(self) -> list[tuple[PositionKey, int]]:
        """What waits to be delivered again goes out, if it may."""
        waiting = [(position, self.dispatcher.replay.pop(position)) for position in list(self.dispatcher.replay)]
        return self._send([redelivery.offer(position, b"") for position, redelivery in waiting])

    def _send(self, offers: list[Offer]) -> list[tuple[PositionKey, int]]:
        sendable = self.pending.sift(offers)
        self.dispatcher.assign(sendable)
        self.dispatcher.check()
        self.pending.check()
        return [(each[:2], each.redelivery_count) for each in sendable]

    def ack(self, transaction: Transaction, *positions: PositionKey, agreed: bool | None = True) -> None:
        acks = [(each, ()) for each in positions]
        self.pending.note(transaction, acks, 0)
        if agreed is not None:
            self.pending.answered(transaction, acks, agreed)

    def ack_part(self, transaction: Transaction, position: PositionKey, bits: int) -> None:
        self.pending.note(transaction, [(position, (bits,))], 0)
        self.pending.answered(transaction, [(position, (bits,))], True)

    def end(self, transaction: Transaction, committed: bool, trusted: bool = True) -> Committed:
        done = self.pending.ended(transaction, committed, trusted=trusted)
        self.pending.check()
        return done


def test_an_abort_brings_it_again_counted_once() -> None:
    it = Subscription()
    it.offer(A, B, C)
    it.ack(ONE, A, B)
    it.dispatcher.redeliver("c", None)
    assert it.again() == [(C, 1)]
    assert it.end(ONE, committed=False) == Committed([], [])
    assert it.again() == [(A, 1), (B, 1)]
    assert not it.pending


def test_a_commit_tells_what_is_acked() -> None:
    it = Subscription()
    it.offer(A, B)
    it.ack(ONE, A)
    assert it.end(ONE, committed=True).whole == [A]
    assert not it.pending
    it.dispatcher.remove_consumer("c")
    assert list(it.dispatcher.replay) == [B]


@pytest.mark.parametrize("given_back", ["asked for", "left"])
def test_what_was_given_back_before_the_broker_answered(given_back: str) -> None:
    """It waits here, and goes out as it was when the ack is refused."""
    it = Subscription()
    it.offer(A)
    it.ack(ONE, A, agreed=None)
    if given_back == "asked for":
        it.dispatcher.redeliver("c", [A])
    else:
        it.dispatcher.remove_consumer("c")
        it.dispatcher.add_consumer("d", 0)
        it.dispatcher.flow("d", 100, writable=True)
    assert it.again() == []
    it.pending.answered(ONE, [(A, ())], False)
    assert it.again() == [(A, 1 if given_back == "asked for" else 0)]
    assert not it.pending


def test_a_refused_ack_leaves_it_with_its_consumer() -> None:
    it = Subscription()
    it.offer(A)
    it.ack(ONE, A, agreed=False)
    assert not it.pending
    assert list(it.dispatcher.unacked) == [A]


def test_the_same_ack_twice_is_refused_the_second_time_only() -> None:
    it = Subscription()
    it.offer(A)
    it.ack(ONE, A)
    it.ack(ONE, A, agreed=False)
    it.ack(TWO, A, agreed=False)
    assert it.end(TWO, committed=True) == Committed([], [])
    assert it.end(ONE, committed=True).whole == [A]


def test_acked_before_it_goes_out() -> None:
    """Whether it was about to meanwhile or not, an abort counts."""
    it = Subscription()
    it.ack(ONE, A, B)
    assert it.offer(A) == []
    it.end(ONE, committed=False)
    assert it.again() == [(A, 1)]
    assert it.offer(B) == [(B, 1)]
    assert not it.pending


def test_an_ack_nobody_has_agreed_to_is_asked_about_after_a_commit() -> None:
    it = Subscription()
    it.offer(A, B)
    it.ack(ONE, A)
    it.ack(ONE, B, agreed=None)
    assert it.end(ONE, committed=True).whole == [A]
    assert it.pending.to_ask(0) == [(ONE, B)]
    assert it.pending.is_over(ONE, B, lambda *position: position == B, 0) == [B]
    assert not it.pending


def test_who_is_not_to_be_trusted_is_asked_about() -> None:
    it = Subscription()
    it.offer(A)
    it.ack(ONE, A)
    assert it.end(ONE, committed=True, trusted=False) == Committed([], [])
    assert it.pending.to_ask(0) == [(ONE, A)]
    it.pending.is_pending(ONE, A, 0)
    assert it.pending.to_ask(0) == []


def test_one_that_is_not_heard_of_is_asked_about_again_and_again() -> None:
    it = Subscription(transaction_ask_after_s=2, transaction_ask_most=1)
    it.offer(A, B)
    it.ack(ONE, A)
    it.ack(TWO, B)
    assert it.pending.to_ask(1) == []
    assert it.pending.to_ask(2) == [(ONE, A)]
    it.pending.is_pending(ONE, A, 2)
    assert it.pending.to_ask(3) == [(TWO, B)]
    assert it.pending.is_over(TWO, B, lambda *_: False, 3) == []
    assert it.again() == [(B, 1)]
    assert it.pending.to_ask(4) == [(ONE, A)]


def test_an_entry_acked_by_itself_says_nothing_of_the_others() -> None:
    it = Subscription()
    it.offer(A, B)
    it.ack(ONE, A, B)
    assert it.pending.is_over(ONE, A, lambda *position: position == A, 9) == [A]
    assert it.again() == []
    it.end(ONE, committed=False)
    assert it.again() == [(B, 1)]


def test_parts_of_a_batch() -> None:
    it = Subscription(BATCH)
    it.offer(A)
    it.ack_part(ONE, A, 0b1110)
    shown = Offer(*A, BATCH, None, b"")
    assert it.pending.shown(shown) == (0b1110,)
    assert list(it.dispatcher.unacked) == [A]
    it.ack_part(TWO, A, 0b0001)
    assert list(it.dispatcher.unacked) == []
    ((position, left),) = it.end(ONE, committed=True).partly
    assert it.dispatcher.ack_partly(*position, left) == (0b1110,)
    assert it.again() == []
    it.end(TWO, committed=False)
    assert it.again() == [(A, 1)]
    assert it.dispatcher.unacked[A].ack_set == (0b1110,)
    assert not it.pending


def test_the_cursor_passes_it() -> None:
    it = Subscription()
    it.offer(A, B, C)
    it.ack(ONE, A, B, C)
    it.pending.advance(Position(*B))
    assert it.end(ONE, committed=True).whole == [C]


def test_a_seek_brings_everything_anew_but_what_is_pending() -> None:
    it = Subscription()
    it.offer(A, B)
    it.ack(ONE, A)
    it.dispatcher.clear()
    it.pending.forget_deliveries()
    it.pending.distrust()
    assert it.offer(A, B) == [(B, 0)]
    assert it.end(ONE, committed=True) == Committed([], [])
    assert it.pending.to_ask(0) == [(ONE, A)]
    assert it.pending.is_over(ONE, A, lambda *_: False, 0) == []
    assert it.again() == [(A, 1)]


def test_what_is_older_is_suspect() -> None:
    """Until the broker has told of each, or that there are no transactions left."""
    it = Subscription()
    told: list[bool] = []
    it.pending.suspect(Position(*B), lambda: told.append(True))
    assert it.offer(A, B, C) == [(C, 0)]
    assert told == [True]
    assert it.pending.suspects() == [A, B]
    it.pending.suspect_is_cleared(A)
    it.pending.suspect_is_pending(B, 0)
    assert it.again() == [(A, 0)]
    assert it.pending.to_ask(0) == []
    it.end(ONE, committed=True)  # perhaps that was it
    ((transaction, position),) = it.pending.to_ask(0)
    assert position == B
    assert it.pending.is_over(transaction, position, lambda *_: False, 0) == []
    assert it.again() == [(B, 1)]
    it.pending.clear_suspects()
    assert not it.pending


def test_too_many_suspects_are_let_go() -> None:
    it = Subscription(transaction_suspects_most=1)
    it.pending.suspect(Position(*C))
    assert it.offer(A, B, C) == []
    it.pending.suspect_is_cleared(A)
    it.pending.suspect_is_cleared(B)
    assert it.again() == [(A, 0), (B, 0), (C, 0)]


def test_too_many_acks_are_not_noted() -> None:
    it = Subscription(max_unacked_per_subscription=1, max_unacked_per_consumer=1)
    it.ack(ONE, A, B)
    assert it.offer(A, B) == [(B, 0)]
    it.end(ONE, committed=False)
    it.ack(TWO, C)
    assert it.pending.open_transactions == 1


def test_one_entry_in_many_transactions_is_too_much() -> None:
    it = Subscription(max_unacked_per_subscription=3, max_unacked_per_consumer=3)
    for number in range(5):
        it.ack(Transaction(0, number), A, agreed=None)
    assert it.pending.open_transactions == 3
    for number in range(5):
        it.end(Transaction(0, number), committed=False)
    assert A not in it.pending
    it.ack(ONE, B)
    assert it.offer(A, B) == [(A, 3)]


def test_one_batch_by_many_ack_sets_is_too_much() -> None:
    it = Subscription(message_count=64, max_unacked_per_subscription=3, max_unacked_per_consumer=3)
    it.pending.note(ONE, [(A, (1 << number,)) for number in range(10)], 0)
    it.pending.note(ONE, [(B, (0,) * 2_000)], 0)
    assert B not in it.pending
    it.pending.check()
    it.pending.discard(A)
    it.ack(ONE, B)
    assert B in it.pending
    it.pending.check()
