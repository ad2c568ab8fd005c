"""Lookups: redirects followed as a client would, the answer names the bridge and nothing else."""

import asyncio
from typing import cast

import pytest

from bridge.broker.connection import BrokerError
from bridge.broker.pool import BrokerPool
from bridge.gateway.client_commands import Tracking, refuse_reserved
from bridge.gateway.lookups import Lookups
from bridge.gateway.requests import GATEWAY_REQUEST_ID_BASE
from bridge.gateway.upstream import Upstream
from bridge.limits import ConnectionLimits
from bridge.protocol.frames import FrameDecoder
from bridge.protocol.lookup import REDIRECTS_MAX, Ask, Found, Refused, led_to, next_step
from bridge.protocol.pulsar_pb2 import (
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandSubscribe,
    ServerError,
)
from bridge.protocol.service_url import ServiceUrls

Connect = CommandLookupTopicResponse.Connect
Redirect = CommandLookupTopicResponse.Redirect
Failed = CommandLookupTopicResponse.Failed

FIRST = "pulsar://first:6650"
FIRST_TLS = "pulsar+ssl://first:6651"
TOPIC = "persistent://public/default/t"
USUAL = ConnectionLimits()


class Brokers:
    """Answers lookups by a script per URL; the last answer of each is repeated."""

    def __init__(self, limits: ConnectionLimits = USUAL, **answers: list[CommandLookupTopicResponse]) -> None:
        self.answers = {f"pulsar://{name}:6650": list(script) for name, script in answers.items()}
        self.asked: list[tuple[str, CommandLookupTopic]] = []
        self.lookups = Lookups(FIRST, self.connect, limits)

    async def connect(self, url: str) -> Upstream:
        if url not in self.answers:
            raise BrokerError(f"cannot reach {url}")
        return cast(Upstream, FakeUpstream(url, self))

    def ask(self, url: str, request: CommandLookupTopic) -> None:
        self.asked.append((url, request))
        script = self.answers[url]
        if not script:
            return
        answer = CommandLookupTopicResponse()
        answer.CopyFrom(script.pop(0) if len(script) > 1 else script[0])
        answer.request_id = request.request_id
        asyncio.get_running_loop().call_soon(self.lookups.answered, answer)


class FakeUpstream:
    def __init__(self, url: str, brokers: Brokers) -> None:
        self.url = url
        self._brokers = brokers

    def write(self, data: bytes) -> None:
        (frame,) = FrameDecoder().feed(data)
        self._brokers.ask(self.url, frame.command().lookupTopic)


def answer(kind: "CommandLookupTopicResponse.LookupType", to: str = "", **fields: object) -> CommandLookupTopicResponse:
    response = CommandLookupTopicResponse(request_id=0, response=kind)
    if to:
        response.brokerServiceUrl = f"pulsar://{to}:6650"
    for name, value in fields.items():
        setattr(response, name, value)
    return response


def request(**fields: object) -> CommandLookupTopic:
    result = CommandLookupTopic(topic=TOPIC, request_id=7)
    for name, value in fields.items():
        setattr(result, name, value)
    return result


async def test_the_owner_is_remembered() -> None:
    brokers = Brokers(first=[answer(Connect, "owner")], owner=[])
    assert await brokers.lookups.resolve(request()) == Found("pulsar://owner:6650")
    assert (await brokers.lookups.upstream_of(TOPIC)).url == "pulsar://owner:6650"
    assert len(brokers.asked) == 1


async def test_redirects_are_followed_with_their_authority() -> None:
    brokers = Brokers(
        first=[answer(Redirect, "second", authoritative=True)],
        second=[answer(Redirect, "third", authoritative=False)],
        third=[answer(Connect, "owner")],
        owner=[],
    )
    await brokers.lookups.resolve(request(original_principal="somebody"))
    assert [(url, each.authoritative) for url, each in brokers.asked] == [
        (FIRST, False),
        ("pulsar://second:6650", True),
        ("pulsar://third:6650", False),
    ]
    assert {each.original_principal for _, each in brokers.asked} == {"somebody"}


