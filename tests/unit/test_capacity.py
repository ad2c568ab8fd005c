"""What a load takes: the model, and its costs held against what was measured."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.config import Settings
from bridge.limits import DispatchLimits
from bridge.notation.quantities import COUNT_MAX, parse_count
from bridge.operate.capacity import MB, MEASURED, Load, capacity
from bridge.protocol.pulsar_pb2 import MessageMetadata
from tracker import EARLIEST, NewEntry, Position, Store, TopicIndex

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
loads = st.builds(
    Load,
    pending=st.integers(0, 10**12),
    rate=st.floats(0, 1e8),
    subscriptions=st.integers(1, 100),
    message_bytes=st.integers(0, 5 * MB),
    standbys=st.integers(0, 5),
    disk_bytes=st.none() | st.integers(MB, 10**15),
)


def recorded(name: str) -> dict[str, float]:
    figures: dict[str, float] = json.loads((RESULTS / name).read_text())["figures"]
    return figures


def test_what_an_index_takes_is_what_was_measured() -> None:
    figures = recorded("2026-11-21-index.json")
    assert pytest.approx(figures["disk_overhead_bytes"], rel=0.1) == MEASURED.index_bytes
    assert pytest.approx(figures["resident_mb"] * MB, rel=0.1) == MEASURED.process_bytes
    assert figures["large_entries"] == MEASURED.index_entries


def test_what_a_message_takes_is_what_was_measured() -> None:
    (run,) = json.loads((RESULTS / "2026-11-23-spread.json").read_text())["results"]["spread"]["bridge"]
    assert pytest.approx(run["bridge_in_us"], rel=0.1) == MEASURED.harvest_us
    assert pytest.approx(run["bridge_out_us"], rel=0.1) == MEASURED.deliver_us


def test_what_is_a_setting_or_a_limit_is_the_same_here() -> None:
    defaults = Settings(broker_service_url="pulsar://b:1", broker_web_url="http://b:1")
    assert defaults.near_term_bytes == MEASURED.near_term_bytes
    assert DispatchLimits().max_unacked_per_consumer == MEASURED.unacked_entries


def test_what_a_broker_stores_beside_a_message() -> None:
    """With a name and a due time as clients give them."""
    metadata = MessageMetadata(producer_name="standalone-1-12345", sequence_id=1 << 40, publish_time=1_800_000_000_000)
    metadata.deliver_at_time, metadata.uncompressed_size = 1_800_000_000_000, 1_000
    magic, checksum, length = 2, 4, 4
    beside = magic + checksum + length + metadata.ByteSize()
    assert 0.6 * MEASURED.envelope_bytes <= beside <= MEASURED.envelope_bytes


def test_what_an_index_holds_of_an_entry(tmp_path: Path) -> None:
    count, size = 20_000, 300
    with Store.open(tmp_path) as store:
        index = TopicIndex(store, "t", partition_width_ms=60_000)
        index.start_at(EARLIEST)
        index.add([NewEntry(at * 1_000, 1, at, 1, bytes(size)) for at in range(count)], Position(1, count - 1))
        beside = index.bytes / count - size
    assert MEASURED.index_bytes <= beside <= 2 * MEASURED.index_bytes, "before keys are compressed"


def test_a_large_load() -> None:
    found = capacity(Load(pending=10 * 10**9, rate=1e6, subscriptions=3))
    assert found.bridges == found.needs["processors"] == found.partitions
    assert found.limited_by == "processors"
    assert found.cores == pytest.approx(2 * MEASURED.harvest_us + 3 * MEASURED.deliver_us)
    assert found.partition_needs["entries of one index"] == 100
    assert found.sent_per_s == 3e6 * (1_000 + MEASURED.envelope_bytes)


def test_a_small_load_takes_an_owner_and_its_standby() -> None:
    found = capacity(Load(pending=1_000, rate=10))
    assert (found.bridges, found.partitions, found.limited_by) == (2, 2, "standbys")
    assert capacity(Load(pending=1_000, rate=10, standbys=0)).bridges == 1


def test_what_one_bridge_has_may_be_the_limit() -> None:
    load = Load(pending=10**9, rate=1_000, disk_bytes=100 * 10**9)
    assert capacity(load).limited_by == "disk"
    with pytest.raises(ValueError, match="not enough memory for one topic partition: a bridge takes 201 MB"):
        capacity(Load(pending=1, rate=1, memory_bytes=100 * MB))


@given(loads, st.integers(1, 10))
def test_more_never_takes_less(load: Load, times: int) -> None:
    more = Load(
        pending=load.pending * times,
        rate=load.rate * times,
        subscriptions=load.subscriptions,
        message_bytes=load.message_bytes,
        standbys=load.standbys,
        disk_bytes=load.disk_bytes,
    )
    small, large = capacity(load), capacity(more)
    assert small.bridges <= large.bridges
    assert small.partitions <= large.partitions
    assert small.disk_total <= large.disk_total
    assert small.partitions >= small.bridges, "each has something to do"
    assert load.disk_bytes is None or small.disk <= load.disk_bytes


@pytest.mark.parametrize(
    ("text", "count"), [("0", 0), ("250", 250), ("10K", 10_000), ("1.5m", 1_500_000), ("2G", 2 * 10**9), ("1T", 10**12)]
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "x", "-1", "1KB", "1 000", "K", "1e3", str(COUNT_MAX + 1), "1001T"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(ValueError, match="not a count"):
        parse_count(text)
