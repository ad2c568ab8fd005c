"""One client's nonsense, in any quantity, costs others little: no traceback, few log lines, little memory."""

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Iterator

import psutil
import pytest

from bridge.limits import ConnectionLimits
from bridge.protocol.frames import encode_frame
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe, KeyValue
from tests.bridge_process import BridgeProcess, now_ms
from tests.clients import some_topic
from tests.cluster import PulsarCluster
from tests.helpers import wait_until_async
from tests.raw_client import RawClient, raw_client

LONG = os.environ.get("DELAY_BRIDGE_LONG") == "1"
SEEDS = range(20 if LONG else 1)
FRAMES = 12_500 if LONG else 4_000
AT_ONCE = 20
NUMBERS = (0, 1, 2, 77, 1_000, 2**31 - 1, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1)
MB = 1024 * 1024
GROWTH_MB = 32
"""Far below what a session each would leave behind."""
REFUSED = 20_000
SERVED = 20
"""Messages of a neighbour meanwhile, of about 100: one or two come through where a flood is worked off first."""
UNREAD_MB = 100
"""Half of what is answered, and far more than `client_unread`: allocators do not give everything back."""


@pytest.fixture(scope="module")
def flooded(pulsar: PulsarCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BridgeProcess]:
    process = BridgeProcess(pulsar, tmp_path_factory.mktemp("flooded"), {"log_pause_s": 1.0}).start()
    yield process
    process.stop()


def commands(random_: random.Random, topic: str) -> list[bytes]:
    """One of each kind with as much as there is room for, and one without its body."""
    names = {"topic": topic, "subscription": "s", "namespace": "public/default", "schema_name": "n", "key": "k"}
    found = []
    for field in BaseCommand.DESCRIPTOR.fields:
        if field.message_type is None:
            continue
        command = BaseCommand(type=BaseCommand.Type.Value(BaseCommand.Type.Name(field.number)))  # type: ignore[arg-type]
        body = getattr(command, field.name)
        body.SetInParent()
        for each in field.message_type.fields:
            value = names.get(each.name, "text") if each.type == each.TYPE_STRING else random_.choice(NUMBERS)
            if each.name == "request_id":
                value = random_.getrandbits(40)
            with contextlib.suppress(
                TypeError, ValueError, AttributeError, OverflowError
            ):  # neither text nor number, or several
                setattr(body, each.name, value)
        if command.type == BaseCommand.SUBSCRIBE:
            command.subscribe.metadata.append(KeyValue(key="k", value="v"))
        found.append(encode_frame_partly(command))
        found.append(encode_frame_partly(BaseCommand(type=command.type)))
    return found


def encode_frame_partly(command: BaseCommand) -> bytes:
    """Whether or not all that is required is there."""
    body = command.SerializePartialToString()
    return (4 + len(body)).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body


def mutated(random_: random.Random, frame: bytes) -> bytes:
    """Some bytes of the command changed, added or taken away; the sizes mostly as they should be."""
    body = bytearray(frame[8:])
    for _ in range(random_.choice((0, 1, 1, 2, 5))):
        at = random_.randrange(len(body) + 1)
        kind = random_.random()
        if kind < 0.6 and at < len(body):
            body[at] = random_.randrange(256)
        elif kind < 0.8:
            body[at:at] = random_.randbytes(random_.choice((1, 4)))
        else:
            del body[at : at + random_.choice((1, 3))]
    sizes = [4 + len(body), len(body)]
    if random_.random() < 0.02:
        sizes[random_.randrange(2)] = random_.getrandbits(random_.choice((8, 16, 32)))
    return b"".join(each.to_bytes(4, "big") for each in sizes) + bytes(body)


