"""What all tracked topics of a bridge share."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from bridge.broker.admin import AdminClient
from bridge.broker.pool import BrokerPool
from bridge.candidates import Peers
from bridge.spark_job import SparkSettings
from tracker import Store

if TYPE_CHECKING:
    from bridge.tracked_topic import TrackedTopic


def wall_clock_ms() -> int:
    """The bridge's wall clock: what `deliver_at` is held against."""
    return time.time_ns() // 1_000_000


class Surroundings(NamedTuple):
    """What all tracked topics share."""

    pool: BrokerPool
    admin: AdminClient
    store: Store
    advertised_url: str
    web_url: Callable[[], str]
    """Where others find REST of this bridge; known once it listens."""
    partition_width_ms: int
    near_term_bytes: int
    mark_dirty: Callable[[TrackedTopic], None]
    """Asks for a sync of the store; the topic's `on_synced` is called after it."""
    synced: Callable[[], Awaitable[bool]]
    """Waits until what is written by now is on disk; False when it cannot be."""
    spark: SparkSettings
    now_ms: Callable[[], int] = wall_clock_ms
    peers: Peers = Peers()
    """What other bridges are known by."""
