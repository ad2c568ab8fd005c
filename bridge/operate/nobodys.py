"""Acks what the broker gives to nobody: markers, and messages of aborted transactions.

A broker's dispatcher acks them as it reads past them. For a subscription that a bridge dispatches it reads nothing, so
they would hold back the mark-delete position for ever, and the broker would keep all that lies behind. What a reader is
not given may have another reason, as a filter: so the broker is asked what each is.
"""

import asyncio
from collections.abc import Iterable
from itertools import islice

import structlog

from bridge.broker.admin import AdminClient, AdminError
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.limits import OperatorLimits
from bridge.net.tasks import all_of
from tracker import Position
from tracker.position_set import PositionSet

log = structlog.get_logger(__name__)


class Nobodys:
    """One per time as owner of a topic partition."""

    def __init__(self, topic: str, admin: AdminClient, limits: OperatorLimits) -> None:
        """Nothing was asked yet."""
        self._topic = topic
        self._admin = admin
        self._limits = limits
        self._known = PositionSet()
        self._others = PositionSet()  # there is another reason

    async def ack(self, subscription: TrackedSubscription, withheld: PositionSet) -> None:
        """Of what is not acked and nobody was given: ack what is for nobody, as far as the broker says so."""
        generation = subscription.generation
        await self._ask(islice(withheld - self._known - self._others, self._limits.nobodys_asked_max))
        found = iter(withheld & self._known)
        while some := list(islice(found, self._limits.nobodys_acked_at_once)):
            if subscription.generation != generation or not subscription.ack_for_nobody(some):
                return
            log.debug("acked what is for nobody", topic=self._topic, subscription=subscription.name, entries=len(some))
            await asyncio.sleep(self._limits.nobodys_pause_s)

    def forget_below(self, ledger: int) -> None:
        """All subscriptions have passed earlier ledgers."""
        self._known.forget_below(ledger)
        self._others.forget_below(ledger)

    async def _ask(self, positions: Iterable[Position]) -> None:
        left = iter(positions)

        async def ask() -> None:
            for position in left:
                is_nobodys = await self._admin.is_for_nobody(self._topic, position)
                (self._known if is_nobodys else self._others).add(position)

        try:
            await all_of(ask() for _ in range(self._limits.nobodys_asked_at_once))
        except AdminError as error:  # the next look asks again
            log.debug("cannot ask what entries are", topic=self._topic, reason=str(error))
