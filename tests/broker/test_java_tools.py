"""The Java tools of the official distribution, unchanged but for the service URL."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bridge_process import BridgeProcess
from tests.clients import admin, backlog, publish
from tests.cluster import PulsarCluster
from tests.helpers import wait_until
from tests.java_tools import Tools

RATE = 500
SECONDS = 6
DELAY_MS = 2_000


def test_pulsar_client_consumes(bridge: BridgeProcess, topic: str, tools: Tools) -> None:
    """`pulsar-client consume` on a Shared subscription."""
    consume = ("--url", bridge.service_url, "consume", "-s", "s", "-t", "Shared", "-p", "Earliest", "-n", "3", topic)
    consumer, output = tools.start("pulsar-client", *consume)
    tools.run("pulsar-client", "--url", bridge.service_url, "produce", "-n", "3", "-m", "hello", topic)
    assert consumer.wait(60) == 0
    assert output.read_text().count("content:hello") == 3


def test_the_java_client_chooses_its_retry_topics_as_at_the_broker(
    bridge: BridgeProcess, pulsar: PulsarCluster, direct: Any, topic: str, tools: Tools
) -> None:
    """Names without the topic are those of old clients, taken only where such topics exist already."""
    publish(direct.create_producer(topic), ["a", "b"])
    program = Path(__file__).parent.parent / "java" / "RetryTopics.java"
    subscription = topic[-10:]
    printed = tools.run_source(program, bridge.service_url, topic, subscription, "2").splitlines()
    retry, dead = f"{topic}-{subscription}-RETRY", f"{topic}-{subscription}-DLQ"
    assert [printed.count(f"received {each}") for each in (topic, retry)] == [2, 2]
    found = admin(pulsar, "GET", "persistent/public/default")
    assert sorted(each for each in found if subscription in each) == sorted([topic, dead, retry])
    assert backlog(pulsar, retry, subscription) == 0


def test_pulsar_perf_with_delay(bridge: BridgeProcess, topic: str, tools: Tools) -> None:
    """`pulsar-perf produce -d` and `consume`: nothing before its time, unlike with the broker's own tracker."""
    address = ("-u", bridge.service_url)
    consumer, output = tools.start("pulsar-perf", "consume", *address, "-ss", "s", "-st", "Shared", topic)
    wait_until(lambda: "Start receiving" in output.read_text(), "the consumer subscribes", timeout=60)
    sent = tools.run(
        "pulsar-perf",
        "produce",
        *(*address, "-r", str(RATE), "-s", "128", "-d", str(DELAY_MS // 1000)),
        *("-m", str(RATE * SECONDS), topic),
    )
    found = re.search(r"Aggregated throughput stats --- (\d+) records sent", sent)  # a few more than asked for
    assert found, sent
    wait_until(lambda: sum(_received(output)) == int(found[1]), "everything is received", timeout=60)
    consumer.terminate()
    consumer.wait(30)
    # The tool rounds to whole ms, on the same clock; nobody can be early but by that.
    medians = _medians(output)
    assert medians, output.read_text()
    assert min(medians) >= DELAY_MS - 1
    assert max(medians) < DELAY_MS + 1_000


def _intervals(output: Path) -> Sequence[tuple[int, int]]:
    """Messages received in all at each report, and the median latency in ms since the last one."""
    found = re.findall(r"Throughput received:\s+(\d+) msg.*?med: (\d+)", output.read_text())
    return [(int(total), int(median)) for total, median in found]


def _received(output: Path) -> list[int]:
    totals = [0, *(total for total, _ in _intervals(output))]
    return [after - before for before, after in itertools.pairwise(totals)]


def _medians(output: Path) -> list[int]:
    return [median for (_, median), new in zip(_intervals(output), _received(output), strict=True) if new]
