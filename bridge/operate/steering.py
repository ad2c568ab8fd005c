"""What operators do to single entries: cancel them, or have them delivered now.

A cancel is an ack in the broker. While it is on its way the entry is held here, so it either went out before and is not
acked, or is acked and never goes out. Its outcome is told once both the broker and this bridge's disk have it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from bridge.answers.values import Outcome
from bridge.broker.acknowledger import acknowledge
from bridge.broker.admin import AdminClient, AdminError
from bridge.broker.connection import BrokerConnection, BrokerError
from bridge.broker.fetch import fetch_entries
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.limits import OperatorLimits
from tracker import EARLIEST, Position, StoreError, TopicIndex
from tracker.search import Standing

log = structlog.get_logger(__name__)


_OUTCOMES = {
    Standing.DISPATCHED: Outcome.dispatched,
    Standing.ACKED: Outcome.acked,
    Standing.UNKNOWN: Outcome.unknown,
}


class SteeringError(Exception):
    """It was not done, or nobody knows; the message says which. Ask again."""


class NotTracked(SteeringError):
    """No consumer of the subscription ever came through a bridge that this one knows of."""


class Steering:
    """One per time as owner of a topic partition."""

    def __init__(
        self,
        topic: str,
        connection: BrokerConnection,
        index: TopicIndex,
        admin: AdminClient,
        load: Callable[[str], Awaitable[TrackedSubscription | None]],
        keep: Callable[[], Awaitable[None]],
        limits: OperatorLimits,
    ) -> None:
        """`load`: gives a subscription with its cursor as the broker has it; `keep`: has the views on disk."""
        self._topic = topic
        self._connection = connection
        self._index = index
        self._admin = admin
        self._load = load
        self._keep = keep
        self._limits = limits
        self._held: dict[tuple[str, Position], asyncio.Future[None]] = {}

    async def cancel(self, name: str, positions: Sequence[Position]) -> dict[Position, Outcome]:
        """Ack what is pending, so that it is never delivered. Raises SteeringError."""
        subscription, due = await self._look_up(name, positions)
        generation = subscription.generation
        outcomes, pending = self._sort(subscription, due)
        if pending:
            with self._holding(subscription, pending):
                try:
                    await acknowledge(self._connection, self._topic, name, pending)
                except BrokerError as error:
                    reason = f"the broker did not take the acks of {len(pending)} entries: {error}"
                    raise SteeringError(reason) from error
                if subscription.generation != generation:
                    raise SteeringError(
                        f"{name} was moved, or this bridge lost {self._topic}, while entries were acked"
                    )
                for position in pending:
                    subscription.cancelled(position)
            await self._keep()
            outcomes |= dict.fromkeys(pending, Outcome.cancelled)
            log.info("cancelled", topic=self._topic, subscription=name, entries=len(pending))
        return outcomes

    async def deliver_now(self, name: str, positions: Sequence[Position]) -> dict[Position, Outcome]:
        """Have what is pending delivered next, without regard to its due time. Raises SteeringError."""
        subscription, due = await self._look_up(name, positions)
        outcomes, pending = self._sort(subscription, due)
        view = subscription.view
        assert view is not None
        missing = [one for one in pending if self._index.search.locate(one) is None]
        if missing:
            raise SteeringError(f"{missing[0]} is not in the index yet, a rebuild is under way")
        try:
            for position in pending:
                self._index.deliver_now(view, position)
        except StoreError as error:
            raise SteeringError(str(error)) from error
        if pending:
            await self._keep()
            outcomes |= dict.fromkeys(pending, Outcome.expedited)
            log.info("delivered now", topic=self._topic, subscription=name, entries=len(pending))
        return outcomes

    async def _look_up(
        self, name: str, positions: Sequence[Position]
    ) -> tuple[TrackedSubscription, dict[Position, int | None]]:
        """Return the subscription, ready, and when each entry is due, None for what is no delayed entry."""
        subscription = await self._load(name)
        if subscription is None:
            raise NotTracked(f"{self._topic} has no tracked subscription {name!r}")
        try:
            due = await self._due_times(list(dict.fromkeys(positions)))
        except (BrokerError, AdminError) as error:
            raise SteeringError(f"cannot look the entries up: {error}") from error
        # What somebody else has in hand is decided first.
        while busy := [each for one in due if (each := self._held.get((name, one))) is not None]:
            await asyncio.wait(busy)
        if not subscription.dispatching or subscription.view is None:
            raise SteeringError(f"{name} is not dispatched at the moment, its cursor is being moved or read")
        return subscription, due

    async def _due_times(self, positions: list[Position]) -> dict[Position, int | None]:
        known = await self._wait_for_harvest(positions)
        found: dict[Position, int | None] = dict.fromkeys(positions)
        elsewhere = []
        for number, position in enumerate(known, 1):
            entry = self._index.search.locate(position)
            if entry is None:
                elsewhere.append(position)
            else:
                found[position] = entry.deliver_at_ms
            if number % self._limits.steering_slice == 0:
                await asyncio.sleep(0)
        # It may exist all the same: in a gap that is being filled, or dropped after others had acked it.
        if elsewhere:
            state = await self._admin.internal_stats(self._topic)
            stored = sorted(one for one in elsewhere if 0 <= one.entry < state.ledger_sizes.get(one.ledger, 0))
            read = await fetch_entries(self._connection, self._topic, stored)
            if read.failed:
                raise read.errors[0]
            found |= {Position(*at): entry.deliver_at_ms for at, entry in read.found.items()}
        return found

    async def _wait_for_harvest(self, positions: list[Position]) -> list[Position]:
        """Return those that may exist; entries just published are waited for."""
        new = [one for one in positions if one > self._harvested()]
        if not new:
            return positions
        last = await self._admin.last_position(self._topic)
        wanted = max((one for one in new if one <= last), default=EARLIEST)
        deadline = asyncio.get_running_loop().time() + self._limits.harvest_wait_s
        while self._harvested() < wanted:
            if asyncio.get_running_loop().time() > deadline:
                raise BrokerError(f"{wanted} was not read within {self._limits.harvest_wait_s:g} s")
            await asyncio.sleep(self._limits.harvest_poll_s)
        return [one for one in positions if one <= last]

    def _harvested(self) -> Position:
        return self._index.harvested_position or EARLIEST

    def _sort(
        self, subscription: TrackedSubscription, due: dict[Position, int | None]
    ) -> tuple[dict[Position, Outcome], list[Position]]:
        """Return the outcome of what is not pending, and what is. Nothing may be awaited before it is acted on."""
        standings = {one: subscription.standing(one, at) for one, at in due.items()}
        outcomes = {one: _OUTCOMES[how] for one, how in standings.items() if how is not Standing.PENDING}
        return outcomes, [one for one, how in standings.items() if how is Standing.PENDING]

    @contextmanager
    def _holding(self, subscription: TrackedSubscription, positions: list[Position]) -> Iterator[None]:
        """Keep entries from going out meanwhile; whoever wants the same ones waits."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for position in positions:
            subscription.hold(position)
            self._held[subscription.name, position] = done
        try:
            yield
        finally:
            for position in positions:
                del self._held[subscription.name, position]
                subscription.let_go(position)
            done.set_result(None)
