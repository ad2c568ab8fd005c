"""The benchmark that users run: one short workload with a bridge, and what it takes of processors."""

from bridge.showcase.side_by_side import SHOWN, measure
from tests.bridge_process import BridgeProcess

MESSAGES = 2_000


def test_what_is_measured_of_a_workload(bridge: BridgeProcess) -> None:
    arguments = ["spread", "--messages", str(MESSAGES), "--lead", "3", "--spread", "2"]
    # The broker of many tests is busy with others: its processor time is not this one's.
    figures = measure(arguments, bridge.service_url, {"broker": bridge.pid, "bridge": bridge.pid})
    assert {*SHOWN["spread"]} <= {*figures}
    assert (figures["early"], figures["lost"]) == (0, 0)
    assert figures["p50_ms"] <= figures["p9999_ms"] <= figures["max_ms"]
    assert 0 < figures["bridge_in_us"] < figures["bridge_us"]
    assert figures["client_us"] > 0
    assert figures["send_p99_ms"] > 0
