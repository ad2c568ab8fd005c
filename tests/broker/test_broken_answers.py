"""Each call of the broker's admin interface answered wrongly in each way, in front of a real broker.

Either the topic is served all the same, or it says why; and it is served as soon as answers are right again.
"""

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from bridge.app import Bridge
from tests.admin_proxy import CALLS, KINDS, AdminProxy
from tests.bridge_process import now_ms
from tests.broker.conftest import InProcessFactory
from tests.cluster import PulsarCluster
from tests.helpers import wait_until_async
from tests.raw_client import RawClient, raw_client

FOR_EVER_S = 1e6
SERVED_ALL_THE_SAME = {"statistics", "lastMessageId", "policies", "version"}
"""What is asked by these calls is not needed to deliver."""


class Behind(NamedTuple):
    """A broker whose REST is behind a proxy."""

    service_url: str
    web_url: str


@pytest_asyncio.fixture
async def proxy(pulsar: PulsarCluster) -> AsyncIterator[AdminProxy]:
    async with AdminProxy(pulsar.web_url) as started:
        yield started


QUICK = {
    "broker_check_retry_s": 0.2,
    "broker_check_s": 0.1,
    "feed_retry_s": 0.1,
    "maintenance_interval_s": 0.3,
    "refetch_retry_s": 0.1,
    "retry_backoff_s": (0.05, 0.1, 0.2),
    "stamp_timeout_s": 0.5,
}


class Client:
    """Consumes from one topic, and again whenever its consumer is closed."""

    def __init__(self, raw: RawClient, topic: str, subscription: str) -> None:
        self.got: set[bytes] = set()
        self._raw, self._topic, self._subscription = raw, topic, subscription
        self._number = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self._raw.produce(self._topic)
        self._tasks = [asyncio.ensure_future(each) for each in (self._consume(), self._receive())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._raw.close()

    async def publish(self) -> set[bytes]:
        """An immediate and a delayed message; returns their payloads."""
        now, soon = self._number + 1, self._number + 2
        self._number += 2
        await self._raw.publish(b"now %d" % now, sequence_id=now)
        await self._raw.publish(b"soon %d" % soon, sequence_id=soon, deliver_at=now_ms() + 50)
        return {b"now %d" % now, b"soon %d" % soon}

    async def _consume(self) -> None:
        consumer_id = 0
        while True:
            consumer_id += 1
            answer = await self._raw.subscribe(self._topic, self._subscription, consumer_id, initialPosition=1)
            self._raw.flow(1_000, consumer_id)
            assert answer.HasField("success"), answer
            await wait_until_async(self._closes(consumer_id), "the consumer is closed", timeout=FOR_EVER_S)

    def _closes(self, consumer_id: int) -> Callable[[], bool]:
        return lambda: any(each.close_consumer.consumer_id == consumer_id for each in self._raw.events)

    async def _receive(self) -> None:
        while True:
            message = await self._raw.messages.get()
            self.got.add(message.payload)
            self._raw.ack(message.position, consumer_id=message.consumer_id)


def what_it_says(here: Bridge, topic: str) -> list[str]:
    """Of this topic, or of the bridge as a whole."""
    tracked = None if here.topics is None else here.topics.get(topic)
    said = [] if tracked is None else [each.text for each in tracked.warnings() if each.severity == "critical"]
    return said + [each for each in (here.not_ready,) if each is not None]


@pytest.mark.parametrize("kind", [*KINDS, "hangs up", "502"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("when", ["from the start", "once it is served"])
async def test_no_quiet_stall(
    bridge_here: InProcessFactory, proxy: AdminProxy, pulsar: PulsarCluster, topic: str, call: str, kind: str, when: str
) -> None:
    with capture_logs():
        here = await bridge_here(broker=Behind(pulsar.service_url, proxy.url), limits=QUICK)
        await wait_until_async(lambda: here.not_ready is None, "ready")
        url = f"pulsar://127.0.0.1:{here.port}"
        first, second = [Client(await raw_client(url), topic, name) for name in ("first", "second")]
        wanted: set[bytes] = set()
        if when == "once it is served":
            await first.start()
            wanted |= await first.publish()
            await wait_until_async(lambda: wanted <= first.got, "what is published first")
            proxy.spoil(call, kind)
            wanted |= await first.publish()
            await wait_until_async(lambda: wanted <= first.got, "who was served is served on")
            await second.start()
        else:
            proxy.spoil(call, kind)
            for each in (first, second):
                await each.start()
            wanted |= await first.publish()
        for each in (first, second):
            await served_or_told(each, wanted, here, topic, told=call not in SERVED_ALL_THE_SAME)
        proxy.heal()
        wanted |= await first.publish()
        await wait_until_async(lambda: wanted <= first.got & second.got, "all, now that answers are right")
        await wait_until_async(lambda: not what_it_says(here, topic), "no more reasons")
        assert not here.failures.counts, "what a broker answers is nothing unexpected"
        for each in (first, second):
            await each.stop()


async def served_or_told(client: Client, wanted: set[bytes], here: Bridge, topic: str, *, told: bool) -> None:
    """It gets all, or else, where that is enough, the reason is told."""
    if not told:
        await wait_until_async(lambda: wanted <= client.got, "messages")
        return
    await wait_until_async(lambda: wanted <= client.got or what_it_says(here, topic), "messages, or why there are none")
    assert wanted <= client.got or await failures_told(here) > 0


async def failures_told(here: Bridge) -> float:
    def scrape() -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{here.web_port}/metrics") as answer:
            return answer.read().decode()

    text = await asyncio.to_thread(scrape)
    (line,) = [each for each in text.splitlines() if each.startswith("pulsar_delay_bridge_admin_failures_total{")]
    return float(line.rpartition(" ")[2])
