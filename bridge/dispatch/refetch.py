"""What is to be delivered again and is not kept here: read from the broker once more, without disturbing the order.

Redeliveries go out in the order of positions, as a broker's do. So what has to be read holds back what lies behind it,
but not for long: a read that fails, or takes longer than `refetch_hold_s`, is put aside together with what it is to
bring, and the others go ahead. What was put aside is read again until the broker gives it, and goes out then.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from sortedcontainers import SortedDict

from bridge.broker.connection import BrokerError
from bridge.broker.fetch import Fetched
from bridge.clock import RandBits, system_randbits
from bridge.dispatch.dispatcher import Offer, PositionKey, Redelivery
from bridge.limits import DispatchLimits
from bridge.net.backoff import Backoff
from bridge.net.tasks import Tasks

Fetch = Callable[[Sequence[PositionKey]], Awaitable[Fetched]]
"""May raise BrokerError, when nothing could be read."""
AtHand = Callable[[PositionKey, bytes | None], bytes | None]
"""The bytes of an entry with a key in the index (None: immediate), if they need not be read."""
IsEarly = Callable[[PositionKey, bytes | None], bool]
"""Whether an entry with a key in the index must not go out yet."""


class Refetch:
    """One per subscription. `replay`: what waits to be delivered again, the dispatcher's; entries stay in it while they
    are read, unless they are put aside. Holds the bytes of about `refetch_batch` entries at most.
    """

    def __init__(
        self,
        replay: "SortedDict[PositionKey, Redelivery]",
        fetch: Fetch,
        on_found: Callable[[], None],
        on_gone: Callable[[PositionKey], None],
        on_failed: Callable[[str], None],
        tasks: Tasks,
        limits: DispatchLimits,
        randbits: RandBits = system_randbits,
    ) -> None:
        """`on_found`: something can be delivered that could not; `on_gone`: the broker has deleted an entry;
        `on_failed`: a read failed, with the reason, and is tried again; `tasks`: of whoever dispatches.
        """
        self.aside: dict[PositionKey, Redelivery] = {}
        """What others go ahead of until it was read."""
        self._replay = replay
        self._fetch = fetch
        self._on_found = on_found
        self._on_gone = on_gone
        self._on_failed = on_failed
        self._tasks = tasks
        self._limits = limits
        self._backoff = Backoff(randbits, (limits.refetch_retry_s,))
        self._kept: dict[PositionKey, bytes] = {}
        self._room = asyncio.Event()
        self._held: Sequence[PositionKey] = ()
        self._hold_timer: asyncio.TimerHandle | None = None
        self._read_task: asyncio.Task[None] | None = None
        self._aside_task: asyncio.Task[None] | None = None

    @property
    def holding(self) -> bool:
        """Whether redeliveries and new immediate entries wait for what is being read."""
        return bool(self._held)

    def take_next(self, limit: int, at_hand: AtHand, is_early: IsEarly) -> list[Offer]:
        """What is next to be delivered again, in the order of positions, up to what has to be read first.

        At most `limit` entries, and none behind those that weigh `dispatch_slice_bytes`; they leave the replay queue.
        """
        replay = self._replay
        if not replay:
            return []
        offers: list[Offer] = []
        size = 0
        for position in list(islice(replay, limit + self._limits.replay_early_max)):
            if len(offers) == limit or size >= self._limits.dispatch_slice_bytes:
                break
            waiting = replay[position]
            if is_early(position, waiting.key):
                continue
            raw = self._take(position)
            if raw is None:
                raw = at_hand(position, waiting.key)
            if raw is None:
                if self._wait_for(self._missing(position, at_hand)):
                    break
                continue
            del replay[position]
            offers.append(waiting.offer(position, raw))
            size += len(raw)
        return offers

    def _missing(self, first: PositionKey, at_hand: AtHand) -> list[PositionKey]:
        """What has to be read together with `first`: of the entries behind it those that are not at hand either."""
        replay = self._replay
        behind = islice(replay.irange(minimum=first, inclusive=(False, False)), 2 * self._limits.refetch_batch)
        missing = (each for each in behind if replay[each].key is None and at_hand(each, None) is None)
        return [first, *islice(missing, self._limits.refetch_batch - 1)]

    def _take(self, position: PositionKey) -> bytes | None:
        raw = self._kept.pop(position, None)
        if raw is not None:
            self._room.set()
        return raw

    def keep(self, position: PositionKey, raw: bytes) -> None:
        """Of an entry that goes back to the replay queue."""
        self._kept[position] = raw

    def _wait_for(self, positions: Sequence[PositionKey]) -> bool:
        """The first of `positions` is to go out next; returns whether to wait for it. If not, it was put aside."""
        if self._held:
            return True
        if self._read_task is not None:  # it has been waited for long enough
            self._put_aside(positions[:1])
            return False
        give_way = self._tasks.guarded(self._give_way)
        self._hold_timer = asyncio.get_running_loop().call_later(self._limits.refetch_hold_s, give_way)
        self._hold_for(positions)
        return True

    def _hold_for(self, positions: Sequence[PositionKey]) -> None:
        """Have them read; what lies behind them waits."""
        if len(self._kept) >= self._limits.refetch_batch:
            self._kept.clear()
        self._held = positions
        self._read_task = self._tasks.spawn(self._read(positions))

    def discard(self, position: PositionKey) -> bool:
        """It is acked; returns whether it was put aside."""
        self._take(position)
        return self.aside.pop(position, None) is not None

    def forget_counts(self) -> None:
        """As `Dispatcher.forget_counts`, of what was put aside."""
        self.aside = {position: waiting.uncounted() for position, waiting in self.aside.items()}

    def ack_partly(self, position: PositionKey, ack_set: Sequence[int]) -> tuple[int, ...] | None:
        """As `Dispatcher.ack_partly`, of what was put aside."""
        waiting = self.aside.get(position)
        if waiting is None:
            return None
        self.aside[position] = waiting = waiting.acked_partly(ack_set)
        return waiting.ack_set

    def advance(self, position: PositionKey) -> None:
        """Everything up to there is acked."""
        for each in [each for each in self.aside if each <= position]:
            del self.aside[each]
        self._room.set()

    def clear(self) -> None:
        """Forget everything."""
        for task in (self._read_task, self._aside_task):
            if task is not None:
                task.cancel()
        self._read_task = self._aside_task = None
        self._end_hold()
        self.aside.clear()
        self._kept.clear()

    # -- reading

    async def _read(self, positions: Sequence[PositionKey]) -> None:
        await self._read_some(positions)
        self._read_task = None
        self._end_hold()
        self._on_found()

    async def _read_aside(self) -> None:
        """Until nothing is left aside; what failed longest ago is tried first."""
        while self.aside:
            await asyncio.sleep(self._backoff.next_s())
            while len(self._kept) >= self._limits.refetch_batch:
                self._room.clear()
                await self._room.wait()
                self._kept = {position: raw for position, raw in self._kept.items() if position in self._replay}
            positions = sorted(islice(self.aside, self._limits.refetch_batch))
            if positions:
                await self._read_some(positions)
                self._on_found()
        self._aside_task = None

    async def _read_some(self, positions: Sequence[PositionKey]) -> None:
        try:
            fetched = await self._fetch(positions)
        except BrokerError as error:
            fetched = Fetched({}, [], list(positions), [error])
        self._settle(fetched)

    def _settle(self, fetched: Fetched) -> None:
        for position, entry in fetched.found.items():
            aside = self.aside.pop(position, None)
            if aside is not None:
                self._replay[position] = aside
            if position in self._replay:
                self._kept[position] = entry.raw
        for position in fetched.gone:
            waited = self.aside.pop(position, None) or self._replay.pop(position, None)
            if waited is not None:
                self._on_gone(position)
        if fetched.failed:
            self._on_failed(str(fetched.errors[0]))
            self._put_aside(fetched.failed)

    def _give_way(self) -> None:
        """It takes too long."""
        self._put_aside(self._held)
        self._end_hold()
        self._on_found()

    def _put_aside(self, positions: Sequence[PositionKey]) -> None:
        for position in positions:
            waiting = self._replay.pop(position, None) or self.aside.pop(position, None)
            if waiting is not None:
                self.aside[position] = waiting
        if self.aside and self._aside_task is None:
            self._aside_task = self._tasks.spawn(self._read_aside())

    def _end_hold(self) -> None:
        self._held = ()
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None
