"""Standing for a topic partition and leaving it, without a broker: what it is asked, and what is believed."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from bridge.broker.candidates import LEVEL, Candidate, Candidates
from bridge.broker.clocks import ClockComparison
from bridge.broker.connection import BrokerError
from bridge.clock import system_randbits
from bridge.ledgers.internal_stats import CursorState, LedgerState
from bridge.limits import ConnectionLimits, TopicLimits
from bridge.net.backoff import Backoff
from bridge.net.failures import Failures
from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from bridge.protocol.pulsar_pb2 import BaseCommand, ServerError
from bridge.refill.spark_job import SparkSettings
from bridge.topics.context import BridgeContext
from bridge.topics.standing.election import FIRST_LEVEL, LAST_LEVEL, Election, level_before, level_behind
from bridge.topics.standing.ownership import Ownership
from bridge.topics.topics import SyncLoop
from bridge.topics.tracked_topic import TrackedTopic
from tests.changed_limits import changed
from tests.helpers import wait_until_async
from tests.simulation.disk import Disk, SimulatedStore
from tests.simulation.loop import VirtualLoop
from tracker import Position

TOPIC = "persistent://public/default/t"
QUICK = changed(retry_backoff_s=(0.001,), sync_interval_s=0.001, election_poll_s=0.001)
OWN, OTHER = "pulsar://bridge-0:6650", "pulsar://bridge-1:6650"


@pytest.fixture(autouse=True)
def _unseen() -> Iterator[None]:
    with capture_logs():
        yield


class Connection:
    """Takes every command, refuses the types in `refused`, and does not answer who stands for a second time."""

    limits = ConnectionLimits()

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.refused: set[int] = set()
        self.listener: Any = None

    def register(self, listener: object) -> int:
        self.listener = listener
        return 1

    def unregister(self, consumer_id: int) -> None:
        self.listener = None

    def next_request_id(self) -> int:
        return len(self.sent)

    def send(self, command: BaseCommand) -> None:
        self.sent.append(command.type)

    async def request(self, command: BaseCommand, request_id: int, **_: float) -> None:
        self.send(command)
        if command.type == BaseCommand.SUBSCRIBE and stood(self) > 1:
            await asyncio.Event().wait()
        if command.type in self.refused:
            raise BrokerError("Unconnected or shared consumer attempting to unsubscribe", ServerError.MetadataError)


class Admin:
    """Answers with `known`, after `meanwhile` has happened."""

    def __init__(self) -> None:
        self.known = Candidates(None, [Candidate(OWN)])
        self.clocks = ClockComparison()
        self.meanwhile: list[Callable[[], None]] = []
        self.asked = 0

    async def candidates(self, topic: str, subscription: str) -> Candidates:
        self.asked += 1
        known = self.known
        await asyncio.sleep(0)
        if self.meanwhile:
            self.meanwhile.pop()()
        return known

    async def internal_stats(self, topic: str) -> LedgerState:
        cursor = CursorState(Position(1, -1), "[]", {})
        return LedgerState(Position(1, -1), {1: 0}, {HIDDEN_SUBSCRIPTION: cursor})


def candidate(connection: Connection) -> Ownership:
    return Ownership(cast(Any, connection), TOPIC, OWN, {}, QUICK.topics)


@pytest.mark.parametrize("lost", [False, True])
async def test_who_cannot_delete_the_cursor_leaves_the_election_all_the_same(lost: bool) -> None:
    """The broker refuses while another bridge stands there: under this bridge's name it would elect nobody."""
    connection = Connection()
    ownership = candidate(connection)
    await ownership.stand()
    if lost:
        ownership.give_up("the topic is not needed any more")
    connection.refused = {BaseCommand.UNSUBSCRIBE}
    await ownership.resign(unsubscribe=True)
    assert connection.sent[1:] == [BaseCommand.UNSUBSCRIBE, BaseCommand.CLOSE_CONSUMER]


async def test_a_deleted_cursor_has_no_consumer_to_close() -> None:
    connection = Connection()
    ownership = candidate(connection)
    await ownership.stand()
    await ownership.resign(unsubscribe=True)
    assert connection.sent[1:] == [BaseCommand.UNSUBSCRIBE]


