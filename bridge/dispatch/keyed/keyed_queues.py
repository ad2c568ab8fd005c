"""The queues of a Key_Shared subscription between index, feed and replay on one side and its consumers on the other."""

import asyncio
from collections.abc import Callable, Iterable

from sortedcontainers import SortedDict

from bridge.broker.connection import BrokerError
from bridge.broker.fetch import Fetched
from bridge.clock import RandBits, system_randbits
from bridge.dispatch.dispatcher import C, Offer, PositionKey
from bridge.dispatch.keyed.keyed_dispatcher import KeyedDispatcher
from bridge.dispatch.ready_queue import ReadyQueue
from bridge.dispatch.refetch import AtHand, Fetch, IsEarly, Refetch
from bridge.limits import DispatchLimits
from bridge.net.tasks import Tasks
from tracker import decode_key


class KeyedReadyQueue(ReadyQueue):
    """What is new: each entry waits for its key's turn rather than for all before it. Pure."""

    def __init__(self, dispatcher: KeyedDispatcher[C]) -> None:
        """Nothing waits yet."""
        super().__init__()
        self._dispatcher = dispatcher
        self._order = dispatcher.order

    def __len__(self) -> int:
        """How many wait, for permits or for their key's turn."""
        return len(self._order)

    def lacks(self, limit: int) -> int:
        """How many more may come, so that `limit` can go out: those that cannot go yet do not count."""
        return min(limit - self._order.ready(limit), self._dispatcher.room)

    @property
    def has_room(self) -> bool:
        """Whether more may wait."""
        return self._dispatcher.room > 0

    def add(self, offers: Iterable[Offer]) -> None:
        """Each behind all others of its hash."""
        self._order.add(offers)

    def take(self, limit: int) -> list[Offer]:
        """What can go out next, at most `limit`."""
        return self._order.take(limit)

    def put_first(self, offers: Iterable[Offer]) -> None:
        """Each ahead of all others of its hash."""
        for offer in reversed(list(offers)):
            self._order.wait_first(offer)

    def take_out(self, is_early: Callable[[Offer], bool]) -> list[Offer]:
        """As of `ReadyQueue`."""
        early = [offer for offer in self._order.all_new() if is_early(offer)]
        if early:
            out = {offer[:2] for offer in early}
            self._order.replace_new([offer for offer in self._order.all_new() if offer[:2] not in out])
        return early

    def find(self, position: PositionKey) -> Offer | None:
        """As of `ReadyQueue`."""
        return next((offer for offer in self._order.all_new() if offer[:2] == position), None)

    def positions(self) -> list[PositionKey]:
        """As of `ReadyQueue`."""
        return self._order.positions_new()

    def oldest_due_ms(self) -> int | None:
        """As of `ReadyQueue`, of those that are the next of their key."""
        return min(
            (decode_key(offer.key)[0] for offer in self._order.first_new() if offer.key is not None), default=None
        )

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._order.replace_new([])

    def let_go(self, position: PositionKey) -> None:
        """As of `ReadyQueue`."""
        offer = self._held.pop(position, None)
        if offer is not None:
            self._order.wait_first(offer)

    def drop_all(self, is_over: Callable[[Offer], bool]) -> None:
        """As of `ReadyQueue`."""
        self.take_out(is_over)


