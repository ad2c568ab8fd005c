"""Learns how the transactions ended that entries were acked in, whoever ended them.

Most are ended by a client of this bridge, which sees the coordinator's answer. Others time out, or are ended through
another bridge or past all; so the broker is asked: whether an entry is pending still, and if not, what its cursor says.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from itertools import islice

import structlog

from bridge.broker.admin import AdminClient, AdminError
from bridge.dispatch.acks.pending_acks import Transaction
from bridge.dispatch.dispatcher import PositionKey
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.ledgers.internal_stats import CursorState
from bridge.limits import DispatchLimits
from bridge.net.waiting import is_set_within
from tracker import AckSet, Position, iter_ranges

log = structlog.get_logger(__name__)


class Transactions:
    """Of a topic partition, while this bridge owns it."""

    def __init__(
        self, topic: str, admin: AdminClient, subscriptions: Mapping[str, TrackedSubscription], limits: DispatchLimits
    ) -> None:
        """`subscriptions` may change at any time."""
        self._topic = topic
        self._admin = admin
        self._subscriptions = subscriptions
        self._limits = limits
        self._wake = asyncio.Event()
        self._failing_since_s: float | None = None

    def look(self) -> None:
        """One has ended, or an entry is suspect: ask soon."""
        self._wake.set()

    async def suspect(self, subscription: TrackedSubscription, last: Position) -> None:
        """Ask whether entries up to `last` may be acked in transactions that are not known here."""
        count = None
        try:
            async with asyncio.timeout(self._limits.transaction_ask_after_s):
                count = await self._admin.pending_transactions(self._topic, subscription.name)
        except TimeoutError:
            log.debug("asked for transactions in vain", topic=self._topic)
        except AdminError as error:
            log.debug("cannot ask for transactions", topic=self._topic, reason=str(error))
            return
        pending = subscription.pending_acks
        if count is None or count > pending.open_transactions:
            pending.suspect(last, self.look)
        else:
            pending.suspect(None)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await is_set_within(self._wake, self._limits.transaction_poll_s)
            self._wake.clear()
            for subscription in list(self._subscriptions.values()):
                if subscription.pending_acks and _stands(subscription):
                    await self._follow(subscription)

    async def _follow(self, subscription: TrackedSubscription) -> None:
        pending, generation = subscription.pending_acks, subscription.generation
        asked, suspects = pending.to_ask(_now_s()), pending.suspects()
        if not asked and not pending.is_suspicious:
            return
        try:
            count = await self._admin.pending_transactions(self._topic, subscription.name)
            if count is None:
                return
            entries = [*(position for _, position in asked), *suspects]
            still = set() if count == 0 else await self._still_pending(subscription.name, entries)
            none_are_left = count == 0 and pending.is_suspicious
            is_settled = not none_are_left and all(each in still for each in entries)
            acks = None if is_settled else await self._acks(subscription.name)
        except AdminError as error:
            await self._on_failed(subscription, asked, error)
            return
        self._failing_since_s = None
        if subscription.generation != generation or not _stands(subscription):
            return  # what was asked is of before the cursor was set anew, perhaps
        self._judge(subscription, asked, still, acks)
        self._judge_suspects(subscription, suspects, still, acks)
        if pending.suspects():
            self.look()
        if none_are_left and acks is not None:
            subscription.suspects_no_more(acks)

    async def _still_pending(self, subscription: str, entries: list[PositionKey]) -> set[PositionKey]:
        """Those of `entries` that are."""
        left, found = iter(dict.fromkeys(entries)), set[PositionKey]()

        async def ask() -> None:
            for position in left:
                if await self._admin.is_pending(self._topic, subscription, position):
                    found.add(position)

        askers = [asyncio.ensure_future(ask()) for _ in range(self._limits.transaction_asks_at_once)]
        try:
            await asyncio.gather(*askers)
        finally:
            for each in askers:
                each.cancel()
            await asyncio.gather(*askers, return_exceptions=True)
        return found

    async def _acks(self, subscription: str) -> AckSet:
        state = await self._admin.internal_stats(self._topic)
        cursor = state.cursors.get(subscription)
        if cursor is None:
            raise AdminError(state.unreadable.get(subscription, "the broker does not list it"))
        try:
            return await acks_of(cursor, self._limits.ack_ranges_slice)
        except ValueError as error:
            raise AdminError(str(error)) from error

    def _judge(
        self,
        subscription: TrackedSubscription,
        asked: list[tuple[Transaction, PositionKey]],
        still: set[PositionKey],
        acks: AckSet | None,
    ) -> None:
        pending, now_s = subscription.pending_acks, _now_s()
        acked: list[PositionKey] = []
        for transaction, position in asked:
            if position in still:
                pending.is_pending(transaction, position, now_s)
            elif acks is not None:
                acked += pending.is_over(transaction, position, acks.contains, now_s)
        subscription.acked_by_transactions(acked)

    def _judge_suspects(
        self,
        subscription: TrackedSubscription,
        suspects: list[PositionKey],
        still: set[PositionKey],
        acks: AckSet | None,
    ) -> None:
        pending, now_s = subscription.pending_acks, _now_s()
        acked: list[PositionKey] = []
        for position in suspects:
            if position in still:
                pending.suspect_is_pending(position, now_s)
            elif acks is not None and acks.contains(*position):
                acked.append(position)
            else:
                pending.suspect_is_cleared(position)
        subscription.acked_by_transactions(acked)

    async def _on_failed(
        self, subscription: TrackedSubscription, asked: list[tuple[Transaction, PositionKey]], error: AdminError
    ) -> None:
        """Nobody says how they ended. When that lasts they count as aborted, unless the cursor says otherwise."""
        now_s, generation = _now_s(), subscription.generation
        if self._failing_since_s is None:
            self._failing_since_s = now_s
            log.warning("cannot ask about transactions", topic=self._topic, reason=str(error))
        if now_s - self._failing_since_s < self._limits.transaction_doubt_s:
            return
        with contextlib.suppress(AdminError):
            acks = await self._acks(subscription.name)
            if subscription.generation == generation and _stands(subscription):
                self._judge(subscription, asked, set(), acks)
                subscription.suspects_no_more(acks)


async def acks_of(cursor: CursorState, slice_of: int) -> AckSet:
    """What a cursor has acked. In slices: with a hundred thousand holes it takes a tenth of a second.

    Raises ValueError when the broker lists what are no ranges.
    """
    acks = AckSet(cursor.mark_delete_position)
    ranges = iter_ranges(cursor.individually_deleted)
    while part := list(islice(ranges, slice_of)):
        acks.merge_ranges(part)
        await asyncio.sleep(0)
    return acks


def _stands(subscription: TrackedSubscription) -> bool:
    """Whether what the broker says of the cursor is of the one that is dispatched by."""
    return subscription.dispatching and subscription.loading is None


def _now_s() -> float:
    return asyncio.get_running_loop().time()
