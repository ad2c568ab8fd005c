"""What policies hold back of a subscription, and what goes out all the same: without a broker."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.broker.policies import Rate, TopicPolicies
from bridge.dispatch.pump import Pump
from bridge.dispatch.subscription_stats import Cause
from tests.unit.test_tracked_subscription import BATCH, LIMITS, Scene
from tracker import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data") as opened:
        yield opened


async def test_the_limit_of_a_subscription_lets_through_what_is_due_and_what_comes_again(store: Store) -> None:
    scene = Scene(store, [None] * 8 + [100, 100, 200])
    scene.subscription.set_policies(TopicPolicies(max_unacked_per_consumer=0, max_unacked_per_subscription=2 * BATCH))
    assert scene.pump(0, permits=1_000) == [0, 1]
    assert scene.pump(0) == []
    assert scene.pump(100) == [8, 9], "ahead of what is kept back"
    scene.subscription.redeliver(scene.consumer, [(1, 0)])
    assert scene.pump(100) == [0]
    for entry in (8, 9, 1):
        scene.ack(entry)
    assert scene.pump(100) == [], "half of the limit is unacked"
    scene.ack(0)
    assert scene.pump(100) == [2, 3]
    scene.subscription.set_policies(TopicPolicies())
    assert scene.pump(200) == [4, 5, 6, 7, 10]


async def test_what_is_kept_back_is_no_backlog_of_what_is_due(store: Store) -> None:
    """However much of it is ready already."""
    scene = Scene(store, [None] * 400 + [100] * 400)
    scene.subscription.set_policies(TopicPolicies(max_unacked_per_consumer=0, max_unacked_per_subscription=BATCH))
    assert scene.pump(0, permits=10_000) == [0]
    due: list[int] = []
    while taken := scene.pump(100):
        due += taken
    assert due == list(range(400, 800))


async def test_nothing_new_where_the_broker_could_not_store_the_acks(store: Store) -> None:
    scene = Scene(store, [None] * 20 + [100])
    scene.subscription.set_policies(TopicPolicies(ack_ranges_max=2))
    assert scene.pump(0, permits=6 * BATCH) == list(range(6))
    for entry in (1, 3, 5):
        scene.ack(entry)
    assert scene.pump(0, permits=100) == []
    assert scene.pump(100) == [20], "what is due is no news"
    scene.ack(2)
    assert scene.pump(100) == list(range(6, 20))
    scene.subscription.stop()


async def test_a_rate_keeps_the_order_and_has_a_cause_of_lateness(store: Store) -> None:
    scene = Scene(store, [0] * 2 + [1_000] * 4)
    subscription = scene.subscription
    subscription.set_rate(Rate(messages=2 * BATCH))
    assert scene.pump(0, permits=1_000) == [0, 1]
    assert scene.pump(0) == []
    wait_ms = subscription.due_in_ms(0)
    assert wait_ms is not None
    assert 0 < wait_ms <= 1_000 / BATCH
    assert scene.pump(1_000) == []
    subscription.redeliver(scene.consumer, [(1, 1)])
    subscription.set_rate(Rate(messages=100 * BATCH))
    await asyncio.sleep(0.1)
    assert scene.pump(5_000) == [1, 2, 3, 4, 5]
    assert subscription.stats.causes == {Cause.rate: 4}


async def test_a_rate_in_bytes_lets_go_as_many_as_fit(store: Store) -> None:
    scene = Scene(store, [None] * 300)
    size = len(scene.subscription.feed.take(1, 1)[0].raw) if scene.subscription.feed else 0
    scene.subscription.set_rate(Rate(bytes=10 * size))
    assert scene.pump(0, permits=10_000) == list(range(1, 11))
    scene.subscription.set_rate(Rate())
    assert scene.pump(0) == list(range(11, 300)), "and the others are still there, in their order"


async def test_what_a_rate_of_the_topic_leaves_is_not_always_for_the_same() -> None:
    asked: list[str] = []

    class Subscription:
        def __init__(self, name: str) -> None:
            self.name = name

        def pump(self, now_ms: int) -> int:
            asked.append(self.name)
            return 0

        def due_in_ms(self, now_ms: int) -> None:
            return None

    subscriptions = cast(Any, {name: Subscription(name) for name in "ab"})
    index = cast(Any, SimpleNamespace(prefetch=lambda *_: 0))
    pump = Pump(subscriptions, lambda: 0, lambda: 0, index, lambda error: None, LIMITS.dispatch)
    for _ in range(2):
        pump.wake()
        await asyncio.sleep(0)
    pump.stop()
    assert asked in (list("abba"), list("baab"))
