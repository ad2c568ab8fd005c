"""An error that nobody thought of, wherever it happens in a topic: it is told, and the topic is served anew."""

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from bridge.app import Bridge
from bridge.dispatch.outlet import Outlet
from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.intake.feed import Feed
from bridge.intake.harvester import Harvester
from bridge.net.failures import Part
from bridge.operate.outlook import Outlook
from bridge.refill.gaps import GapFiller
from bridge.topics.cursor_loader import CursorLoader
from bridge.topics.durability import Durability
from bridge.topics.standing.ownership import Ownership
from bridge.topics.standing.presence import Presence
from bridge.topics.subscriptions import Subscriptions
from bridge.topics.tenure import Tenure
from bridge.topics.tracked_topic import TrackedTopic
from tests.bridge_process import now_ms
from tests.broker.conftest import InProcessFactory
from tests.broker.test_cursors import tracked_topic
from tests.clients import Clients, publish, receive, shared
from tests.helpers import wait_until_async

FAR_MS = 3_600_000


class Boom(Exception):
    pass


class Broken:
    """A method that fails for the next one who calls it, and says whether it did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.left = 0
        right = getattr(owner, name)
        broken = self

        def fail() -> None:
            if broken.left:
                broken.left -= 1
                raise Boom(name)

        def sometimes(self: Any, *args: Any, **named: Any) -> Any:
            fail()
            return right(self, *args, **named)

        async def sometimes_later(self: Any, *args: Any, **named: Any) -> Any:
            fail()
            return await right(self, *args, **named)

        monkeypatch.setattr(owner, name, sometimes_later if inspect.iscoroutinefunction(right) else sometimes)


QUICK = {"maintenance_interval_s": 0.5, "cursor_poll_s": 0.1, "read_stall_s": 1.0}
"""What is looked at now and then is looked at often."""


class Scene:
    """A topic with a consumer that has acked something, and something delayed that is far off."""

    def __init__(self, here: Bridge, topic: str, clients: Clients) -> None:
        self.here, self.topic = here, topic
        self._client = clients.connect(here.advertised_url)
        self._consumer: Any = None
        self._producer: Any = None
        self._number = 0

    async def start(self) -> None:
        def begin() -> None:
            self._consumer = shared(self._client, self.topic, unacked_messages_timeout_ms=10_000)
            self._producer = self._client.create_producer(self.topic)
            publish(self._producer, ["far"], deliver_at=now_ms() + FAR_MS)

        await asyncio.to_thread(begin)
        await self.works()
        tracked = tracked_topic(self.here, self.topic)
        await wait_until_async(lambda: tracked.tenure.durability.kept is not None, "a checkpoint")

    async def works(self) -> None:
        """Immediate and delayed messages come, each at least once; the far one does not."""

        def use() -> None:
            self._number += 1
            wanted = {f"now {self._number}", f"soon {self._number}"}
            publish(self._producer, [f"now {self._number}"])
            publish(self._producer, [f"soon {self._number}"], deliver_at=now_ms() + 100)
            while wanted:
                text = receive(self._consumer).text
                assert text != "far"
                wanted.discard(text)

        await asyncio.to_thread(use)

    async def leave_and_come_back(self) -> None:
        def again() -> None:
            self._consumer.close()
            self._consumer = shared(self._client, self.topic)

        await asyncio.to_thread(again)


def give_up(tracked: TrackedTopic) -> None:
    tracked._give_up("as if the topic was unloaded")


Trigger = Callable[[TrackedTopic], object]
PLACES: dict[str, tuple[type, str, Trigger | None]] = {
    "the pump": (Outlet, "pump", None),
    "more permits": (TrackedSubscription, "flow", None),
    "an ack": (TrackedSubscription, "acked", None),
    "what the harvester stores": (Harvester, "_store", None),
    "the harvester's reader": (Harvester, "check", None),
    "checkpoints": (Durability, "checkpoint", None),
    "a polled cursor": (TrackedSubscription, "_on_mark_delete", None),
    "maintenance": (Outlook, "ask_broker", None),
    "the forecast": (Outlook, "look_ahead", None),
    "reading a cursor": (CursorLoader, "_load_once", give_up),
    "starting a subscription": (TrackedSubscription, "start", give_up),
    "taking over": (TrackedTopic, "_take_over", give_up),
    "beginning": (Tenure, "start", give_up),
    "standing": (Ownership, "stand", give_up),
    "being elected": (Ownership, "elected", give_up),
    "letting go while standing": (Presence, "let_go_when", give_up),
    "writing views at the end": (Durability, "persist_views", give_up),
    "stopping subscriptions": (Subscriptions, "stop", give_up),
    "resigning": (Ownership, "resign", give_up),
}


@pytest.mark.parametrize("place", PLACES)
async def test_the_topic_is_served_anew(
    bridge_here: InProcessFactory, topic: str, clients: Clients, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    owner, name, trigger = PLACES[place]
    broken = Broken(monkeypatch, owner, name)
    with capture_logs() as logged:
        here = await bridge_here(limits=QUICK)
        scene = Scene(here, topic, clients)
        await scene.start()
        tracked = tracked_topic(here, topic)
        before = tracked.tenure
        broken.left = 1
        if trigger is not None:
            trigger(tracked)
        elif place == "more permits":
            await scene.leave_and_come_back()
        elif place in ("an ack", "what the harvester stores", "the pump"):
            with contextlib.suppress(AssertionError):
                await scene.works()
        await wait_until_async(lambda: here.failures.counts[Part.topic] == 1, "a failure that is counted")
        await wait_until_async(
            lambda: tracked.role == "owner" and tracked.tenure not in (None, before), "the topic is served anew"
        )
        await scene.works()
        await scene.leave_and_come_back()
        await scene.works()
        told = [each for each in logged if each["log_level"] == "critical"]
        assert [(each["event"], each["topic"]) for each in told] == [("the topic failed", topic)]
        assert isinstance(told[0]["exc_info"], Boom)
        assert here.failures.counts == {Part.topic: 1}
        assert tracked.reason is None
        assert tracked.index.entries >= 1
        await asyncio.to_thread(clients.close)


async def test_a_consumer_that_cannot_be_taken_away_gets_nothing_more(
    bridge_here: InProcessFactory, topic: str, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has in hand goes to others all the same."""
    broken = Broken(monkeypatch, TrackedSubscription, "remove_consumer")
    with capture_logs():
        here = await bridge_here()
        scene = Scene(here, topic, clients)
        await scene.start()
        broken.left = 1
        await scene.leave_and_come_back()
        await wait_until_async(lambda: here.failures.counts[Part.topic] == 1, "a failure that is counted")
        await scene.works()
        subscription = tracked_topic(here, topic).subscriptions["s"]
        assert len(subscription.dispatcher.consumers) == 1
        await asyncio.to_thread(clients.close)


