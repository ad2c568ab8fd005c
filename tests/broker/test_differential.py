"""Random histories of a subscription, each played on a broker and through the bridge: what is seen is the same."""

import pytest

from bridge.embedded import EmbeddedPulsar
from bridge.protocol.pulsar_pb2 import CommandSubscribe
from tests.bridge_process import BridgeProcess
from tests.differential import SETTINGS, compare

SEEDS = range(1, 9)
BROKER_CONFIG = SETTINGS


@pytest.mark.parametrize("kind", [CommandSubscribe.Shared], ids=["shared"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_the_same_history(
    seed: int, kind: int, configured_broker: EmbeddedPulsar, configured_bridge: BridgeProcess, topic: str
) -> None:
    """Which messages came, how often they were asked for again, where the cursor is; `make differential` plays more."""
    differences, played = await compare(seed, configured_bridge.service_url, configured_broker, topic, kind)
    assert not differences, (played.steps, differences)
    assert not played.stuck
    assert not played.unexpected
