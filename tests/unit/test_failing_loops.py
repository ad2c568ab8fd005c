"""What runs for as long as the bridge does goes on after an error that nobody thought of, and says so."""

import asyncio
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from bridge.broker.admin import AdminError
from bridge.broker.clocks import ClockComparison
from bridge.broker.readiness import Readiness
from bridge.clock import system_randbits
from bridge.dispatch.admission import Admission, Early
from bridge.gateway.tracked_consumer import TrackedConsumer
from bridge.limits import ConnectionLimits, DispatchLimits, TopicLimits
from bridge.net.backoff import Backoff
from bridge.net.failures import Failures, Part
from bridge.topics.marks import Marks
from bridge.topics.topics import SyncLoop
from tests.helpers import wait_until_async
from tracker import EARLIEST, NewEntry, Position, Store, StoreError, TopicIndex

TOPIC = "persistent://public/default/t"


class Boom(Exception):
    pass


@pytest.fixture(autouse=True)
def _unseen() -> Iterator[None]:
    """Told on a terminal, a traceback is decorated with lines of files, and reading those blocks."""
    with capture_logs():
        yield


def soon() -> Backoff:
    return Backoff(system_randbits, (0.01,))


class Broken:
    """Does what it is there for, or fails as often as is wanted."""

    def __init__(self, does: Callable[..., Any] = lambda *_: None) -> None:
        self.errors: list[Exception] = []
        self.called = 0
        self._does = does

    def __call__(self, *args: Any) -> Any:
        self.called += 1
        if self.errors:
            raise self.errors.pop(0)
        return self._does(*args)

    async def later(self, *args: Any) -> Any:
        return self(*args)


class OneTopic:
    def __init__(self) -> None:
        self.synced: list[Position | None] = []
        self.on_synced: Callable[[Position | None], None] = self.synced.append

    def harvested_unsynced(self) -> Position | None:
        return Position(1, 1)


class Disk:
    """A store, as far as the sync loop asks."""

    failure: str | None = None
    is_synced = False

    def __init__(self) -> None:
        self.sync, self.probe, self.recover = Broken(), Broken(), Broken()


@pytest.mark.parametrize("where", ["the store", "a topic", "opening anew", "who is told of that"])
async def test_syncs_go_on(where: str) -> None:
    disk, failures, topic = Disk(), Failures(), OneTopic()
    syncing = SyncLoop(cast(Store, disk), failures, soon(), TopicLimits())
    if where == "the store":
        disk.sync.errors = [Boom(), Boom()]
    elif where == "a topic":
        told = Broken(topic.synced.append)
        told.errors = [Boom()]
        topic.on_synced = told
    else:
        disk.sync.errors = [StoreError("full")]
        if where == "opening anew":
            disk.recover.errors = [Boom()]
        else:
            who = Broken()
            who.errors = [Boom()]
            syncing.on_recovered.append(who)
    running = asyncio.get_running_loop().create_task(syncing.run())
    syncing.mark_dirty(topic)
    assert not await syncing.synced()
    await wait_until_async(lambda: topic.synced, "a sync")
    assert topic.synced == [Position(1, 1)]
    assert await syncing.synced()
    assert failures.counts[Part.storage] == (2 if where == "the store" else 1)
    assert syncing.failure is None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_readiness_is_told_also_when_it_cannot_be_found_out() -> None:
    failures, reach = Failures(), Broken()
    readiness = Readiness(failures, ConnectionLimits(broker_check_s=0.01, broker_check_retry_s=0.01))
    pool, admin = cast(Any, type("Pool", (), {"connection": reach.later})()), cast(Any, type("Admin", (), {})())
    admin.check, admin.clocks = Broken().later, ClockComparison()
    running = asyncio.get_running_loop().create_task(readiness.watch(pool, admin))
    await wait_until_async(lambda: readiness.reason is None, "ready")
    reach.errors = [Boom("odd")]
    with capture_logs() as logged:
        await wait_until_async(lambda: failures.counts[Part.readiness] == 1, "a failure")
        await wait_until_async(lambda: readiness.reason is None and reach.called > 3, "ready again")
    assert [(each["log_level"], each.get("reason")) for each in logged] == [
        ("critical", None),
        ("warning", "failed: Boom('odd')"),
        ("info", None),
    ]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class Consumer:
    """What admission asks of one."""

    topic, subscription, peer = TOPIC, "s", "test"

    def __init__(self, mark: str) -> None:
        self.mark, self.closed = mark, 0

    def close(self) -> None:
        self.closed += 1


