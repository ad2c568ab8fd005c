"""Random histories of a subscription, each played on a broker and through the bridge: what is seen is the same."""

import pytest

from bridge.protocol.pulsar_pb2 import CommandSubscribe
from tests.bridge_process import BridgeProcess
from tests.cluster import PulsarCluster
from tests.differential import compare

SHARED = [pytest.param(seed, CommandSubscribe.Shared, id=f"shared-{seed}") for seed in range(1, 9)]
KEY_SHARED = [pytest.param(seed, CommandSubscribe.Key_Shared, id=f"key-shared-{seed}") for seed in range(41, 46)]


@pytest.mark.parametrize(("seed", "kind"), SHARED + KEY_SHARED)
async def test_the_same_history(
    seed: int, kind: int, configured_broker: PulsarCluster, configured_bridge: BridgeProcess, topic: str
) -> None:
    """Which messages came, how often they were asked for again, where the cursor is; `make differential` plays more."""
    differences, played = await compare(seed, configured_bridge, configured_broker, topic, kind)
    assert not differences, (played.steps, differences)
    assert not played.stuck
    assert not played.unexpected
