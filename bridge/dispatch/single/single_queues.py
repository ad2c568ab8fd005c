"""The queues of an Exclusive or Failover subscription: nothing goes ahead of what lies before it and may go."""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from bridge.dispatch.dispatcher import Offer, PositionKey
from bridge.dispatch.ready_queue import ReadyQueue
from bridge.dispatch.refetch import Refetch
from bridge.limits import DispatchLimits
from tracker import decode_key


class OrderedReadyQueue(ReadyQueue):
    """What is new, in the order of positions: what is due waits until all that is immediate before it was taken. Pure.

    Of what is due, a slice is looked at: what was due first goes first where more of it waits.
    """

    def __init__(self, is_past: Callable[[PositionKey], bool], limits: DispatchLimits) -> None:
        """`is_past`: nothing immediate is to come any more that lies before a position."""
        super().__init__()
        self._is_past = is_past
        self._limits = limits
        self._due: list[Offer] = []  # a heap, by position
        self._due_bytes = 0
        self._new: deque[Offer] = deque()

    def __len__(self) -> int:
        """How many wait, for permits or for what lies before them."""
        return len(self._due) + len(self._new)

    def lacks(self, limit: int) -> int:
        """How many more of what is due may come: they are put in order here."""
        return self._limits.dispatch_slice - len(self._due) if self.has_room else 0

    def lacks_new(self, limit: int) -> int:
        """How many more of what is immediate may come, so that `limit` can go out."""
        return limit - len(self._new)

    @property
    def has_room(self) -> bool:
        """Whether more of what is due may wait."""
        return len(self._due) < self._limits.dispatch_slice and self._due_bytes < self._limits.look_ahead_bytes

    def add(self, offers: Iterable[Offer]) -> None:
        """Where they belong; what is immediate comes in its order."""
        for offer in offers:
            if offer.key is None:
                self._new.append(offer)
            else:
                self._push(offer)

    def take(self, limit: int) -> list[Offer]:
        """The next ones, at most `limit`; they leave the queue."""
        taken: list[Offer] = []
        due, new = self._due, self._new
        while len(taken) < limit:
            # What lies before the next immediate one, and is immediate, was taken.
            if due and (due[0][:2] < new[0][:2] if new else self._is_past(due[0][:2])):
                offer = heapq.heappop(due)
                self._due_bytes -= len(offer.raw)
                taken.append(offer)
            elif new:
                taken.append(new.popleft())
            else:
                break
        return taken

    def put_first(self, offers: Iterable[Offer]) -> None:
        """They were taken, and did not go out."""
        for offer in reversed(list(offers)):
            if offer.key is None:
                self._new.appendleft(offer)
            else:
                self._push(offer)

    def _push(self, offer: Offer) -> None:
        heapq.heappush(self._due, offer)
        self._due_bytes += len(offer.raw)

    def take_out(self, is_early: Callable[[Offer], bool]) -> list[Offer]:
        """As of `ReadyQueue`."""
        early = [offer for offer in (*self._due, *self._new) if is_early(offer)]
        if early:
            out = {offer[:2] for offer in early}
            self._due = [offer for offer in self._due if offer[:2] not in out]
            heapq.heapify(self._due)
            self._due_bytes = sum(len(offer.raw) for offer in self._due)
            self._new = deque(offer for offer in self._new if offer[:2] not in out)
        return early

    def find(self, position: PositionKey) -> Offer | None:
        """As of `ReadyQueue`."""
        return next((offer for offer in (*self._due, *self._new) if offer[:2] == position), None)

    def positions(self) -> list[PositionKey]:
        """As of `ReadyQueue`."""
        return [offer[:2] for offer in (*self._due, *self._new)]

    def oldest_due_ms(self) -> int | None:
        """As of `ReadyQueue`."""
        return min((decode_key(offer.key)[0] for offer in self._due if offer.key is not None), default=None)

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._due.clear()
        self._due_bytes = 0
        self._new.clear()

    def drop_all(self, is_over: Callable[[Offer], bool]) -> None:
        """As of `ReadyQueue`; here they may wait for long."""
        self.take_out(is_over)

    def let_go(self, position: PositionKey) -> None:
        """As of `ReadyQueue`."""
        offer = self._held.pop(position, None)
        if offer is not None:
            self.put_first([offer])


class OrderedRefetch(Refetch):
    """What has to be read again holds up all that lies behind it until it is read, as in the broker."""

    def _wait_for(self, positions: Sequence[PositionKey]) -> bool:
        if not self._held:
            self._hold_for(positions)
        return True

    async def _read(self, positions: Sequence[PositionKey]) -> None:
        await self._read_some(positions)
        if positions[0] in self._replay and positions[0] not in self._kept:
            await asyncio.sleep(self._backoff.next_s())
        self._read_task = None
        self._end_hold()
        self._on_found()

    def _put_aside(self, positions: Sequence[PositionKey]) -> None:
        """They stay where they are."""
