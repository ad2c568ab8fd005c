"""What the broker is asked about a caller, how often, and what its silence means."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from bridge.limits import WebLimits
from bridge.protocol.names import TopicName
from bridge.web.access.pulsar_permissions import BrokerSilent, PulsarPermissions
from bridge.web.access.secret_hash import secret_hash

LIMITS = WebLimits()
TOPIC = TopicName.parse("persistent://acme/orders/a b")
VERSION = "/admin/v2/brokers/version"
NAMESPACE = "/admin/v2/namespaces/acme/orders/permissions"
SUBSCRIPTIONS = "/admin/v2/persistent/acme/orders/a%20b/subscriptions"


class Broker:
    """Answers as it is told to: a status for a token and a path, 401 for others."""

    def __init__(self) -> None:
        self.allowed: dict[tuple[str, str], int] = {}
        self.leads_to: str | None = None
        self.status: int | None = None
        self.takes_any_token = False
        self.asked: Counter[str] = Counter()
        self.at_once = self.most_at_once = 0

    async def answer(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.asked[f"{token} {request.raw_path}"] += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.leads_to is not None:
            raise web.HTTPTemporaryRedirect(f"{self.leads_to}{request.raw_path}")
        if self.status is not None:
            return web.Response(status=self.status)
        if self.takes_any_token:
            return web.Response()
        return web.Response(status=self.allowed.get((token, request.raw_path), 401))

    def count(self, path: str) -> int:
        return sum(count for asked, count in self.asked.items() if asked.endswith(f" {path}"))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[list[TestServer]]:
    started: list[TestServer] = []
    yield started
    for server in started:
        await server.close()


async def started(servers: list[TestServer], broker: Broker) -> str:
    app = web.Application()
    app.router.add_get("/{path:.*}", broker.answer)
    server = TestServer(app)
    await server.start_server()
    servers.append(server)
    return str(server.make_url("")).rstrip("/")


@pytest_asyncio.fixture
async def broker() -> Broker:
    return Broker()


@pytest_asyncio.fixture
async def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture
async def permissions(servers: list[TestServer], broker: Broker, clock: Clock) -> AsyncIterator[PulsarPermissions]:
    made = PulsarPermissions(await started(servers, broker), clock, LIMITS)
    yield made
    await made.close()


async def test_answers_are_kept_for_a_while(permissions: PulsarPermissions, broker: Broker, clock: Clock) -> None:
    broker.allowed = {("t", VERSION): 200, ("t", SUBSCRIPTIONS): 200}
    for _ in range(3):
        assert await permissions.accepts("t")
        assert await permissions.may_see("t", TOPIC)
        assert not await permissions.may_steer("t", TOPIC)
    assert broker.asked["t " + SUBSCRIPTIONS] == broker.asked["t " + NAMESPACE] == 1
    # What was refused is asked again soon, and so is what was allowed.
    broker.allowed = {("t", NAMESPACE): 200}
    clock.now = LIMITS.access_answer_lasts_s
    assert await permissions.may_steer("t", TOPIC)
    assert not await permissions.accepts("t")
    assert broker.count(VERSION) == 2 + 1, "of the caller, and once with no token"
    broker.allowed = {}
    clock.now = 2 * LIMITS.access_answer_lasts_s
    assert not await permissions.may_see("t", TOPIC)
    assert not await permissions.may_steer("t", TOPIC)


async def test_lists_need_not_ask_again(permissions: PulsarPermissions, broker: Broker, clock: Clock) -> None:
    broker.allowed = {("t", SUBSCRIPTIONS): 200}
    mine, others = secret_hash("t"), secret_hash("u")
    assert permissions.remembers_seeing(mine, str(TOPIC)) is None
    assert await permissions.may_see("t", TOPIC)
    assert not await permissions.may_see("u", TOPIC)
    assert permissions.remembers_seeing(mine, str(TOPIC)) is True
    assert permissions.remembers_seeing(others, str(TOPIC)) is False
    clock.now = LIMITS.access_answer_lasts_s
    assert permissions.remembers_seeing(mine, str(TOPIC)) is True
    assert permissions.remembers_seeing(others, str(TOPIC)) is None
    clock.now = LIMITS.access_list_lasts_s
    assert permissions.remembers_seeing(mine, str(TOPIC)) is None


async def test_answers_are_of_one_token_only(permissions: PulsarPermissions, broker: Broker) -> None:
    broker.allowed = {("t", VERSION): 200, ("t", NAMESPACE): 200}
    assert await permissions.may_steer("t", TOPIC)
    assert not await permissions.may_steer("u", TOPIC)
    assert not await permissions.accepts("u")
    assert not await permissions.is_super_user("t")


async def test_not_more_answers_are_kept_than_so_many(servers: list[TestServer], broker: Broker, clock: Clock) -> None:
    permissions = PulsarPermissions(await started(servers, broker), clock, WebLimits(access_answers_max=10))
    broker.allowed = {("t0", NAMESPACE): 200}
    for number in range(30):
        await permissions.may_steer(f"t{number}", TOPIC)
        assert await permissions.may_steer("t0", TOPIC)
    assert len(permissions._answers) == 10
    assert broker.asked["t0 " + NAMESPACE] == 1, "used last, so kept"
    assert all(b"t0" not in key for key, _ in permissions._answers)
    await permissions.close()


async def test_not_more_is_asked_at_once_than_so_much(permissions: PulsarPermissions, broker: Broker) -> None:
    topics = [TopicName.parse(f"acme/orders/{number}") for number in range(200)]
    await asyncio.gather(*(permissions.may_see("t", topic) for topic in topics))
    assert 1 < broker.most_at_once <= LIMITS.access_questions_at_once


async def test_the_token_goes_with_a_redirect(
    servers: list[TestServer], permissions: PulsarPermissions, broker: Broker
) -> None:
    owner = Broker()
    owner.allowed = {("t", SUBSCRIPTIONS): 200}
    broker.leads_to = await started(servers, owner)
    assert await permissions.may_see("t", TOPIC)
    broker.leads_to = str(servers[0].make_url("")).rstrip("/")
    with pytest.raises(BrokerSilent, match="redirects without end"):
        await permissions.may_see("u", TOPIC)


@pytest.mark.parametrize("status", [500, 503, 412, 429, 300])
async def test_other_answers_allow_nothing_and_are_not_kept(
    permissions: PulsarPermissions, broker: Broker, status: int
) -> None:
    broker.status = status
    with pytest.raises(BrokerSilent, match=str(status)):
        await permissions.may_steer("t", TOPIC)
    broker.status = 200
    assert await permissions.may_steer("t", TOPIC)


async def test_a_broker_that_takes_any_token_vouches_for_nobody(
    permissions: PulsarPermissions, broker: Broker, clock: Clock
) -> None:
    broker.takes_any_token = True
    with pytest.raises(BrokerSilent, match="takes any token for valid"):
        await permissions.accepts("t")
    broker.takes_any_token = False
    broker.allowed = {("t", VERSION): 200}
    assert await permissions.accepts("t")
    broker.takes_any_token = True
    clock.now = LIMITS.access_list_lasts_s
    with pytest.raises(BrokerSilent):
        await permissions.accepts("t")


async def test_a_broker_that_is_not_there(clock: Clock) -> None:
    permissions = PulsarPermissions("http://127.0.0.1:1", clock, LIMITS)
    with pytest.raises(BrokerSilent, match="cannot ask the broker"):
        await permissions.may_see("t", TOPIC)
    await permissions.close()


@pytest.mark.parametrize("name", ["persistent://../brokers/t", "persistent://acme/../t", "persistent://acme/orders/.."])
async def test_dots_lead_to_no_other_path(permissions: PulsarPermissions, broker: Broker, name: str) -> None:
    broker.status = 200
    topic = TopicName.parse(name)
    assert not await permissions.may_see("t", topic)
    assert not await permissions.may_steer("t", topic)
    assert not broker.asked


async def test_names_are_encoded(permissions: PulsarPermissions, broker: Broker) -> None:
    await permissions.may_see("t", TopicName("persistent", "a/b", "c?d", "e#f/../g"))
    assert set(broker.asked) == {
        "t /admin/v2/namespaces/a%2Fb/c%3Fd/permissions",
        "t /admin/v2/persistent/a%2Fb/c%3Fd/e%23f%2F..%2Fg/subscriptions",
    }
