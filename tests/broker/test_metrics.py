"""What `/metrics` tells is what the bridge's state says."""

from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.bridge_process import BridgeProcess, now_ms
from tests.clients import Clients, drain, publish, shared
from tests.helpers import wait_until

PREFIX = "pulsar_delay_bridge_"


def scrape(bridge: BridgeProcess, topic: str) -> dict[tuple[str, str], float]:
    """Values of one topic by name without prefix and the label that tells them apart, if any."""
    with urlopen(f"{bridge.web_url}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    return {
        (sample.name.removeprefix(PREFIX), sample.labels.get("tier") or sample.labels.get("le") or ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("topic") == topic and sample.labels.get("role") in (None, "owner")
    }


def test_metrics_tell_the_state(bridge: BridgeProcess, clients: Clients, topic: str) -> None:
    client = clients.connect(bridge.service_url)
    consumer = shared(client, topic)
    producer = client.create_producer(topic)
    publish(producer, map(str, range(50)), deliver_at=now_ms() + 300)
    publish(producer, map(str, range(30)), deliver_at=now_ms() + 3_600_000)
    publish(producer, map(str, range(20)))
    drain(consumer, 70)
    wait_until(lambda: scrape(bridge, topic).get(("acked_total", "")) == 70, "70 acks told")
    found = scrape(bridge, topic)
    assert found["delivered_total", ""] == 70
    assert found["pending_entries", ""] == 30
    assert found["in_flight_entries", ""] == found["early_deliveries_total", ""] == 0
    assert found["lateness_seconds_count", ""] == found["lateness_seconds_bucket", "+Inf"] == 50
    assert 0 < found["lateness_seconds_bucket", "10.0"] <= 50
    assert found["ownership", ""] == 1
    assert found["index_entries", ""] >= 30
    assert found["index_disk_bytes", ""] > 30 * 24
    assert found["time_partitions", "memory"] + found["time_partitions", "disk"] in (1, 2)
    assert {label for _, label in found} >= {"memory", "disk", "0.001", "3600.0"}