class KeyedRefetch(Refetch):
    """What is to be delivered again, in the order of positions of each key.

    What has to be read holds up its own key only. What cannot be read does so until it can: the others go on.
    """

    def __init__(
        self,
        dispatcher: KeyedDispatcher[C],
        fetch: Fetch,
        on_found: Callable[[], None],
        on_gone: Callable[[PositionKey], None],
        on_failed: Callable[[str], None],
        tasks: Tasks,
        limits: DispatchLimits,
        randbits: RandBits = system_randbits,
    ) -> None:
        """As of `Refetch`."""
        super().__init__(dispatcher.replay, fetch, on_found, on_gone, on_failed, tasks, limits, randbits)
        self._dispatcher = dispatcher
        self._order = dispatcher.order
        self._early: SortedDict[bytes, PositionKey] = SortedDict()  # not due since the clock was set back
        self._wanted: dict[int, list[PositionKey]] = {}
        self._unread: dict[int, None] = {}  # hashes that wait for another try

    def take_next(self, limit: int, at_hand: AtHand, is_early: IsEarly) -> list[Offer]:
        """As of `Refetch`; what can go to whom is looked at anew."""
        self._dispatcher.begin_slice()
        offers: list[Offer] = []
        if not self._replay:
            return offers
        self._bring_back(is_early)
        room = _Room(limit, self._limits.dispatch_slice_bytes)
        turns = self._order.turns
        for state in self._dispatcher.consumers:
            for sticky_hash in self._order.hashes_again(state, limit):
                turn = turns[state]
                if turn <= 0 or not room:
                    break
                of_key = self._take_of(sticky_hash, turn, room, at_hand, is_early)
                turns[state] -= sum(offer.message_count for offer in of_key)
                offers += of_key
        if self._wanted:
            wanted, self._wanted = self._wanted, {}
            self._read_task = self._tasks.spawn(self._read_keys(wanted))
        return offers

    def _take_of(self, sticky_hash: int, turn: int, room: "_Room", at_hand: AtHand, is_early: IsEarly) -> list[Offer]:
        offers: list[Offer] = []
        for position in self._order.positions_again(sticky_hash, room.entries + self._limits.replay_early_max):
            if turn <= 0 or not room:
                break
            waiting = self._replay[position]
            if waiting.key is not None and is_early(position, waiting.key):
                self._early[waiting.key] = position
                self._order.drop_again(sticky_hash, position)
                continue
            raw = self._take(position)
            if raw is None:
                raw = at_hand(position, waiting.key)
            if raw is None:
                self._want(sticky_hash, position, at_hand)
                break
            del self._replay[position]
            offers.append(waiting.offer(position, raw))
            turn -= waiting.message_count
            room.use(len(raw))
        return offers

    def _bring_back(self, is_early: IsEarly) -> None:
        """What was early may be due by now."""
        while self._early:
            key, position = self._early.peekitem(0)
            if is_early(position, key):
                return
            del self._early[key]
            if position in self._replay:
                self._order.add_again(self._replay[position].sticky_hash, position)

    # -- reading

    def _want(self, sticky_hash: int, first: PositionKey, at_hand: AtHand) -> None:
        """Have it read together with others of its key, and of other keys; one batch is read at a time."""
        room = self._limits.refetch_batch - sum(map(len, self._wanted.values()))
        if self._read_task is not None or room <= 0:
            return
        positions = [first]
        for position in self._order.positions_again(sticky_hash, room):
            immediate = self._replay[position].key is None
            if position > first and immediate and position not in self._kept and at_hand(position, None) is None:
                positions.append(position)
        self._wanted[sticky_hash] = positions
        self._order.pause(sticky_hash)

    async def _read_keys(self, wanted: dict[int, list[PositionKey]]) -> None:
        if len(self._kept) >= self._limits.refetch_batch:
            self._kept.clear()
        positions = sorted(position for of_key in wanted.values() for position in of_key)
        try:
            fetched = await self._fetch(positions)
        except BrokerError as error:
            fetched = Fetched({}, [], positions, [error])
        failed = set(fetched.failed)
        self._note_read(fetched)
        unread = [sticky_hash for sticky_hash, of_key in wanted.items() if of_key[0] in failed]
        self._resume(sticky_hash for sticky_hash in wanted if sticky_hash not in unread)
        self._unread.update(dict.fromkeys(unread))
        if self._unread and self._aside_task is None:
            self._aside_task = self._tasks.spawn(self._try_again())
        self._read_task = None
        self._on_found()

    def _note_read(self, fetched: Fetched) -> None:
        for position, entry in fetched.found.items():
            if position in self._replay:
                self._kept[position] = entry.raw
        for position in fetched.gone:
            if self._replay.pop(position, None) is not None:
                self._on_gone(position)
        if fetched.failed:
            self._on_failed(str(fetched.errors[0]))

    async def _try_again(self) -> None:
        await asyncio.sleep(self._backoff.next_s())
        unread, self._unread = self._unread, {}
        self._aside_task = None
        self._resume(unread)
        self._on_found()

    def _resume(self, hashes: Iterable[int]) -> None:
        for sticky_hash in hashes:
            self._order.resume(sticky_hash)

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._resume([*self._wanted, *self._unread])
        self._early.clear()
        self._wanted.clear()
        self._unread.clear()


class _Room:
    """What a slice still takes."""

    def __init__(self, entries: int, size: int) -> None:
        self.entries = entries
        self._size = size

    def __bool__(self) -> bool:
        return self.entries > 0 and self._size > 0

    def use(self, size: int) -> None:
        self.entries -= 1
        self._size -= size
