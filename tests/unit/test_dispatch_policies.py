"""What the broker says of its policies about dispatch, and what of that holds when it says nothing, or oddly."""

import asyncio
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.broker.admin import AdminClient, AdminError
from bridge.broker.policies import UNLIMITED, PolicyReader, Rate, TopicPolicies
from bridge.limits import ConnectionLimits, Limits, TopicLimits
from bridge.topics.policy_watch import PolicyWatch
from bridge.topics.subscriptions import Subscriptions

TOPIC = "persistent://public/ns/t"
OF_TOPIC = "/admin/v2/persistent/public/ns/t/"
OF_NAMESPACE = "/admin/v2/namespaces/public/ns/"
RATE = {
    "dispatchThrottlingRateInMsg": 50,
    "dispatchThrottlingRateInByte": -1,
    "relativeToPublishRate": False,
    "ratePeriodInSecond": 2,
}
NO_RATE = RATE | {"dispatchThrottlingRateInMsg": 0, "dispatchThrottlingRateInByte": 0, "ratePeriodInSecond": 1}
STATS = {"msgRateIn": 7.2, "msgThroughputIn": 720.0}
ANSWERS = {
    f"{OF_TOPIC}dispatchRate?applied=true": RATE,
    f"{OF_TOPIC}s/dispatchRate?applied=true": RATE | {"dispatchThrottlingRateInByte": 900},
    f"{OF_TOPIC}maxUnackedMessagesOnConsumer?applied=true": 7,
    f"{OF_TOPIC}maxUnackedMessagesOnSubscription?applied=true": 0,
    f"{OF_TOPIC}dispatcherPauseOnAckStatePersistent?applied=true": True,
    f"{OF_NAMESPACE}dispatcherPauseOnAckStatePersistent": False,
    f"{OF_TOPIC}stats": STATS,
}
SETTINGS = "/admin/v2/brokers/configuration/runtime"
FOUND = TopicPolicies(Rate(50, 0, 2), 7, 0, 10_000)
NOTHING = TopicPolicies()
ODD: tuple[object, ...] = (
    "x",
    [],
    {},
    {"dispatchThrottlingRateInMsg": 1},
    2.5,
    True,
    RATE | {"ratePeriodInSecond": {}},
)


class Broker(AdminClient):
    """An admin interface with so many answers; what is not among them is not found."""

    def __init__(self, answers: Mapping[str, object]) -> None:
        super().__init__("http://broker:8080", ConnectionLimits())
        self.answers = dict(answers)
        self.status: int | None = 404
        self.asked: list[str] = []

    async def _call_text(self, method: str, path: str, body: object = None) -> str:
        self.asked.append(path)
        if path not in self.answers:
            raise AdminError(f"{path}: no answer", self.status)
        answer = self.answers[path]
        return "" if answer is None else json.dumps(answer)


async def ask(broker: Broker, known: TopicPolicies = NOTHING) -> tuple[TopicPolicies, list[str]]:
    found = await PolicyReader(broker, TOPIC).topic_policies(known)
    await broker.close()
    return found


async def test_what_applies_to_a_topic() -> None:
    assert await ask(Broker(ANSWERS)) == (FOUND, [])


async def test_nothing_is_set() -> None:
    broker = Broker(dict.fromkeys(ANSWERS) | {f"{OF_TOPIC}dispatchRate?applied=true": NO_RATE})
    assert await ask(broker, FOUND) == (TopicPolicies(), [])


async def test_a_broker_without_policies_of_topics_has_those_of_namespaces() -> None:
    broker = Broker(
        {
            f"{OF_NAMESPACE}dispatchRate": RATE,
            f"{OF_NAMESPACE}maxUnackedMessagesPerConsumer": 7,
            f"{OF_NAMESPACE}maxUnackedMessagesPerSubscription": 0,
            f"{OF_NAMESPACE}dispatcherPauseOnAckStatePersistent": True,
        }
    )
    broker.status = 405
    assert await ask(broker) == (FOUND, [])


async def test_the_namespace_counts_where_the_topic_says_nothing_of_pausing() -> None:
    """A broker of 4.0.8 says no for a topic that has no policy of its own, whatever its namespace has."""
    name = "dispatcherPauseOnAckStatePersistent"
    broker = Broker(ANSWERS | {f"{OF_TOPIC}{name}?applied=true": False, f"{OF_NAMESPACE}{name}": True})
    assert (await ask(broker))[0].ack_ranges_max == 10_000