async def fuzz(url: str, seed: int, frames: int) -> None:
    """Sends so many, over as many connections as it takes."""
    random_ = random.Random(seed)
    samples = commands(random_, some_topic("fuzz"))
    client: RawClient | None = None
    for number in range(frames):
        if client is None or client.lost.done():
            client = await raw_client(url, handshake=False)
            if random_.random() < 0.95:
                with contextlib.suppress(ConnectionError):
                    await client.handshake()
        with contextlib.suppress(AssertionError):  # closed
            client.send_bytes(mutated(random_, random_.choice(samples)))
        if number % 5 == 0:
            await asyncio.sleep(0)
        if number % 50 == 0:
            await asyncio.sleep(0.01)
    assert client is not None
    await client.close()


@pytest.mark.parametrize("seed", SEEDS)
async def test_mutated_frames(flooded: BridgeProcess, seed: int) -> None:
    """Each ends in an answer or a closed connection."""
    bystander = await at_work(flooded)
    before = memory_mb(flooded)
    await asyncio.gather(
        *(fuzz(flooded.service_url, AT_ONCE * seed + number, FRAMES // AT_ONCE) for number in range(AT_ONCE))
    )
    for deliver_at in (None, now_ms() + 100):
        position = await bystander.publish(b"still there", deliver_at)
        assert (await bystander.message()).position == position
    assert memory_mb(flooded) - before < GROWTH_MB
    log = flooded.log()
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:4_000]
    assert "never retrieved" not in log
    await bystander.close()


async def test_a_flood_of_refused_commands(flooded: BridgeProcess) -> None:
    """A neighbour is served meanwhile, and the log tells how many there were instead of telling each."""
    neighbour, flood = await at_work(flooded), await raw_client(flooded.service_url)
    lines, began = flooded.log().count("\n"), time.monotonic()
    flood.send_bytes(b"".join(refused(number, "nonsense://x") for number in range(REFUSED)))
    served = 0
    while len(flood.events) < REFUSED:
        await neighbour.publish(b"x", sequence_id=served)
        await neighbour.message()
        served += 1
        neighbour.flow(1)
    assert served >= SERVED
    took_s = time.monotonic() - began
    assert flooded.log().count("\n") - lines < (ConnectionLimits().log_lines_at_once + 1) * (took_s + 2)
    await wait_until_async(lambda: "lines left out" in flooded.log(), "how many")
    await flood.close()
    await neighbour.close()


async def test_answers_that_nobody_reads(flooded: BridgeProcess) -> None:
    """The commands wait in the client's connection instead of their answers in memory."""
    client = await raw_client(flooded.service_url)
    before = memory_mb(flooded)
    client.transport.pause_reading()
    count, peak, logged = 5_000, 0.0, len(flooded.log())
    for number in range(count):
        client.send(echoed(number))
        if number % 100 == 0:
            await asyncio.sleep(0.01)
            peak = max(peak, memory_mb(flooded))
    client.transport.resume_reading()
    await wait_until_async(lambda: len(client.events) == count, "all answers", timeout=30)
    assert len(flooded.log()) - logged < MB
    assert peak - before < UNREAD_MB
    await client.close()


def refused(number: int, topic: str) -> bytes:
    """A PRODUCER that the broker refuses."""
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic, command.producer.producer_id, command.producer.request_id = topic, number, number
    return encode_frame(command)


def echoed(number: int) -> BaseCommand:
    """A SUBSCRIBE that the bridge refuses, and repeats in its answer."""
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    command.subscribe.topic, command.subscribe.subscription = "t", "__delay-bridge" + "x" * 40_000
    command.subscribe.consumer_id = command.subscribe.request_id = number
    command.subscribe.subType = CommandSubscribe.Shared
    return command


def memory_mb(bridge: BridgeProcess) -> float:
    return float(psutil.Process(bridge.pid).memory_info().rss / MB)


async def at_work(bridge: BridgeProcess) -> RawClient:
    """A client that consumes and produces."""
    topic = some_topic("bystander")
    client = await raw_client(bridge.service_url)
    await client.consume(topic)
    client.flow(100)
    await client.produce(topic)
    return client