async def test_statistics_that_an_election_has_overtaken_elect_nobody() -> None:
    """It was alone when it asked; before the answer came, another one was elected: both would dispatch."""
    connection, admin = Connection(), Admin()
    ownership = candidate(connection)

    def another_is_elected() -> None:
        connection.listener.on_active(False)
        admin.known = Candidates(OTHER, [Candidate(OWN), Candidate(OTHER)])

    admin.meanwhile = [another_is_elected]
    standing = asyncio.ensure_future(ownership.elected(cast(Any, admin), lambda *_: None))
    await wait_until_async(lambda: admin.asked > 3 or standing.done(), "more statistics")
    assert not standing.done()
    assert not ownership.active.is_set()
    connection.listener.on_active(True)
    await standing
    assert ownership.active.is_set()


async def test_who_is_alone_need_not_wait_for_the_broker_s_word() -> None:
    connection, admin = Connection(), Admin()
    ownership = candidate(connection)
    await ownership.elected(cast(Any, admin), lambda *_: None)
    assert (admin.asked, ownership.active.is_set()) == (1, True)


class Standby:
    """Beside another bridge that owns the topic, in virtual time."""

    def __init__(self) -> None:
        self.connection, self.admin = Connection(), Admin()
        self.admin.known = Candidates(OTHER, [Candidate(OWN), Candidate(OTHER)])
        self.seen: list[str | None] = []
        self.standing: asyncio.Future[None]

    def lives(self, rest: Callable[["Standby", Ownership], Coroutine[Any, Any, None]]) -> None:
        loop = VirtualLoop(random.Random(1))
        try:
            loop.run_until_complete(self._live(rest))
        finally:
            loop.close()

    async def _live(self, rest: Callable[["Standby", Ownership], Coroutine[Any, Any, None]]) -> None:
        ownership = Ownership(cast(Any, self.connection), TOPIC, OWN, {}, TopicLimits())
        await ownership.stand()
        standing = self.standing = asyncio.ensure_future(
            ownership.elected(cast(Any, self.admin), lambda known, _: self.seen.append(known.active))
        )
        await asyncio.sleep(1_000)
        await rest(self, ownership)
        standing.cancel()
        await asyncio.wait({standing})


def test_who_stands_by_asks_the_broker_seldom() -> None:
    async def rest(standby: Standby, _: Ownership) -> None:
        assert standby.admin.asked < 120

    Standby().lives(rest)


def test_who_stands_by_looks_when_the_broker_has_news() -> None:
    async def rest(standby: Standby, ownership: Ownership) -> None:
        standby.admin.known = Candidates(
            "pulsar://bridge-2:6650", [Candidate(OWN), Candidate("pulsar://bridge-2:6650")]
        )
        standby.connection.listener.on_active(False)
        await asyncio.sleep(0.01)
        assert standby.seen[-2:] == [OTHER, "pulsar://bridge-2:6650"]
        assert not ownership.active.is_set()

    Standby().lives(rest)


def test_who_asks_for_the_owner_is_told_of_the_one_there_is_now() -> None:
    """The owner was killed: the clients it had come before the broker tells of an election."""

    async def rest(standby: Standby, ownership: Ownership) -> None:
        standby.admin.known = Candidates(OWN, [Candidate(OWN)])
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(ownership.looked_at() for _ in range(1_000)))
        assert standby.seen[-2:] == [OTHER, OWN]
        assert ownership.active.is_set()
        await ownership.looked_at()
        assert asyncio.get_running_loop().time() - began < 0.01

    Standby().lives(rest)


def test_an_election_that_the_broker_does_not_tell_of_is_held_again() -> None:
    """Whatever became of its word: nobody else dispatches the topic."""

    async def rest(standby: Standby, ownership: Ownership) -> None:
        standby.admin.known = Candidates(OWN, [Candidate(OWN), Candidate(OTHER)])
        await asyncio.wait({standby.standing}, timeout=60)
        assert not ownership.active.is_set()
        with pytest.raises(BrokerError, match="did not tell"):
            standby.standing.result()

    Standby().lives(rest)


def test_who_stands_beside_another_one_of_its_own_url_waits() -> None:
    """Which of them is elected the statistics do not show; to stand anew again and again would take it from both."""

    async def rest(standby: Standby, ownership: Ownership) -> None:
        standby.admin.known = Candidates(OWN, [Candidate(OWN), Candidate(OWN)])
        await asyncio.wait({standby.standing}, timeout=600)
        assert not standby.standing.done()

    Standby().lives(rest)


def test_many_who_ask_for_the_owner_cost_few_looks() -> None:
    async def rest(standby: Standby, ownership: Ownership) -> None:
        before = standby.admin.asked
        for _ in range(1_000):
            await ownership.looked_at()
            await asyncio.sleep(0.01)
        assert 15 <= standby.admin.asked - before <= 45

    Standby().lives(rest)


