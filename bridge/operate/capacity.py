"""What a load takes: bridges, topic partitions, disk, memory, network, and which of them is the limit. Pure.

The costs were measured; `tests/unit/test_capacity.py` holds them against an index and against recorded results.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

MB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What one message, one entry or one process takes. Processor times are of one core, by `delay-bridge bench`."""

    harvest_us: float = 25.0
    """Reading a message from the broker and storing it: once at the owner, and once at each standby. Relaying it from a
    producer that is connected to a bridge is part of it."""
    deliver_us: float = 47.0
    """Sending a message to a consumer and noting its ack: once for each subscription."""
    busy_share: float = 0.6
    """Of a core: with more, what comes in bursts waits."""
    envelope_bytes: int = 80
    """What Pulsar stores of a message beside payload, key and properties."""
    index_bytes: int = 15
    """What an index stores of an entry beside the entry itself."""
    disk_slack: float = 1.25
    """Of what is stored: what was dropped is given back in whole files."""
    process_bytes: int = 130 * MB
    """Of a bridge with its database, whatever the number of entries."""
    near_term_bytes: int = 32 * MB
    """Of what comes due next, of a topic partition: the setting `near_term_bytes`."""
    tail_bytes: int = 16 * MB
    """Of immediate messages just read, of a topic partition."""
    unacked_bytes: int = 479
    """Of an entry that a consumer has and has not acked."""
    unacked_entries: int = 50_000
    """Of a subscription: what the broker lets a consumer have by default."""
    reader_per_s: int = 20_000
    """What a broker sends to one reader of a topic partition."""
    index_entries: int = 100_000_000
    """As many as one index was measured with."""


MEASURED = Costs()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is to be carried. `rate`: messages published a second; `message_bytes`: payload, key and properties."""

    pending: int
    rate: float
    subscriptions: int = 1
    message_bytes: int = 1_000
    standbys: int = 1
    disk_bytes: int | None = None
    """What one bridge has; None: whatever it takes."""
    memory_bytes: int | None = None


class Capacity(NamedTuple):
    """What it takes. `bridges`: processes, one core each; `partitions`: of topics; sizes in bytes, of one bridge."""

    bridges: int
    partitions: int
    limited_by: str
    """What asks for so many bridges."""
    needs: dict[str, int]
    """Bridges that each limit alone would ask for."""
    partitions_limited_by: str
    partition_needs: dict[str, int]
    cores: float
    """Busy in all."""
    disk: int
    memory: int
    disk_total: int
    read_per_s: float
    """Bytes from brokers, all bridges together."""
    sent_per_s: float
    """Bytes to consumers."""
    broker_reads_per_s: float
    """Entries that brokers send to bridges."""
    stored_by_broker: int
    """Bytes that brokers keep of what is pending, for each replica."""
    read_anew_s: float
    """So long it takes to read what is pending of one topic partition again, where there is neither standby nor
    snapshot."""


def capacity(load: Load, costs: Costs = MEASURED) -> Capacity:
    """Work it out. Raises ValueError when one bridge has too little disk or memory for one topic partition."""
    in_us = load.rate * costs.harvest_us
    out_us = load.rate * load.subscriptions * costs.deliver_us
    copies = 1 + load.standbys
    cores = (in_us * copies + out_us) / 1e6
    partition_needs = {
        "what a broker sends to one reader": _ceil(2 * load.rate / costs.reader_per_s),
        "one core for each": _ceil((in_us + out_us) / 1e6 / costs.busy_share),
        "entries of one index": _ceil(load.pending / costs.index_entries),
    }
    entry = load.message_bytes + costs.envelope_bytes
    disk_total = math.ceil(load.pending * (entry + costs.index_bytes) * costs.disk_slack) * copies
    needs = {"processors": _ceil(cores / costs.busy_share), "standbys": copies}
    if load.disk_bytes is not None:
        needs["disk"] = _ceil(disk_total / load.disk_bytes)
    if load.memory_bytes is not None:
        partitions = max(*partition_needs.values(), *needs.values())
        needs["memory"] = _bridges_by_memory(load, costs, partitions)
    bridges = max(needs.values())
    partition_needs["one for each bridge"] = bridges
    partitions = max(partition_needs.values())
    read = load.rate * copies
    return Capacity(
        bridges=bridges,
        partitions=partitions,
        limited_by=_most(needs),
        needs=needs,
        partitions_limited_by=_most(partition_needs),
        partition_needs=partition_needs,
        cores=cores,
        disk=disk_total // bridges,
        memory=costs.process_bytes + _ceil(partitions / bridges) * _partition_bytes(load, costs),
        disk_total=disk_total,
        read_per_s=read * entry,
        sent_per_s=load.rate * load.subscriptions * entry,
        broker_reads_per_s=read,
        stored_by_broker=load.pending * entry,
        read_anew_s=load.pending / partitions / costs.reader_per_s,
    )


def _partition_bytes(load: Load, costs: Costs) -> int:
    """Memory of a topic partition at its owner."""
    unacked = load.subscriptions * costs.unacked_entries * costs.unacked_bytes
    return costs.near_term_bytes + costs.tail_bytes + unacked


def _bridges_by_memory(load: Load, costs: Costs, partitions: int) -> int:
    assert load.memory_bytes is not None
    each = (load.memory_bytes - costs.process_bytes) // _partition_bytes(load, costs)
    if each < 1:
        least = (costs.process_bytes + _partition_bytes(load, costs)) / MB
        raise ValueError(f"not enough memory for one topic partition: a bridge takes {least:,.0f} MB for it")
    return _ceil(partitions / each)


def _most(needs: Mapping[str, int]) -> str:
    return max(needs, key=lambda each: needs[each])


def _ceil(number: float) -> int:
    return max(math.ceil(number), 1)