@pytest.mark.parametrize(("settings", "most"), [({"managedLedgerMaxUnackedRangesToPersist": "70"}, 70), ({}, 10_000)])
async def test_how_many_ranges_of_acks_the_broker_stores(settings: dict[str, str], most: int) -> None:
    assert await ask(Broker(ANSWERS | {SETTINGS: settings})) == (FOUND._replace(ack_ranges_max=most), [])


@pytest.mark.parametrize("status", [None, 403, 500])
async def test_no_answer_changes_nothing(status: int | None) -> None:
    """Not even what the namespace says: it may be another policy of the topic that holds."""
    broker = Broker({path: RATE for path in ANSWERS if path.startswith(OF_NAMESPACE)})
    broker.status = status
    found, reasons = await ask(broker, FOUND)
    assert found == FOUND
    assert reasons


@pytest.mark.parametrize("odd", ODD, ids=str)
async def test_an_odd_answer_changes_nothing(odd: object) -> None:
    for path in ANSWERS:
        if path.endswith("stats") or "s/dispatchRate" in path or ("Pause" in path and odd is True):
            continue
        broker = Broker(ANSWERS | {path: odd})
        found, reasons = await ask(broker, FOUND)
        assert (found, len(reasons)) == (FOUND, 1), path


async def test_the_rate_of_a_subscription() -> None:
    broker = Broker(ANSWERS)
    assert await PolicyReader(broker, TOPIC).subscription_rate("s", UNLIMITED) == (Rate(50, 900, 2), [])
    broker.answers = {f"{OF_NAMESPACE}subscriptionDispatchRate": RATE}
    assert await PolicyReader(broker, TOPIC).subscription_rate("s", UNLIMITED) == (Rate(50, 0, 2), [])
    broker.status = 500
    known = Rate(3)
    rate, reasons = await PolicyReader(broker, TOPIC).subscription_rate("s", known)
    assert (rate, len(reasons)) == (known, 1)
    await broker.close()


async def test_a_rate_beside_what_is_published() -> None:
    path = f"{OF_TOPIC}dispatchRate?applied=true"
    relative = ANSWERS | {path: RATE | {"relativeToPublishRate": True}}
    assert (await ask(Broker(relative)))[0].rate == Rate(57, 0, 2)
    found, reasons = await ask(Broker({each: answer for each, answer in relative.items() if "stats" not in each}))
    assert (found.rate, len(reasons)) == (Rate(50, 0, 2), 1)


# -- the watch


def watch(broker: Broker, **limits: float) -> tuple[PolicyWatch, Subscriptions]:
    every = Limits(topics=TopicLimits(**cast(Any, limits)))
    subscriptions = Subscriptions(TOPIC, lambda: None, lambda: True, every.dispatch, lambda bits: 0)
    context = cast(Any, SimpleNamespace(admin=broker, limits=every))
    return PolicyWatch(TOPIC, context, subscriptions), subscriptions


async def test_they_hold_before_the_first_dispatch() -> None:
    broker = Broker(ANSWERS)
    watching, subscriptions = watch(broker)
    subscription = subscriptions.opened("s")
    await watching.before_dispatch(subscription)
    assert subscriptions.rate.rate == FOUND.rate
    assert subscription.throttle.subscription.rate == Rate(50, 900, 2)
    asked = len(broker.asked)
    await watching.before_dispatch(subscription)
    assert len(broker.asked) == asked, "the watch goes on from there"
    await watching.before_dispatch(subscriptions.opened("t"))
    assert len(broker.asked) == asked + 2, "its own, and that of the namespace"
    await broker.close()


async def test_a_silent_broker_holds_nothing_up() -> None:
    class Silent(Broker):
        async def _call_text(self, method: str, path: str, body: object = None) -> str:
            await asyncio.Event().wait()
            raise AssertionError

    broker = Silent({})
    watching, subscriptions = watch(broker, policies_wait_s=0.01)
    await watching.before_dispatch(subscriptions.opened("s"))
    assert not subscriptions["s"].throttle.limits
    await broker.close()
