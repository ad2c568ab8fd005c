"""Who may get what next on a Key_Shared subscription, so that the order of each key is kept. Pure.

All is by the hash of a key, as in the broker. What waits of a hash is either to be delivered again, in the order of
positions, or new, in the order it came; the former goes first. A hash whose unacked entries are with one consumer does
not move to another before they are acked, given back, or the consumer is gone (source: `DrainingHashesTracker`). What
may go to a consumer once it has permits stands in its lanes; a hash that must wait stands in none, so it costs the
others nothing.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from itertools import chain, islice
from typing import Final, Generic, TypeVar

from bridge.dispatch.dispatcher import Offer, PositionKey, Ranges
from bridge.dispatch.keyed.key_selector import KeySelector

FROM_ONE_KEY: Final = 20
"""New entries of one hash before the next one's turn."""

S = TypeVar("S", bound=Hashable)


class KeyOrder(Generic[S]):
    """One per subscription; `S`: a consumer."""

    def __init__(self, selector: KeySelector[S], *, ordered: bool) -> None:
        """`ordered`: else the consumers allow any order, and all that counts is whose a hash is."""
        self.waiting = 0
        """New entries that wait here, those aside that go out in this slice."""
        self.waiting_bytes = 0
        self._selector = selector
        self._ordered = ordered
        self._new: dict[int, list[Offer]] = {}
        self._again: dict[int, list[PositionKey]] = {}
        self._holders: dict[int, S] = {}  # who has unacked entries of a hash
        self._more_held: dict[int, int] = {}  # of hashes of which somebody has more than one, how many more
        self._paused: set[int] = set()  # hashes whose entries are being read again
        self._new_lanes: dict[S, OrderedDict[int, None]] = {}
        self._again_lanes: dict[S, OrderedDict[int, None]] = {}
        self._turn = 0
        self.turns: dict[S, int] = {}
        """Messages that each consumer can take in the slice that is being put together."""
        self._direct: list[Offer] = []  # new in this slice, with nothing before them
        self._owners: dict[int, S] = {}  # of their hashes

    # -- consumers

    def join(self, consumer: S, name: str, ranges: Ranges) -> None:
        """A consumer came."""
        self._selector.add(consumer, name, ranges)
        self._new_lanes[consumer], self._again_lanes[consumer] = OrderedDict(), OrderedDict()
        self._share_out()

    def leave(self, consumer: S) -> None:
        """It left; the caller has let go of all that it held."""
        self._selector.remove(consumer)
        del self._new_lanes[consumer], self._again_lanes[consumer]
        # Not kept in memory until the next slice, which may never be.
        self.turns.pop(consumer, None)
        self._owners = {sticky_hash: owner for sticky_hash, owner in self._owners.items() if owner is not consumer}
        self._share_out()

    def _share_out(self) -> None:
        for lane in chain(self._new_lanes.values(), self._again_lanes.values()):
            lane.clear()
        for sticky_hash in self._again:
            self._place(sticky_hash)
        for sticky_hash in self._new:
            self._place(sticky_hash)

    def begin_slice(self, turns: dict[S, int]) -> None:
        """`turns`: messages that each consumer can take in this slice; what is taken makes them less."""
        for offer in self._direct:  # of a slice that was not sent
            self.wait(offer)
        self._direct.clear()
        self._owners.clear()
        self.turns = turns

    def owner(self, sticky_hash: int) -> S | None:
        """Whose a hash is."""
        return self._owners.get(sticky_hash) or self._selector.select(sticky_hash)

    # -- what consumers have

    def hold(self, consumer: S, sticky_hash: int) -> None:
        """An entry was handed to the consumer whose hash it is."""
        if sticky_hash in self._holders:
            self._more_held[sticky_hash] = self._more_held.get(sticky_hash, 0) + 1
        elif self._ordered:
            self._holders[sticky_hash] = consumer

    def let_go(self, sticky_hash: int) -> bool:
        """Who has an entry of a hash has it no more; returns whether others can go that it held up."""
        more = self._more_held.pop(sticky_hash, 0)
        if more:
            if more > 1:
                self._more_held[sticky_hash] = more - 1
            return False
        holder = self._holders.pop(sticky_hash, None)
        if sticky_hash not in self._new and sticky_hash not in self._again:
            return False
        self._place(sticky_hash)
        return self._selector.select(sticky_hash) is not holder

    # -- what is to be delivered again

    def add_again(self, sticky_hash: int, position: PositionKey) -> None:
        """It goes before all that is new."""
        positions = self._again.get(sticky_hash)
        if positions is not None:
            insort(positions, position)
            return
        self._again[sticky_hash] = [position]
        self._displace(sticky_hash)
        self._place(sticky_hash)

    def drop_again(self, sticky_hash: int, position: PositionKey) -> None:
        """It goes out, or need not any more."""
        positions = self._again.get(sticky_hash, [])
        index = bisect_left(positions, position)
        if index == len(positions) or positions[index] != position:
            return
        del positions[index]
        if not positions:
            del self._again[sticky_hash]
            self._paused.discard(sticky_hash)
            self._displace(sticky_hash)
            self._place(sticky_hash)

    def clear_again(self) -> None:
        """Forget what is to be delivered again, and who has what."""
        self._again.clear()
        self._holders.clear()
        self._more_held.clear()
        self._paused.clear()
        self._share_out()

    def hashes_again(self, consumer: S, limit: int) -> list[int]:
        """Of what may be delivered again to a consumer now, at most `limit`, longest waiting first."""
        return list(islice(self._again_lanes[consumer], limit))

    def positions_again(self, sticky_hash: int, limit: int) -> list[PositionKey]:
        """What is to be delivered again of a hash, in order."""
        return self._again.get(sticky_hash, [])[:limit]

    def pause(self, sticky_hash: int) -> None:
        """What comes first of a hash is not at hand: leave it out until `resume`."""
        self._paused.add(sticky_hash)
        self._displace(sticky_hash)
        self._place(sticky_hash)

    def resume(self, sticky_hash: int) -> None:
        """It may go on, behind those that waited meanwhile."""
        self._paused.discard(sticky_hash)
        self._place(sticky_hash)

    # -- what is new

    def add(self, offers: Iterable[Offer]) -> None:
        """Each behind all others of its hash; most can go at once, and need not wait at all."""
        new, again, holders, lanes = self._new, self._again, self._holders, self._new_lanes
        select, turns, direct, owners = self._selector.select, self.turns, self._direct, self._owners
        for offer in offers:
            sticky_hash = offer.sticky_hash
            consumer = select(sticky_hash)
            if (
                consumer is None
                or sticky_hash in new
                or sticky_hash in again
                or turns.get(consumer, 0) <= 0
                or lanes[consumer]
                or holders.get(sticky_hash, consumer) is not consumer
            ):
                self.wait(offer)
            else:
                turns[consumer] -= offer.message_count
                owners[sticky_hash] = consumer
                direct.append(offer)

    def __len__(self) -> int:
        """How many new entries there are."""
        return self.waiting + len(self._direct)

    def wait(self, offer: Offer) -> None:
        """Behind all others of its hash."""
        sticky_hash = offer.sticky_hash
        offers = self._new.get(sticky_hash)
        if offers is None:
            self._new[sticky_hash] = [offer]
            self._place(sticky_hash)
        else:
            offers.append(offer)
        self.waiting += 1
        self.waiting_bytes += len(offer.raw)

    def wait_first(self, offer: Offer) -> None:
        """Before all others of its hash that are new."""
        self.wait(offer)
        offers = self._new[offer.sticky_hash]
        offers.insert(0, offers.pop())

    def take(self, limit: int) -> list[Offer]:
        """New entries that can go to those whose hashes they are, a few of each hash at a time.

        At most `limit`. An entry may count for more messages than its consumer can take.
        """
        taken, self._direct = self._direct, []
        turns = self.turns
        consumers = list(self._new_lanes)
        for step in range(len(consumers)):
            if len(taken) >= limit:
                self._turn += step
                break
            consumer = consumers[(self._turn + step) % len(consumers)]
            turn = turns.get(consumer, 0)
            lane = self._new_lanes[consumer]
            while lane and turn > 0 and len(taken) < limit:
                sticky_hash, _ = lane.popitem(last=False)
                turn = self._take_of(sticky_hash, limit, turn, taken)
                if sticky_hash in self._new:
                    lane[sticky_hash] = None
            turns[consumer] = turn
        return taken

    def _take_of(self, sticky_hash: int, limit: int, turn: int, taken: list[Offer]) -> int:
        offers = self._new[sticky_hash]
        count = 0
        most = min(len(offers), FROM_ONE_KEY, limit - len(taken))
        while count < most and turn > 0:
            offer = offers[count]
            turn -= offer.message_count
            self.waiting_bytes -= len(offer.raw)
            taken.append(offer)
            count += 1
        self.waiting -= count
        if count == len(offers):
            del self._new[sticky_hash]
        else:
            del offers[:count]
        return turn

    def ready(self, limit: int) -> int:
        """How many new entries could go at once, counted up to `limit`."""
        ready = len(self._direct)
        for consumer, lane in self._new_lanes.items():
            room = self.turns.get(consumer, 0)
            for sticky_hash in lane if room > 0 else ():
                count = min(len(self._new[sticky_hash]), room)
                ready, room = ready + count, room - count
                if room <= 0 or ready >= limit:
                    break
        return ready

    def all_new(self) -> Iterator[Offer]:
        """Whatever waits, in the order of each hash."""
        return chain.from_iterable(self._new.values())

    def positions_new(self) -> list[PositionKey]:
        """Where all that is new lies, what goes out in this slice included."""
        return [offer[:2] for offer in chain(self.all_new(), self._direct)]

    def first_new(self) -> Iterator[Offer]:
        """The first of each hash."""
        return (offers[0] for offers in self._new.values())

    def replace_new(self, offers: list[Offer]) -> None:
        """Only these wait from now on, in this order."""
        self._new.clear()
        self.waiting = self.waiting_bytes = 0
        self._share_out()
        for offer in offers:
            self.wait(offer)

    # -- lanes

    def _place(self, sticky_hash: int) -> None:
        """Let what waits of a hash stand in the lanes of who may get it, if anybody may."""
        consumer = self._selector.select(sticky_hash)
        if consumer is None:
            return
        again = sticky_hash in self._again
        if self._holders.get(sticky_hash, consumer) is not consumer:
            return
        if again and sticky_hash not in self._paused:
            self._again_lanes[consumer][sticky_hash] = None
        if sticky_hash in self._new and not (again and self._ordered):
            self._new_lanes[consumer][sticky_hash] = None

    def _displace(self, sticky_hash: int) -> None:
        consumer = self._selector.select(sticky_hash)
        if consumer is not None:
            self._again_lanes[consumer].pop(sticky_hash, None)
            self._new_lanes[consumer].pop(sticky_hash, None)

    def check(self, held: dict[int, tuple[S, int]], again: dict[int, list[PositionKey]]) -> None:
        """Derive everything anew (tests): who has how many of each hash, and what is to be delivered again."""
        assert self._again == again
        holders = {each: (consumer, 1 + self._more_held.get(each, 0)) for each, consumer in self._holders.items()}
        assert holders == (held if self._ordered else {})
        assert self._more_held.keys() <= self._holders.keys()
        assert not self._direct
        assert self.waiting == sum(map(len, self._new.values()))
        assert self.waiting_bytes == sum(len(offer.raw) for offer in self.all_new())
        before = [{each: set(lane) for each, lane in lanes.items()} for lanes in (self._new_lanes, self._again_lanes)]
        self._share_out()
        after = [{each: set(lane) for each, lane in lanes.items()} for lanes in (self._new_lanes, self._again_lanes)]
        assert before == after
