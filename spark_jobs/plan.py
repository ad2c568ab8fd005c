"""What a rebuild is to do, and how due times are cut into buckets: pure."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from bridge.ledgers.bookies.read_from import ReadFrom
from spark_jobs import limits
from spark_jobs.ledgers.access import ClusterAccess
from spark_jobs.ledgers.stats import LedgerRange
from tracker import AckSet, Position
from tracker.audit import Cell, Scope, add_up
from tracker.bulk.files import TableFile
from tracker.fingerprint import Fingerprint

SPEC_NAME = "spec.json"
"""The file in a job's folder that says what it is to do."""
FINGERPRINTS_NAME = "fingerprints.json"
"""The file that says what the topic holds: [*cell, entries, checksum] for every cell, see `tracker.audit`."""
TOKEN_VARIABLE = "DELAY_BRIDGE_AUTH_TOKEN"
"""The environment variable that holds a job's token."""


class ReadSpec(BaseModel):
    """Read every delayed entry of a topic partition in (after, upto].

    `cut` and `held`: numbers of time partitions, what fingerprints are made of, see `tracker.audit.Scope`.
    `output`: a folder of its own for this job, local path or URI. A token is not part of it: `token_file` is, or the
    environment's DELAY_BRIDGE_AUTH_TOKEN.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic: str
    service_url: str
    web_url: str
    token_file: str | None = None
    tls_trust_certs: str | None = None
    tls_verify_hostname: bool = True
    after: tuple[int, int]
    upto: tuple[int, int]
    partition_width_ms: int
    cut: int = 0
    held: list[int] = []
    output: str
    split_entries: int = limits.SPLIT_ENTRIES
    ranges_per_task: int = limits.RANGES_PER_TASK
    read_from: ReadFrom = ReadFrom.auto

    def access(self, token: str | None) -> ClusterAccess:
        """Return where to read."""
        return ClusterAccess(
            self.service_url,
            self.web_url,
            None if self.token_file else token,
            self.token_file,
            self.tls_trust_certs,
            self.tls_verify_hostname,
            self.read_from,
        )


class RebuildSpec(ReadSpec):
    """Index what is read.

    With `subscriptions`, only what one of them has not acked: enough as long as none of them is set back.
    """

    subscriptions: list[str] = []
    bucket_bytes: int = limits.BUCKET_BYTES


class RangeResult(BaseModel):
    """One range as read: the file with what is kept of it, and what that comes to.

    `from_bookies`: how many of those read; `instead`: why the broker gave the others, where that was not wanted.
    `spread`: (time partition, bytes) pairs that stand for the due times, at most SPREAD_POINTS. `cells`: of every
    cell with delayed entries, kept or not, [*cell, entries, checksum].
    """

    model_config = ConfigDict(frozen=True)

    ledger: int
    first: int
    last: int
    read: int
    from_bookies: int = 0
    instead: str | None = None
    kept: int
    bytes: int
    checksum: int
    rows: str | None
    positions: TableFile | None
    spread: list[tuple[int, int]]
    cells: list[tuple[int, int, int, int]]

    @property
    def range(self) -> LedgerRange:
        """What was read."""
        return LedgerRange(self.ledger, self.first, self.last)

    @property
    def fingerprint(self) -> Fingerprint:
        """Of what is kept."""
        return Fingerprint(self.kept, self.checksum)


@dataclass(frozen=True)
class Needed:
    """Which entries some subscription needs; all of them when none is named."""

    acks: tuple[AckSet, ...]

    def __contains__(self, position: tuple[int, int]) -> bool:
        """Tell whether any subscription has not acked a position."""
        return not self.acks or not all(acks.contains(*position) for acks in self.acks)


def marker_name(wanted: LedgerRange) -> str:
    """Return the name of the file that says that a range is read."""
    return f"ranges/{wanted.ledger:019d}-{wanted.first:010d}-{wanted.last:010d}.json"


def spread_of(bytes_by_partition: Counter[int]) -> list[tuple[int, int]]:
    """Return at most SPREAD_POINTS (time partition, bytes) pairs that stand for many."""
    every = sorted(bytes_by_partition.items())
    step = -(-len(every) // limits.SPREAD_POINTS) or 1
    return [
        (every[start][0], sum(size for _, size in every[start : start + step])) for start in range(0, len(every), step)
    ]


def boundaries_of(spread: Iterable[tuple[int, int]], bucket_bytes: int) -> list[int]:
    """Return the time partitions at which a new bucket begins, so that each gets about `bucket_bytes`."""
    boundaries: list[int] = []
    held = 0
    for number, size in sorted(spread):
        if held >= bucket_bytes and (not boundaries or number > boundaries[-1]):
            boundaries.append(number)
            held = 0
        held += size
    return boundaries


def scope_of(spec: ReadSpec) -> Scope:
    """Return what the fingerprints of a job speak of."""
    return Scope(Position(*spec.after), upto_of(spec), spec.partition_width_ms, spec.cut, tuple(spec.held))


def fingerprints_of(results: Iterable[RangeResult]) -> bytes:
    """Return the content of FINGERPRINTS_NAME."""
    found: dict[Cell, Fingerprint] = {}
    for one in results:
        add_up(found, {(first, second): Fingerprint(*known) for first, second, *known in one.cells})
    return json.dumps([[*cell, *known] for cell, known in sorted(found.items())]).encode()


def read_fingerprints(data: bytes) -> dict[Cell, Fingerprint]:
    """Undo `fingerprints_of`. Raises ValueError."""
    return {(first, second): Fingerprint(entries, checksum) for first, second, entries, checksum in json.loads(data)}


def sources_of(results: Iterable[RangeResult]) -> dict[str, object]:
    """Return what a job tells at its end of where its entries came from."""
    every = list(results)
    instead = next((one.instead for one in every if one.instead is not None), None)
    told: dict[str, object] = {"from_bookies": sum(one.from_bookies for one in every)}
    return told if instead is None else told | {"not_from_bookies": instead}


def plan_name(spec: RebuildSpec, boundaries: list[int], results: list[RangeResult]) -> str:
    """Name what the groups are made from: those of another plan are of no use."""
    made_from = [
        spec.topic,
        spec.partition_width_ms,
        boundaries,
        [[*one.range, one.kept, one.checksum] for one in results],
    ]
    return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:16]


def upto_of(spec: ReadSpec) -> Position:
    """Return the last position a job looks at."""
    return Position(*spec.upto)
