"""Gives the broker's cursor the acks it lost: in a crash, or beyond the number of holes it persists."""

import asyncio
from itertools import islice

import structlog

from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.limits import DispatchLimits
from tracker import AckSet

log = structlog.get_logger(__name__)


async def repair(
    subscription: TrackedSubscription,
    generation: int,
    acks: AckSet,
    ledger_sizes: dict[int, int],
    limits: DispatchLimits,
) -> None:
    """Ack again what the bridge knows to be acked and the broker's cursor, `acks`, does not have.

    Only as long as the subscription's generation is the given one: after a seek that would undo it.
    """
    if subscription.view is None or subscription.repairing:
        return
    forgotten = subscription.view.acks.missing_in(acks, ledger_sizes)
    batch = list(islice(forgotten, limits.repair_batch))
    if not batch:
        return
    subscription.repairing = True
    count = 0
    try:
        while batch and subscription.generation == generation and subscription.acknowledge_again(batch):
            count += len(batch)
            await asyncio.sleep(limits.repair_pause_s)
            batch = list(islice(forgotten, limits.repair_batch))
    finally:
        subscription.repairing = False
    log.info("acks given to the broker again", topic=subscription.topic, subscription=subscription.name, entries=count)
