"""Plays many histories: `python -m tests.differential_run --seeds 200 --first 1`."""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from bridge.embedded import EmbeddedPulsar
from bridge.protocol.pulsar_pb2 import CommandSubscribe
from tests.bridge_process import BridgeProcess
from tests.clients import some_topic
from tests.differential import SETTINGS, STEPS, compare


def main() -> int:
    """Return 1 when anything was not the same."""
    parser = argparse.ArgumentParser(prog="tests.differential_run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--kind", choices=["Shared", "Key_Shared"], default="Shared")
    given = parser.parse_args()
    with EmbeddedPulsar(config=SETTINGS, progress=False) as broker, tempfile.TemporaryDirectory() as folder:
        bridge = BridgeProcess(broker, Path(folder)).start()
        try:
            seeds = range(given.first, given.first + given.seeds)
            return play(seeds, bridge, broker, CommandSubscribe.SubType.Value(given.kind), given.steps)
        finally:
            bridge.stop()


def play(seeds: range, bridge: BridgeProcess, broker: EmbeddedPulsar, kind: int, steps: int) -> int:
    """Say what differs."""
    began, different, messages, again = time.monotonic(), 0, 0, 0
    for seed in seeds:
        found, played = asyncio.run(compare(seed, bridge, broker, some_topic(f"seed-{seed}"), kind, steps))
        messages, again = messages + len(played.received), again + played.attempts - 1
        different += bool(found)
        if found:
            print(f"seed {seed}: {' '.join(played.steps)}", *found, sep="\n    ", flush=True)
        if played.stuck or played.unexpected or played.attempts > 1:
            print(f"seed {seed}, on the broker: {played.attempts} {played.stuck} {played.unexpected}", flush=True)
    took = time.monotonic() - began
    print(
        f"{len(seeds):,} seeds, {messages:,} messages came on the broker, which was stuck {again} times, "
        f"{different} different; {took:.0f} s"
    )
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
