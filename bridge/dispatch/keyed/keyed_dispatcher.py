"""Who gets which entry of a Key_Shared subscription: whose the key is. Pure.

Permits, acks and redelivery are those of `Dispatcher`. What is new waits here until its key's turn comes, with its
bytes; how much may wait is limited (`room`), so a key that is held up does not hold up others for a good while, and
memory never grows with it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sortedcontainers import SortedDict

from bridge.dispatch.dispatcher import (
    C,
    ConsumerState,
    Dispatcher,
    Offer,
    PositionKey,
    Ranges,
    Redelivery,
    Unacked,
)
from bridge.dispatch.keyed.key_order import KeyOrder
from bridge.dispatch.keyed.key_selector import HashRing, KeySelector, StickyRanges
from bridge.limits import DispatchLimits
from bridge.protocol.sticky_keys import KeySharing


class KeyedReplay(SortedDict[PositionKey, Redelivery]):  # type: ignore[misc]
    """What waits to be delivered again; the order of keys hears of every change."""

    def __init__(self, order: KeyOrder[Any]) -> None:
        """Nothing waits."""
        super().__init__()
        self._order_of_keys = order

    def __setitem__(self, position: PositionKey, redelivery: Redelivery) -> None:
        """Put, or replace with what is of the same key."""
        known = position in self
        super().__setitem__(position, redelivery)
        if not known:
            self._order_of_keys.add_again(redelivery.sticky_hash, position)

    def __delitem__(self, position: PositionKey) -> None:
        """Raises KeyError."""
        self._order_of_keys.drop_again(self[position].sticky_hash, position)
        super().__delitem__(position)

    def pop(self, position: PositionKey, default: Any = None) -> Any:
        """Take out, if it is there."""
        if position not in self:
            return default
        found = self[position]
        del self[position]
        return found

    def clear(self) -> None:
        """Nothing waits any more, and nobody has anything."""
        super().clear()
        self._order_of_keys.clear_again()


class KeyedDispatcher(Dispatcher[C]):
    """One Key_Shared subscription."""

    def __init__(self, limits: DispatchLimits, sharing: KeySharing, wake: Callable[[], None]) -> None:
        """`wake`: something can go out that an ack has set free."""
        super().__init__(limits)
        self.sharing = sharing
        selector: KeySelector[ConsumerState[C]] = StickyRanges() if sharing.sticky else HashRing()
        self.order: KeyOrder[ConsumerState[C]] = KeyOrder(selector, ordered=not sharing.out_of_order)
        self.replay = KeyedReplay(self.order)
        self._wake = wake

    # -- consumers

    def add_consumer(self, consumer: C, priority_level: int, name: str = "", ranges: Ranges = ()) -> None:
        """As of `Dispatcher`; priority levels do not matter, as in the broker."""
        super().add_consumer(consumer, priority_level)
        self.order.join(self._consumers[consumer], name, ranges)

    def remove_consumer(self, consumer: C) -> int:
        """As of `Dispatcher`."""
        state = self._consumers.get(consumer)
        if state is None:
            return 0
        for position in state.positions:
            self.order.let_go(self.unacked[position].sticky_hash)
        self.order.leave(state)
        return super().remove_consumer(consumer)

    def begin_slice(self) -> None:
        """What can go to each consumer is as it is now."""
        room = self.unacked_limits.room_of_consumer
        turns = {state: room(state.unacked_messages, state.available) for state in self._order}
        self.order.begin_slice(turns)

    @property
    def room(self) -> int:
        """How many more new entries may wait."""
        limits = self._limits
        if self.order.waiting_bytes >= limits.look_ahead_bytes:
            return 0
        most = min(limits.look_ahead_per_consumer * len(self._order), limits.look_ahead_per_subscription)
        return max(most - self.order.waiting, 0)

    # -- deliveries

    def assign(self, offers: Sequence[Offer]) -> tuple[list[tuple[C, Sequence[Offer]]], Sequence[Offer]]:
        """Hand out what was taken of the order in this slice; nothing is left."""
        result: dict[ConsumerState[C], list[Offer]] = {}
        owner, hold, unacked = self.order.owner, self.order.hold, self.unacked
        for offer in offers:
            sticky_hash = offer.sticky_hash
            state = owner(sticky_hash)
            assert state is not None
            position = offer[:2]
            unacked[position] = Unacked(
                state, offer.key, offer.message_count, offer.redelivery_count, offer.ack_set, sticky_hash
            )
            state.positions[position] = None
            hold(state, sticky_hash)
            result.setdefault(state, []).append(offer)
        for state, batch in result.items():
            self._charge(state, sum([offer.message_count for offer in batch]))
        if len(unacked) >= self._limits.max_unacked_per_subscription:
            self._blocked = True
        return [(state.consumer, batch) for state, batch in result.items()], ()

    # -- what comes back

    def _forget(self, position: PositionKey, unacked: Unacked[C]) -> None:
        super()._forget(position, unacked)
        if self.order.let_go(unacked.sticky_hash):
            self._wake()

    def check(self) -> None:
        """Derive every counter anew (tests)."""
        super().check()
        held: dict[int, tuple[ConsumerState[C], int]] = {}
        for unacked in self.unacked.values():
            holder, count = held.get(unacked.sticky_hash, (unacked.consumer, 0))
            assert holder is unacked.consumer or self.sharing.out_of_order
            held[unacked.sticky_hash] = (unacked.consumer, count + 1)
        again: dict[int, list[PositionKey]] = {}
        for position, waiting in self.replay.items():
            again.setdefault(waiting.sticky_hash, []).append(position)
        self.order.check(held, again)
