"""What all tracked topics of a bridge share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from bridge.broker.admin import AdminClient
from bridge.broker.candidates import Peers
from bridge.broker.pool import BrokerPool
from bridge.clock import RandBits, system_randbits, wall_clock_ms, wall_clock_ns
from bridge.limits import Limits
from bridge.net.backoff import Backoff
from bridge.net.failures import Failures
from bridge.refill.snapshots.share import SnapshotShare
from bridge.refill.spark_job import SparkSettings
from tracker import Position, Store


class Durable(Protocol):
    """What the sync loop makes durable."""

    def harvested_unsynced(self) -> Position | None:
        """Return the position that a sync starting now makes durable."""

    def on_synced(self, position: Position | None) -> None:
        """Learn that what was written up to a position is on disk."""


class BridgeContext(NamedTuple):
    """What all tracked topics share."""

    pool: BrokerPool
    admin: AdminClient
    store: Store
    advertised_url: str
    """What it is known by: where it serves clients without TLS, if it does."""
    web_url: Callable[[], str]
    """Where others find REST of this bridge; known once it listens."""
    partition_width_ms: int
    near_term_bytes: int
    mark_dirty: Callable[[Durable], None]
    """Asks for a sync of the store; the topic's `on_synced` is called after it."""
    synced: Callable[[], Awaitable[bool]]
    """Waits until what is written by now is on disk; False when it cannot be."""
    spark: SparkSettings
    failures: Failures
    limits: Limits
    now_ms: Callable[[], int] = wall_clock_ms
    now_ns: Callable[[], int] = wall_clock_ns
    """The same clock, finer."""
    randbits: RandBits = system_randbits
    peers: Peers = Peers()
    """What other bridges are known by."""
    tls_url: str | None = None
    """Where it serves clients with TLS; None where it does not."""
    standby_count: int = 1
    """So many bridges beside the owner are ready to take a topic partition over."""
    snapshots: SnapshotShare | None = None
    """Where snapshots of indexes are; None where there are none."""

    def backoff(self) -> Backoff:
        """The pauses of one thing that is tried until it works."""
        return Backoff(self.randbits, self.limits.retry_backoff_s)