async def test_a_broker_that_wants_to_be_asked_through_its_service_url() -> None:
    """Standalone on loopback: the address it names may be one nobody reaches."""
    brokers = Brokers(first=[answer(Connect, "unreachable", proxy_through_service_url=True)])
    await brokers.lookups.resolve(request())
    assert (await brokers.lookups.upstream_of(TOPIC)).url == FIRST


async def test_refusals_are_given_back_and_not_remembered() -> None:
    refusal = answer(Failed, error=ServerError.TopicNotFound, message="not there")
    brokers = Brokers(first=[refusal, refusal, answer(Connect, "owner")], owner=[])
    assert await brokers.lookups.resolve(request()) == Refused(ServerError.TopicNotFound, "not there")
    with pytest.raises(BrokerError, match="not there") as caught:
        await brokers.lookups.upstream_of(TOPIC)
    assert (caught.value.code, caught.value.message) == (ServerError.TopicNotFound, "not there")
    assert (await brokers.lookups.upstream_of(TOPIC)).url == "pulsar://owner:6650"


async def test_who_may_not_look_up_is_answered_by_the_first_broker() -> None:
    """Each time anew, until the permission is there."""
    refusal = answer(Failed, error=ServerError.AuthorizationError, message="not yours")
    brokers = Brokers(first=[refusal, refusal, answer(Connect, "owner")], owner=[])
    assert await brokers.lookups.resolve(request()) == Refused(ServerError.AuthorizationError, "not yours")
    assert (await brokers.lookups.upstream_of(TOPIC)).url == FIRST
    assert (await brokers.lookups.upstream_of(TOPIC)).url == "pulsar://owner:6650"


async def test_endless_redirects() -> None:
    brokers = Brokers(first=[answer(Redirect, "first")])
    refused = await brokers.lookups.resolve(request())
    assert isinstance(refused, Refused)
    assert refused.code == ServerError.ServiceNotReady
    assert str(REDIRECTS_MAX) in refused.message
    assert len(brokers.asked) == REDIRECTS_MAX
    with pytest.raises(BrokerError, match="redirected"):
        await brokers.lookups.upstream_of(TOPIC)


async def test_a_redirect_to_nowhere() -> None:
    brokers = Brokers(first=[answer(Redirect, "gone")])
    with pytest.raises(BrokerError, match="gone"):
        await brokers.lookups.resolve(request())


async def test_a_broker_that_does_not_answer() -> None:
    brokers = Brokers(ConnectionLimits(request_timeout_s=0.05), first=[])
    with pytest.raises(BrokerError, match="did not answer") as caught:
        await brokers.lookups.resolve(request())
    assert caught.value.code == ServerError.ServiceNotReady


async def test_answers_nobody_asked_for() -> None:
    brokers = Brokers(first=[answer(Connect, "owner")])
    assert not brokers.lookups.answered(answer(Connect))
    await brokers.lookups.resolve(request())
    assert not brokers.lookups.answered(answer(Connect))


async def test_request_ids_are_not_the_clients() -> None:
    brokers = Brokers(first=[answer(Connect, "owner")], owner=[])
    await asyncio.gather(*(brokers.lookups.resolve(request(topic=f"{TOPIC}{n}")) for n in range(5)))
    ids = [each.request_id for _, each in brokers.asked]
    assert len(set(ids)) == 5
    assert min(ids) > GATEWAY_REQUEST_ID_BASE


# -- what to do about an answer


@pytest.mark.parametrize(("asked", "taken"), [(FIRST, "pulsar://owner:6650"), (FIRST_TLS, "pulsar+ssl://owner:6651")])
@pytest.mark.parametrize("kind", [Connect, Redirect])
def test_tls_is_kept_to(kind: "CommandLookupTopicResponse.LookupType", asked: str, taken: str) -> None:
    step = next_step(Ask(asked), answer(kind, "owner", brokerServiceUrlTls="pulsar+ssl://owner:6651"), TOPIC)
    assert isinstance(step, Found | Ask)
    assert step.url == taken


