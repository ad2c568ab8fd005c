"""Who gets which entry: permits, round robin, redelivery of one Shared subscription. Pure: no I/O, no clock.

The caller offers entries while `capacity()` is positive, sends what `assign` decides, and reports acks,
redelivery requests and departures. Everything handed out stays in `unacked` until it is acked; what is to be
delivered again waits in `replay`, in position order, and takes precedence over new entries.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeVar

from sortedcontainers import SortedDict

from bridge.dispatch.unacked_limits import UnackedLimits
from bridge.limits import DispatchLimits
from bridge.protocol.entries import Chunk

PositionKey = tuple[int, int]
"""(ledger, entry)."""

ACK_SET_WORDS_MAX: Final = 1_024
"""Acks of single messages are noted of batches of up to 64 times as many."""

C = TypeVar("C", bound=Hashable)
Ranges = tuple[tuple[int, int], ...]
"""Of hashes of keys, both ends included."""


class Again(StrEnum):
    """Why an entry is delivered again by this bridge: a consumer wants it, or the one that had it is gone; the cursor
    was set back (a seek, a reset, or acks that the broker forgot and that cannot be told from those); this bridge had
    stopped dispatching the subscription in between.
    """

    requested = "requested"
    consumer_gone = "consumer-gone"
    cursor_moved = "cursor-moved"
    resumed = "dispatch-resumed"


class Offer(NamedTuple):
    """An entry ready for delivery. `key`: its place in the delayed index, None for an immediate entry.

    `again`: why it is delivered again, None for the first time. `sticky_hash`: of its key, where keys are shared.
    """

    ledger: int
    entry: int
    message_count: int
    key: bytes | None
    raw: bytes
    redelivery_count: int = 0
    ack_set: tuple[int, ...] = ()
    chunk: Chunk | None = None
    again: Again | None = None
    sticky_hash: int = 0


class Redelivery(NamedTuple):
    """An entry that waits to be delivered again, or was put off; its bytes are fetched when its turn comes.

    `again`, `sticky_hash`: as in `Offer`.
    """

    key: bytes | None
    message_count: int
    redelivery_count: int
    ack_set: tuple[int, ...]
    again: Again | None = None
    sticky_hash: int = 0

    @classmethod
    def of(cls, offer: Offer) -> "Redelivery":
        """Put an offer off."""
        return cls(
            offer.key, offer.message_count, offer.redelivery_count, offer.ack_set, offer.again, offer.sticky_hash
        )

    def uncounted(self) -> "Redelivery":
        """Nobody has asked for it again."""
        return self._replace(redelivery_count=0)

    def acked_partly(self, ack_set: Sequence[int]) -> "Redelivery":
        """Some messages of it are acked."""
        return self._replace(
            ack_set=still_unacked(self.ack_set, ack_set, self.message_count),
            redelivery_count=0,
        )

    def offer(self, position: PositionKey, raw: bytes) -> Offer:
        """Offer it (again)."""
        ledger, entry = position
        count, again, sticky_hash = self.redelivery_count, self.again, self.sticky_hash
        return Offer(ledger, entry, self.message_count, self.key, raw, count, self.ack_set, None, again, sticky_hash)


def still_unacked(before: tuple[int, ...], ack_set: Sequence[int], message_count: int) -> tuple[int, ...]:
    """What is left of a batch that was acked partly, and partly again.

    64-bit words, bits: 1 = still unacked; words that are missing at the end are acked. An empty `before` means that
    nothing is. What was acked once stays acked, though a client may report from an older state; bits behind the end of
    the batch mean nothing. Of batches too large for ACK_SET_WORDS_MAX nothing is noted: they come again as a whole.
    """
    words, rest = -(-message_count // 64), message_count % 64
    if words > ACK_SET_WORDS_MAX:
        return before
    left = list(ack_set[:words])
    if len(left) == words and rest:
        left[-1] &= (1 << rest) - 1
    return tuple(a & b for a, b in zip(before, left, strict=False)) if before else tuple(left)


@dataclass(slots=True)
class Unacked(Generic[C]):
    """An entry handed to `consumer`."""

    consumer: "ConsumerState[C]"
    key: bytes | None
    message_count: int
    redelivery_count: int
    ack_set: tuple[int, ...] = ()
    sticky_hash: int = 0


@dataclass(slots=True, eq=False)
class ConsumerState(Generic[C]):
    """A consumer as the dispatcher sees it. Permits count messages and may fall below zero by a batch."""

    consumer: C
    priority_level: int
    permits: int = 0
    writable: bool = True
    blocked: bool = False
    unacked_messages: int = 0
    positions: dict[PositionKey, None] = field(default_factory=dict)
    delivered: int = 0

    @property
    def available(self) -> int:
        """Messages it can take now."""
        return self.permits if self.writable and not self.blocked and self.permits > 0 else 0


class Dispatcher(Generic[C]):
    """One Shared subscription. `C` identifies a consumer."""

    def __init__(self, limits: DispatchLimits) -> None:
        self._limits = limits
        self._consumers: dict[C, ConsumerState[C]] = {}
        self._order: list[ConsumerState[C]] = []  # by priority level, then in order of arrival
        self._next = 0  # round robin goes on behind the one served last
        self.unacked: dict[PositionKey, Unacked[C]] = {}
        self.replay: SortedDict[PositionKey, Redelivery] = SortedDict()
        self._blocked = False
        self.unacked_limits = UnackedLimits(limits.max_unacked_per_consumer, limits.max_unacked_per_subscription)
        self._unacked_messages = 0
        self._new_blocked = False
        self._chunk_owners: dict[str, ConsumerState[C]] = {}  # who got the first part of a chunked message

    # -- consumers

    @property
    def consumers(self) -> Sequence[ConsumerState[C]]:
        """The consumers, highest priority first."""
        return self._order

    def state(self, consumer: C) -> ConsumerState[C] | None:
        """Of one of them."""
        return self._consumers.get(consumer)

    def add_consumer(self, consumer: C, priority_level: int, name: str = "", ranges: Ranges = ()) -> None:
        """A consumer with 0 permits; `name` and `ranges` matter where keys are shared."""
        state = ConsumerState(consumer, priority_level)
        self._consumers[consumer] = state
        self._order.append(state)
        self._order.sort(key=lambda each: each.priority_level)

    def remove_consumer(self, consumer: C) -> int:
        """Free what it has not acked; returns how many entries that is.

        The redelivery count stays: the broker counts a redelivery when a client asks for one, not when it leaves
        (source: `PersistentDispatcherMultipleConsumers.removeConsumer`).
        """
        state = self._consumers.pop(consumer, None)
        if state is None:
            return 0
        self._order.remove(state)
        self._chunk_owners = {uuid: owner for uuid, owner in self._chunk_owners.items() if owner is not state}
        positions = list(state.positions)
        for position in positions:
            self._release(position, self.unacked.pop(position), Again.consumer_gone)
        self._count(-state.unacked_messages)
        self._unblock()
        return len(positions)

    def forget_counts(self) -> None:
        """All consumers are gone, and with them how often they asked for what they had."""
        for position in [each for each, waiting in self.replay.items() if waiting.redelivery_count]:
            self.replay[position] = self.replay[position].uncounted()

    def flow(self, consumer: C, permits: int, writable: bool) -> None:
        """The consumer takes `permits` more messages; `writable`: its connection has room."""
        state = self._consumers.get(consumer)
        if state is not None:
            state.permits += permits
            state.writable = writable

    def set_unacked_limits(self, limits: UnackedLimits) -> None:
        """What the broker's policies say from now on of how much may be unacked."""
        self.unacked_limits = limits
        for state in self._order:
            state.blocked = limits.consumer_is_blocked(state.unacked_messages, before=state.blocked)
        self._count(0)

    def room_for_new(self) -> float:
        """Messages of immediate entries that may be handed out for the first time, by the limit of the subscription.

        What is due, or delivered again, goes out all the same, as from a broker: there both are read again
        (source: `PersistentDispatcherMultipleConsumers.readMoreEntries`).
        """
        if self._new_blocked:
            return 0
        limit = self.unacked_limits.per_subscription
        return limit - self._unacked_messages if limit else math.inf

    def capacity(self) -> int:
        """Messages that can be handed out now; of entries no more than may be unacked."""
        if self._blocked:
            return 0
        room = max(self._limits.max_unacked_per_subscription - len(self.unacked), 0)
        return min(sum(state.available for state in self._order), room)

    # -- deliveries

    def put_back(self, position: PositionKey, redelivery: Redelivery) -> None:
        """An entry that was offered, or was to be, waits in `replay`."""
        self.replay[position] = redelivery

    def assign(self, offers: Sequence[Offer]) -> tuple[list[tuple[C, Sequence[Offer]]], Sequence[Offer]]:
        """Hand out `offers` in order as far as permits go; returns who gets what, and what is left.

        The best priority level with permits is served first, round robin in batches
        (source: `AbstractDispatcherMultipleConsumers.getNextConsumer`).
        """
        result: dict[C, list[Offer]] = {}
        start = 0
        while start < len(offers):
            state = self._owner_of_chunk(offers[start]) or self._next_consumer()
            if state is None:
                break
            if not state.available:  # the other parts went to it: this one waits for its permits
                self._put_off(offers[start])
                start += 1
                continue
            end = self._hand_out(state, offers, start)
            result.setdefault(state.consumer, []).extend(offers[start:end])
            start = end
        if len(self.unacked) >= self._limits.max_unacked_per_subscription:
            self._blocked = True
        return list(result.items()), offers[start:]

    def _owner_of_chunk(self, offer: Offer) -> ConsumerState[C] | None:
        """The consumer that got the earlier parts (source: `SharedConsumerAssignor`)."""
        return None if offer.chunk is None else self._chunk_owners.get(offer.chunk.uuid)

    def _put_off(self, offer: Offer) -> None:
        self.replay[offer.ledger, offer.entry] = Redelivery.of(offer)

    def _next_consumer(self) -> ConsumerState[C] | None:
        order = self._order
        best: ConsumerState[C] | None = None
        best_index = 0
        for step in range(len(order)):
            index = (self._next + step) % len(order)
            state = order[index]
            if state.available and (best is None or state.priority_level < best.priority_level):
                best, best_index = state, index
        if best is not None:
            self._next = best_index + 1
        return best

    def _hand_out(self, state: ConsumerState[C], offers: Sequence[Offer], start: int) -> int:
        """Give one consumer its turn; returns the index of the first offer that is not its own.

        A turn is of so many entries, batches or not; permits, and what may be unacked, are of messages
        (source: `PersistentDispatcherMultipleConsumers.getMaxEntriesInThisBatch`).
        """
        end = min(start + self._limits.round_robin_batch, len(offers)) if len(self._order) > 1 else len(offers)
        turn = self.unacked_limits.room_of_consumer(state.unacked_messages, state.permits)
        messages = 0
        index = start
        unacked, positions = self.unacked, state.positions
        while index < end and messages < turn:
            ledger, entry, count, key, _, redelivery_count, ack_set, chunk, _, _ = offers[index]
            if chunk is not None:
                if index > start:
                    break
                self._note_chunk(chunk, state)
                turn = 0
            position = (ledger, entry)
            unacked[position] = Unacked(state, key, count, redelivery_count, ack_set)
            positions[position] = None
            messages += count
            index += 1
        self._charge(state, messages)
        return index

    def _charge(self, state: ConsumerState[C], messages: int) -> None:
        state.permits -= messages
        state.unacked_messages += messages
        state.delivered += messages
        state.blocked = self.unacked_limits.consumer_is_blocked(state.unacked_messages, before=False)
        self._count(messages)

    def _note_chunk(self, chunk: Chunk, state: ConsumerState[C]) -> None:
        if chunk.last:
            self._chunk_owners.pop(chunk.uuid, None)
        else:
            self._chunk_owners[chunk.uuid] = state
            while len(self._chunk_owners) > self._limits.max_chunked_messages:
                del self._chunk_owners[next(iter(self._chunk_owners))]

    # -- what comes back

    def ack(self, ledger: int, entry: int) -> bool:
        """The entry is acked for good; returns whether it was handed out or waiting for redelivery."""
        position = (ledger, entry)
        unacked = self.unacked.pop(position, None)
        if unacked is None:
            return self.replay.pop(position, None) is not None
        self._forget(position, unacked)
        return True

    def ack_partly(self, ledger: int, entry: int, ack_set: Sequence[int]) -> tuple[int, ...] | None:
        """Some messages of a batch are acked; returns what is left of it, None if it is not known here.

        Told to the client on redelivery. What nothing is left of has still to be acked as a whole. Its redeliveries
        are counted anew, as a broker does with whatever is acked (source: `PersistentSubscription.acknowledgeMessage`).
        """
        position = (ledger, entry)
        unacked = self.unacked.get(position)
        if unacked is not None:
            unacked.redelivery_count = 0
            unacked.ack_set = still_unacked(unacked.ack_set, ack_set, unacked.message_count)
            return unacked.ack_set
        waiting = self.replay.get(position)
        if waiting is not None:
            left: Redelivery = waiting.acked_partly(ack_set)
            self.replay[position] = left
            return left.ack_set
        return None

    def take(self, position: PositionKey) -> Redelivery | None:
        """Take an entry from the consumer that has it, if one has: it is neither acked nor to be delivered again."""
        unacked = self.unacked.pop(position, None)
        if unacked is None:
            return None
        self._forget(position, unacked)
        return Redelivery(
            unacked.key,
            unacked.message_count,
            unacked.redelivery_count,
            unacked.ack_set,
            sticky_hash=unacked.sticky_hash,
        )

    def advance(self, ledger: int, entry: int) -> int:
        """The broker's mark-delete position moved: what is at or below it is acked. Returns how many entries."""
        limit = (ledger, entry)
        acked = [position for position in self.unacked if position <= limit]
        acked += list(self.replay.irange(maximum=limit))
        for position in acked:
            self.ack(*position)
        return len(acked)

    def redeliver(self, consumer: C, positions: Iterable[PositionKey] | None) -> int:
        """The client wants these entries of its own again (None: all of them); returns how many."""
        state = self._consumers.get(consumer)
        if state is None:
            return 0
        wanted = list(state.positions) if positions is None else [p for p in positions if p in state.positions]
        for position in wanted:
            unacked = self.unacked.pop(position, None)
            if unacked is not None:
                self._forget(position, unacked)
                self._release(position, unacked, Again.requested)
        return len(wanted)

    def clear(self) -> None:
        """Forget every entry, keep the consumers: the cursor was moved, or dispatch ends here."""
        self.unacked.clear()
        self.replay.clear()
        self._chunk_owners.clear()
        for state in self._order:
            state.positions.clear()
            state.unacked_messages = 0
            state.blocked = False
        self._blocked = self._new_blocked = False
        self._unacked_messages = 0

    def _release(self, position: PositionKey, unacked: Unacked[C], again: Again) -> None:
        count = unacked.redelivery_count + (again is Again.requested)
        self.replay[position] = Redelivery(
            unacked.key, unacked.message_count, count, unacked.ack_set, again, unacked.sticky_hash
        )

    def _forget(self, position: PositionKey, unacked: Unacked[C]) -> None:
        state = unacked.consumer
        state.positions.pop(position, None)
        state.unacked_messages -= unacked.message_count
        # Looked at for each ack: fewer unacked ones can only end what is blocked.
        if state.blocked:
            state.blocked = self.unacked_limits.consumer_is_blocked(state.unacked_messages, before=True)
        self._unacked_messages -= unacked.message_count
        if self._new_blocked:
            self._count(0)
        if self._blocked:
            self._unblock()

    def _count(self, messages: int) -> None:
        self._unacked_messages += messages
        unacked, before = self._unacked_messages, self._new_blocked
        self._new_blocked = self.unacked_limits.subscription_is_blocked(unacked, before=before)

    def _unblock(self) -> None:
        if self._blocked and len(self.unacked) <= self._limits.max_unacked_per_subscription // 2:
            self._blocked = False

    def check(self) -> None:
        """Derive every counter anew (tests)."""
        for state in self._order:
            own = {position: each for position, each in self.unacked.items() if each.consumer is state}
            assert set(own) == set(state.positions)
            assert state.unacked_messages == sum(each.message_count for each in own.values())
        assert all(each.consumer in self._order for each in self.unacked.values())
        assert self._unacked_messages == sum(state.unacked_messages for state in self._order)
        assert not set(self.unacked) & set(self.replay)
