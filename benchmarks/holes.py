"""Acks that a broker forgets when it is killed, with many holes in its cursor: `python -m benchmarks.holes`.

Starts a real Pulsar. A Shared consumer gets messages of one topic and acks every second one, which leaves as many holes
in its cursor. Some time after the broker has answered for all acks it is killed (SIGKILL) and started again, and the
messages that come again are counted: those that were acked should not be among them. Done at the broker itself and
through a bridge. Prints the counts, and writes them below `benchmarks/results/`.
"""

import argparse
import json
import signal
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import pulsar
from rich.console import Console
from rich.table import Table

from benchmarks.recorded import write_result
from benchmarks.takeover import Node, until
from bridge.embedded.pulsar import EmbeddedPulsar
from bridge.protocol.names import TopicName
from bridge.showcase.bench_client import must_succeed

TOPIC = "persistent://public/default/holes"
SUBSCRIPTION = "s"
NO_LIMIT = {"maxUnackedMessagesPerConsumer": "0", "maxUnackedMessagesPerSubscription": "0"}
"""The broker's own limit of a consumer is 50,000."""
QUIET_MS = 15_000
"""Nothing more comes once nothing came for so long: a client may take some seconds to come back."""


def measure(root: Path, holes: int, pause_s: float, through_bridge: bool) -> dict[str, Any]:
    """One broker, one kill."""
    broker = EmbeddedPulsar(root / "pulsar", config=NO_LIMIT, progress=False)
    broker.start()
    bridge = Node(broker, root / "bridge", 0)
    try:
        if through_bridge:
            bridge.start()
        url = f"pulsar://127.0.0.1:{bridge.port}" if through_bridge else broker.service_url
        client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        consumer = client.subscribe(
            TOPIC, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=1_000
        )
        _publish(client, 2 * holes)
        for number in range(2 * holes):
            message = consumer.receive(timeout_millis=60_000)
            assert message.data() == b"%d" % number, (message.data(), number)
            if number % 2:
                consumer.acknowledge(message)
        until(lambda: _backlog(broker) == holes, "the broker has all acks")
        time.sleep(pause_s)
        broker.kill()
        broker.start()
        found = _drain(consumer)
        client.close()
    finally:
        bridge.end(signal.SIGTERM)
        bridge.wait()
        broker.stop()
    numbers = [int(text) for text in found]
    unacked = {number for number in numbers if number % 2 == 0}
    return {
        "acked_again": len({number for number in numbers if number % 2}),
        "lost": holes - len(unacked),
        "came": len(numbers),
    }


def _publish(client: Any, count: int) -> None:
    producer = client.create_producer(TOPIC, batching_enabled=False, block_if_queue_full=True)
    for number in range(count):
        producer.send_async(b"%d" % number, must_succeed)
    producer.flush()


def _drain(consumer: Any) -> list[bytes]:
    found: list[bytes] = []
    quiet_ms = 120_000  # the broker starts
    while True:
        try:
            found.append(consumer.receive(timeout_millis=quiet_ms).data())
        except pulsar.Timeout:
            return found
        quiet_ms = QUIET_MS


def _backlog(broker: EmbeddedPulsar) -> int:
    path = f"{broker.web_url}/admin/v2/{TopicName.parse(TOPIC).rest_path}/stats?getPreciseBacklog=true"
    with urllib.request.urlopen(path, timeout=30) as answer:
        return int(json.load(answer)["subscriptions"][SUBSCRIPTION]["msgBacklog"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.holes", description=__doc__)
    parser.add_argument("--holes", type=int, default=50_000, help="acks with an unacked message before each")
    parser.add_argument("--pauses", type=float, nargs="+", default=[4.0, 20.0, 60.0], help="seconds before the kill")
    parser.add_argument("--output", type=Path, help="file for the result, default: DATE-holes.json in the results")
    given = parser.parse_args()
    console = Console()
    runs: list[dict[str, Any]] = []
    table = Table(title=f"{given.holes:,} holes, broker killed some time after it answered for the acks")
    for name in ("", "seconds", "acked that come again", "unacked that do not"):
        table.add_column(name, justify="right" if name else "left")
    for pause_s in given.pauses:
        for through_bridge in (False, True):
            with tempfile.TemporaryDirectory() as root:
                run = measure(Path(root), given.holes, pause_s, through_bridge)
            who = "bridge" if through_bridge else "broker"
            runs.append({"who": who, "pause_s": pause_s} | run)
            console.log(runs[-1])
            table.add_row(who, f"{pause_s:g}", f"{run['acked_again']:,}", f"{run['lost']:,}")
    console.print(table)
    written = write_result("holes", given.output, {"holes": given.holes}, runs=runs)
    console.print(f"written: {written.name}")


if __name__ == "__main__":
    main()
