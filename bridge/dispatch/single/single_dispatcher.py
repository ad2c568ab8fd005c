"""Who gets what of an Exclusive or Failover subscription: the active consumer everything, in order. Pure.

Permits, acks and redelivery are those of `Dispatcher`, but for these: whoever becomes active gets what others had not
acked; whoever asks for anything again gets all it has not acked again; redeliveries are not counted, and what may be
unacked is not limited by policies (source: `PersistentDispatcherSingleActiveConsumer`, `RedeliveryTrackerDisabled`).

A consumer may ack all up to a position. A delayed entry may go out when what lies behind it is acked already: whoever
acked that does not speak of an entry that it did not have. So such an ack covers of the delayed entries those that its
sender was given before the one it names, and behind what was acked before; all others are acked by their own positions.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from sortedcontainers import SortedList

from bridge.dispatch.dispatcher import (
    Again,
    C,
    ConsumerState,
    Dispatcher,
    Offer,
    PositionKey,
    Unacked,
)
from bridge.dispatch.unacked_limits import UnackedLimits
from bridge.limits import DispatchLimits

NOWHERE: Final = (-1, -1)
NO_LIMITS: Final = UnackedLimits(0, 0)


class SingleDispatcher(Dispatcher[C]):
    """One subscription of one of these types."""

    def __init__(self, limits: DispatchLimits) -> None:
        """Nobody is active."""
        super().__init__(limits)
        self.unacked_limits = NO_LIMITS
        self.acked_up_to: PositionKey = NOWHERE
        """A consumer that is here, or was beside one that is, has acked all that is immediate up to there, whether it
        was given it by this bridge or not."""
        self._overtaken: PositionKey = NOWHERE
        self._active: ConsumerState[C] | None = None
        self._number = 0
        self._given: dict[PositionKey, tuple[ConsumerState[C], int]] = {}  # to whom for the first time, and when
        self._by_position: SortedList[PositionKey] = SortedList()  # what is unacked

    # -- consumers

    @property
    def active(self) -> C | None:
        """The one that gets everything."""
        return None if self._active is None else self._active.consumer

    def activate(self, consumer: C) -> None:
        """From now on it gets everything, first what others have not acked."""
        state = self._consumers.get(consumer)
        if state is None or state is self._active:
            return
        self._active = state
        for other in self._order:
            if other is not state:
                self._take_back(list(other.positions), Again.consumer_gone)

    def deactivate(self, consumer: C) -> None:
        """It gets nothing more; what it has it may ack until another one is active."""
        if self._active is not None and self._active.consumer == consumer:
            self._active = None

    def remove_consumer(self, consumer: C) -> int:
        """As of `Dispatcher`."""
        self.deactivate(consumer)
        state = self._consumers.get(consumer)
        for position in () if state is None else state.positions:
            self._by_position.discard(position)
        freed = super().remove_consumer(consumer)
        self._given = {position: given for position, given in self._given.items() if given[0] is not state}
        if not self._order:  # while nobody is here the cursor may be set back
            self.acked_up_to = NOWHERE
        return freed

    def set_unacked_limits(self, limits: UnackedLimits) -> None:
        """They are for types that ack entry by entry (source: `Consumer.shouldBlockConsumerOnUnackMsgs`)."""

    def capacity(self) -> int:
        """As of `Dispatcher`."""
        return 0 if self._blocked or self._active is None else self._active.available

    # -- deliveries

    def assign(self, offers: Sequence[Offer]) -> tuple[list[tuple[C, Sequence[Offer]]], Sequence[Offer]]:
        """As of `Dispatcher`."""
        state = self._active
        if state is None or not state.available:
            return [], offers
        given: list[Offer] = []
        messages = 0
        for offer in offers:
            if messages >= state.permits:
                break
            given.append(offer if offer.redelivery_count == 0 else offer._replace(redelivery_count=0))
            position = offer[:2]
            self.unacked[position] = Unacked(state, offer.key, offer.message_count, 0, offer.ack_set)
            state.positions[position] = None
            self._note_given(position, state)
            messages += offer.message_count
        self._by_position.update(offer[:2] for offer in given)
        self._charge(state, messages)
        if len(self.unacked) >= self._limits.max_unacked_per_subscription:
            self._blocked = True
        return [(state.consumer, given)] if given else [], offers[len(given) :]

    def _note_given(self, position: PositionKey, state: ConsumerState[C]) -> None:
        """A consumer that acks may have the first of several copies in its hands."""
        if self._given.get(position, (None, 0))[0] is not state:
            self._number += 1
            self._given[position] = state, self._number
            if len(self._given) > 2 * self._limits.max_unacked_per_subscription:
                known = self.unacked.keys() | self.replay.keys()
                self._given = {each: given for each, given in self._given.items() if each in known}

    # -- what comes back

    def ack(self, ledger: int, entry: int) -> bool:
        """As of `Dispatcher`."""
        self._given.pop((ledger, entry), None)
        return super().ack(ledger, entry)

    def ack_up_to(self, consumer: C, position: PositionKey, *, whole: bool, for_good: bool) -> list[PositionKey]:
        """What an ack of a consumer up to a position covers, in order; nothing is acked by this.

        `whole`: all of the entry at the position; `for_good`: in no transaction.
        """
        state = self._consumers.get(consumer)
        owner, number = self._given.get(position, (None, 0))
        if owner is not state:  # it does not show what the consumer had by then
            number = 0
        covered = [each for each in self._by_position.irange(maximum=position) if self._covers(each, state, number)]
        if position in self.unacked and position not in covered:
            covered.append(position)
        for each in self.replay.irange(maximum=position):
            waiting = self.replay[each]
            if waiting.again is not None and (waiting.key is None or each == position):
                covered.append(each)
        self.overtake(position)
        if for_good:
            self.acked_up_to = max(self.acked_up_to, position if whole else (position[0], position[1] - 1))
        return sorted(covered)

    def overtake(self, position: PositionKey) -> None:
        """Something up to there is acked: delayed entries before it that were not yet are acked by themselves."""
        self._overtaken = max(self._overtaken, position)

    def _covers(self, position: PositionKey, state: ConsumerState[C] | None, number: int) -> bool:
        unacked = self.unacked[position]
        if unacked.key is None:
            return True
        return position > self._overtaken and unacked.consumer is state and self._given[position][1] <= number

    def redeliver(self, consumer: C, positions: Iterable[PositionKey] | None) -> int:
        """The active consumer wants what it has again: all of it, whatever it asks for.

        Source: `PersistentDispatcherSingleActiveConsumer.redeliverUnacknowledgedMessages`.
        """
        state = self._consumers.get(consumer)
        if state is None or state is not self._active:
            return 0
        return self._take_back(list(state.positions), Again.requested)

    def _take_back(self, positions: Sequence[PositionKey], again: Again) -> int:
        for position in positions:
            unacked = self.unacked.pop(position)
            self._forget(position, unacked)
            self._release(position, unacked, again)
        return len(positions)

    def clear(self) -> None:
        """As of `Dispatcher`."""
        super().clear()
        self._by_position.clear()
        self._given.clear()
        self.acked_up_to = NOWHERE

    def begin_anew(self) -> None:
        """A client sets the cursor: it forgets what it has acked up to, as all else that it knows of acks."""
        self._overtaken = NOWHERE

    def _forget(self, position: PositionKey, unacked: Unacked[C]) -> None:
        super()._forget(position, unacked)
        self._by_position.discard(position)

    def check(self) -> None:
        """Derive every counter anew (tests)."""
        super().check()
        assert list(self._by_position) == sorted(self.unacked)
        assert self._active is None or self._active in self._order