async def test_a_store_that_failed_is_opened_anew_by_who_owns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until there is room the bridge does not stand again: it would keep the topic from one that can serve it."""
    disk, connection = Disk(), Connection()
    store = SimulatedStore(disk)
    probes = Probes(store)
    monkeypatch.setattr(store, "probe", probes)
    failures = Failures()
    syncing = SyncLoop(store, failures, Backoff(system_randbits, QUICK.retry_backoff_s), QUICK.topics)
    topic = TrackedTopic(TOPIC, context(store, connection, syncing, failures))
    disk.full = True
    running = [asyncio.ensure_future(work) for work in (syncing.run(), topic.run())]
    try:
        await wait_until_async(lambda: probes.failed > 5, "looking for room again and again")
        assert stood(connection) == 1
        assert syncing.failure is not None
        assert topic.reason is not None
        disk.full = False
        await wait_until_async(lambda: stood(connection) == 2, "standing again")
        assert store.failure is None
    finally:
        topic.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    assert not failures.counts


class Probes:
    """Counts how often there was no room."""

    def __init__(self, store: SimulatedStore) -> None:
        self.failed = 0
        self._probe = store.probe

    def __call__(self) -> None:
        self.failed += 1
        self._probe()
        self.failed -= 1


def stood(connection: Connection) -> int:
    return connection.sent.count(BaseCommand.SUBSCRIBE)


def context(store: SimulatedStore, connection: Connection, syncing: SyncLoop, failures: Failures) -> BridgeContext:
    async def for_topic(topic: str) -> Connection:
        return connection

    return BridgeContext(
        pool=cast(Any, SimpleNamespace(for_topic=for_topic)),
        admin=cast(Any, Admin()),
        store=store,
        advertised_url=OWN,
        web_url=lambda: "http://bridge-0",
        partition_width_ms=60_000,
        near_term_bytes=1 << 16,
        mark_dirty=syncing.mark_dirty,
        synced=syncing.synced,
        spark=cast(SparkSettings, None),
        failures=failures,
        limits=QUICK,
    )


# -- the line


def listed(*levels: int) -> list[Candidate]:
    return [Candidate(f"pulsar://b-{level}:6650", None, {LEVEL: str(level)}) for level in levels]


def test_who_comes_stands_behind_all_others() -> None:
    assert level_behind([]) == FIRST_LEVEL
    assert level_behind(listed(7, 9)) == 10
    assert level_behind(listed(LAST_LEVEL)) == LAST_LEVEL
    assert level_behind([Candidate("pulsar://of-an-older-version:6650")]) == 1


def test_who_takes_over_stands_before_all_others() -> None:
    assert level_before(listed(7, 9)) == 6
    assert level_before(listed(0)) == 0, "the broker chooses"
    assert level_before([]) == FIRST_LEVEL


@pytest.mark.parametrize("said", ["", "-3", "x", "9" * 30, "٣"])
def test_a_level_that_cannot_be_is_none(said: str) -> None:
    assert Candidate(OTHER, None, {LEVEL: said}).level == 0


def test_a_former_owner_is_waited_for_until_its_candidacy_is_over() -> None:
    """It may stand anew by then, under the same name."""
    election = Election(OWN, QUICK.topics, 0.0, Candidates(OTHER, [Candidate(OTHER, connected_ms=1)]))
    own = Candidate(OWN, connected_ms=5)
    assert not election.is_won(Candidates(OTHER, [Candidate(OTHER, connected_ms=1), own]), 0.1)
    assert not election.is_won(Candidates(OWN, [Candidate(OTHER, connected_ms=1), own]), 0.2)
    assert not election.is_won(Candidates(OTHER, [Candidate(OTHER, connected_ms=9), own]), 0.3), "it is elected again"
    assert not election.is_won(Candidates(OWN, [Candidate(OTHER, connected_ms=9), own]), 0.4)
    assert election.is_won(Candidates(OWN, [Candidate(OTHER, connected_ms=12), own]), 0.5)


def test_a_former_owner_of_whom_nothing_is_known_is_waited_for() -> None:
    election = Election(OWN, QUICK.topics, 0.0)
    both = [Candidate(OTHER, connected_ms=9), Candidate(OWN, connected_ms=5)]
    assert not election.is_won(Candidates(OWN, both), 0.1)
    undated = Election(OWN, QUICK.topics, 0.0, Candidates(OTHER, [Candidate(OTHER)]))
    assert not undated.is_won(Candidates(OWN, both), 0.1), "this broker does not say since when"
