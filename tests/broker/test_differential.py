"""Random histories of a subscription, each played on a broker and through the bridge: what is seen is the same."""

from collections.abc import Iterator

import pytest

from bridge.embedded import EmbeddedError, EmbeddedPulsar
from bridge.protocol.pulsar_pb2 import CommandSubscribe
from tests.bridge_process import BridgeProcess
from tests.differential import SETTINGS, compare

SEEDS = range(1, 9)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedPulsar]:
    try:
        with EmbeddedPulsar(config=SETTINGS, progress=False) as started:
            yield started
    except EmbeddedError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="module")
def bridge(broker: EmbeddedPulsar, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeProcess]:
    process = BridgeProcess(broker, tmp_path_factory.mktemp("bridge")).start()
    yield process
    process.stop()


@pytest.mark.parametrize("kind", [CommandSubscribe.Shared], ids=["shared"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_the_same_history(
    seed: int, kind: int, broker: EmbeddedPulsar, bridge: BridgeProcess, topic: str
) -> None:
    """Which messages came, how often they were asked for again, where the cursor is; `make differential` plays more."""
    differences, played = await compare(seed, bridge.service_url, broker, topic, kind)
    assert not differences, (played.steps, differences)
    assert not played.stuck
    assert not played.unexpected