class Hall:
    """Admission, and who came in."""

    def __init__(self) -> None:
        self.failures = Failures()
        self.listed = Broken(lambda topic, marks: set(marks))
        self.inside: list[Any] = []
        self.troubles: list[str | None] = []
        self.admit = Broken(lambda consumer, early: self.inside.append(consumer))
        self.admission = Admission(
            self.listed.later, self._admit, self._trouble, self.failures, soon, DispatchLimits(listed_pause_s=0.001)
        )

    def _admit(self, consumer: TrackedConsumer, early: Early) -> None:
        self.admit(consumer, early)

    def _trouble(self, topic: str, reason: str | None) -> None:
        assert topic == TOPIC
        self.troubles.append(reason)


@pytest.mark.parametrize("broken", ["listed", "admit"])
async def test_who_cannot_be_let_in_for_an_error_is_closed_and_the_next_one_is_let_in(broken: str) -> None:
    hall = Hall()
    getattr(hall, broken).errors = [Boom()]
    consumers: list[Any] = [Consumer("one"), Consumer("two")]
    for each in consumers:
        hall.admission.ask(each)
    await wait_until_async(lambda: hall.failures.counts[Part.admission] == 1, "a failure")
    assert [each.closed for each in consumers] == [1, 1]
    hall.admission.ask(consumers[1])
    await wait_until_async(lambda: hall.inside == [consumers[1]], "the next one")
    await hall.admission.close()


async def test_why_consumers_wait_is_told_until_they_are_let_in() -> None:
    hall = Hall()
    hall.listed.errors = [AdminError("a proxy's page"), AdminError("nothing")]
    consumer: Any = Consumer("one")
    hall.admission.ask(consumer)
    await wait_until_async(lambda: hall.inside == [consumer], "the consumer")
    assert hall.troubles == ["a proxy's page", "nothing", None]
    assert not hall.failures.counts
    hall.troubles.clear()
    hall.listed.errors = [AdminError("a proxy's page")] * 1_000
    gone: Any = Consumer("two")
    hall.admission.ask(gone)
    await wait_until_async(lambda: hall.troubles, "trouble")
    await hall.admission.close()
    assert hall.troubles[-1] is None


async def test_a_cursor_goes_without_a_mark_when_nobody_can_tell() -> None:
    failures, ask = Failures(), Broken()
    ask.errors = [Boom()]
    marks = Marks(cast(Any, type("Admin", (), {"internal_stats": lambda _, topic: ask.later()})()), failures, 2.0)
    assert not await marks.is_wanted(TOPIC, "s")
    assert failures.counts == {Part.marks: 1}
    await marks.close()


async def test_a_mark_that_nobody_waits_for_any_more_fails_aloud() -> None:
    failures, go = Failures(), asyncio.Event()

    class Admin:
        async def internal_stats(self, topic: str) -> None:
            await go.wait()
            raise Boom

    marks = Marks(cast(Any, Admin()), failures, 0.01)
    assert not await marks.is_wanted(TOPIC, "s")
    go.set()
    await wait_until_async(lambda: failures.counts[Part.marks] == 1, "a failure")
    await marks.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "data") as opened:
        yield opened


def test_an_index_can_be_opened_anew_while_its_store_is_open(store: Store) -> None:
    """After an error that nobody thought of, what is known of it in memory is not believed."""

    def entries(*numbers: int) -> Collection[NewEntry]:
        return [NewEntry(number, 1, number, 1, b"x") for number in numbers]

    first = TopicIndex(store, TOPIC)
    first.start_at(EARLIEST)
    first.add(list(entries(1, 2, 3)), Position(1, 3))
    first.view("s").ack(1, 2)
    first.persist_views()
    again = TopicIndex(store, TOPIC)
    assert (again.harvested_position, again.entries) == (Position(1, 3), 3)
    again.add(list(entries(4)), Position(1, 4))
    assert [entry.entry for entry in again.due(again.view("s"), 10, 10)] == [1, 3, 4]
    store.sync()
    store.recover()
    assert (again.harvested_position, again.entries) == (Position(1, 4), 4)