async def test_an_error_that_stays_is_told_again_and_again_with_pauses(
    bridge_here: InProcessFactory, topic: str, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason stands where the topic is not served; when the error is gone, all is well."""
    broken = Broken(monkeypatch, CursorLoader, "_load_once")
    with capture_logs():
        here = await bridge_here()
        scene = Scene(here, topic, clients)
        await scene.start()
        tracked = tracked_topic(here, topic)
        broken.left = 1_000
        give_up(tracked)
        await wait_until_async(lambda: here.failures.counts[Part.topic] >= 3, "failures that are counted")
        began, counted = asyncio.get_running_loop().time(), here.failures.counts[Part.topic]
        await wait_until_async(lambda: "failed: Boom('_load_once')" in (tracked.reason or ""), "the reason")
        await wait_until_async(
            lambda: any(each.code == "not-served" and "Boom" in each.text for each in tracked.warnings()), "a warning"
        )
        await wait_until_async(lambda: here.failures.counts[Part.topic] >= counted + 2, "two more")
        assert asyncio.get_running_loop().time() - began > here.limits.retry_backoff_s[2] / 2
        broken.left = 0
        await scene.works()
        await asyncio.to_thread(clients.close)


@pytest.mark.parametrize(
    ("owner", "name", "part"),
    [(Feed, "_open", "reading again"), (GapFiller, "fill", "filling a gap")],
    ids=["reading again", "filling a gap"],
)
async def test_what_is_read_behind_live_traffic(
    bridge_here: InProcessFactory,
    topic: str,
    clients: Clients,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    part: str,
) -> None:
    """A new subscription from the start of the topic needs what is behind."""
    broken = Broken(monkeypatch, owner, name)
    with capture_logs():
        here = await bridge_here()
        scene = Scene(here, topic, clients)
        await scene.start()
        tracked = tracked_topic(here, topic)
        give_up(tracked)  # the tail of the topic is not at hand any more
        await wait_until_async(lambda: tracked.role != "owner", "the topic is given up")
        await wait_until_async(lambda: tracked.role == "owner", "the topic is served again")
        if part == "filling a gap":
            tracked.kept.forget()
            here.topics._context.store.drop_topic(topic)  # type: ignore[union-attr]
            give_up(tracked)
        broken.left = 1

        def read_all() -> None:
            late = shared(clients.connect(here.advertised_url), topic, "late")
            wanted = {"now 1", "soon 1"}
            while wanted:
                wanted.discard(receive(late).text)

        await asyncio.to_thread(read_all)
        assert here.failures.counts == {Part.topic: 1}
        await asyncio.to_thread(clients.close)