def test_a_broker_with_one_of_the_two_urls() -> None:
    assert next_step(Ask(FIRST_TLS), answer(Connect, "owner"), TOPIC) == Found("pulsar://owner:6650")
    only_tls = answer(Connect, brokerServiceUrlTls="pulsar+ssl://owner:6651")
    assert next_step(Ask(FIRST), only_tls, TOPIC) == Found("pulsar+ssl://owner:6651")


def test_an_owner_behind_a_proxy() -> None:
    answered = answer(Connect, "owner", proxy_through_service_url=True, authoritative=True)
    assert next_step(Ask(FIRST), answered, TOPIC) == Found(FIRST, "pulsar://owner:6650", authoritative=True)


async def test_a_broker_that_names_nobody() -> None:
    """The service URL is no stand-in for it."""
    assert next_step(Ask(FIRST), answer(Connect), TOPIC) == Found("")
    with pytest.raises(BrokerError, match="not a service URL: ''"):
        await BrokerPool(FIRST, USUAL).connection("")


# -- what the client is told

BOTH, ONLY_TLS = ServiceUrls(FIRST, FIRST_TLS), ServiceUrls.of(FIRST_TLS, None)


@pytest.mark.parametrize(
    ("owner", "by_tls", "url"),
    [(BOTH, True, FIRST_TLS), (BOTH, False, FIRST), (ServiceUrls(FIRST), False, FIRST), (ONLY_TLS, True, FIRST_TLS)],
)
@pytest.mark.parametrize("authoritative", [True, False])
def test_a_client_goes_on_as_it_came(owner: ServiceUrls, by_tls: bool, url: str, authoritative: bool) -> None:
    found = Found("pulsar://broker:6650", "pulsar://behind:6650", authoritative)
    assert led_to(found, owner, by_tls, TOPIC) == Found(url, None, authoritative)


@pytest.mark.parametrize(
    ("owner", "by_tls", "how"), [(ServiceUrls.of(FIRST, None), True, "with TLS"), (ONLY_TLS, False, "without TLS")]
)
def test_a_client_is_told_when_it_cannot(owner: ServiceUrls, by_tls: bool, how: str) -> None:
    refused = led_to(Found("pulsar://broker:6650"), owner, by_tls, TOPIC)
    assert isinstance(refused, Refused)
    assert refused.code == ServerError.ServiceNotReady
    assert f"the bridge that owns {TOPIC}, {owner.name}, is not known to serve clients {how}" in refused.message


# -- what is taken over


@pytest.mark.parametrize(
    ("fields", "tracked"),
    [
        ({}, True),
        ({"topic": "short"}, True),
        ({"topic": "non-persistent://public/default/t"}, False),
        ({"durable": False}, False),
        ({"subType": CommandSubscribe.Exclusive}, False),
        ({"subType": CommandSubscribe.Failover}, False),
    ],
)
def test_durable_shared_subscriptions_are_taken_over(fields: dict[str, object], tracked: bool) -> None:
    command = CommandSubscribe(
        topic=TOPIC, subscription="s", subType=CommandSubscribe.Shared, consumer_id=1, request_id=1
    )
    for name, value in fields.items():
        setattr(command, name, value)
    assert Tracking().takes(command) == tracked


@pytest.mark.parametrize("name", ["__delay-bridge", "__delay-bridge-reader-1"])
def test_the_bridges_own_subscriptions_are_refused(name: str) -> None:
    command = CommandSubscribe(
        topic=TOPIC, subscription=name, subType=CommandSubscribe.Shared, consumer_id=1, request_id=1
    )
    with pytest.raises(BrokerError, match=name):
        refuse_reserved(command)
    command.subscription = "s"
    refuse_reserved(command)
