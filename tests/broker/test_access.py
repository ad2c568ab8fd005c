"""A broker with authentication and authorization: clients with their own tokens, and who may see and steer."""

import asyncio
import base64
import contextlib
import dataclasses
import json
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pulsar as official
import pytest
from pydantic import SecretStr

import bridge.core
from bridge.app import Bridge
from bridge.broker.connection import BrokerError
from bridge.broker.connection import connect as connect_to_broker
from bridge.cli import main
from bridge.config import Settings
from bridge.limits import Limits
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe, ServerError
from spark_jobs.errors import LedgerReadError, NotYet
from spark_jobs.ledgers.access import ClusterAccess
from spark_jobs.ledgers.admin import topic_state
from spark_jobs.ledgers.connection import connect_to_owner
from tests.bridge_process import BridgeProcess, now_ms
from tests.clients import Clients, publish, receive, rest_path, shared
from tests.cluster import PulsarCluster
from tests.helpers import wait_until, wait_until_async
from tests.raw_client import raw_client
from tests.secured import (
    NAMESPACE,
    ROLES,
    TENANT,
    allow,
    broker_config,
    call,
    disallow,
    done,
    expired_token_of,
    forged_token_of,
    some_topic_of,
    token_of,
)

LIMITS = {"access_list_lasts_s": 0.3, "access_answer_lasts_s": 0.1}
REST = "/admin/v2/delayed"
WEB_TOKEN, READ_TOKEN = "web-token-of-the-tests", "read-token-of-the-tests"
MANY = 300


class Answer(NamedTuple):
    status: int
    headers: Any
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class Scene:
    """A broker that checks, a bridge in front of it, and everything the bridge has answered."""

    def __init__(self, broker: PulsarCluster, bridge: BridgeProcess) -> None:
        self.broker, self.bridge = broker, bridge
        self.answers: list[str] = []
        self._http = urllib.request.build_opener(_NoRedirects)

    def web(
        self, method: str, path: str, token: str | None = None, form: dict[str, str] | None = None, **headers: str
    ) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            named["Authorization"] = f"Bearer {token}"
        data = None if form is None else urllib.parse.urlencode(form).encode()
        request = urllib.request.Request(self.bridge.web_url + path, data, named, method=method)
        try:
            with self._http.open(request, timeout=30) as answer:
                found = Answer(answer.status, answer.headers, answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                found = Answer(error.code, error.headers, error.read().decode())
        self.answers.append(f"{found.headers}{found.text}")
        return found

    def topics(self, token: str) -> set[str]:
        return {each["topic"] for each in self.web("GET", f"{REST}/topics", token).json}


@pytest.fixture(scope="module")
def scene(secured: PulsarCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder, token = tmp_path_factory.mktemp("bridge"), token_of("bridge")
    process = BridgeProcess(secured, folder, LIMITS, access="pulsar", broker_token=token).start()
    yield Scene(secured, process)
    process.stop()


def new_topic(namespace: str = NAMESPACE) -> str:
    return some_topic_of(namespace)


def connect(clients: Clients, url: str, token: str | None) -> Any:
    authentication = None if token is None else official.AuthenticationToken(token)
    return clients.connect(url, authentication=authentication, operation_timeout_seconds=5)


@pytest.fixture
def tracked(scene: Scene, clients: Clients) -> str:
    """A topic that the bridge tracks."""
    topic = new_topic()
    shared(connect(clients, scene.bridge.service_url, token_of("consumer")), topic)
    wait_until(lambda: topic in scene.topics(token_of("admin")), "the topic is tracked")
    path = f"{REST}/{rest_path(topic)}"

    def at_rest() -> bool:
        stats, rebuild = (scene.web("GET", f"{path}/{what}", token_of("admin")) for what in ("stats", "rebuild"))
        return stats.json["role"] == "owner" and (rebuild.status == 404 or rebuild.json.get("finishedAt") is not None)

    wait_until(at_rest, "the bridge owns it, and nothing is missing", timeout=30)
    return topic


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(str(ended.value.code or 0))


# -- clients


def test_messages_arrive_with_the_clients_own_tokens(scene: Scene, clients: Clients) -> None:
    """The bridge has permission to consume in the namespace, nothing else."""
    topic = new_topic()
    consumer = shared(connect(clients, scene.bridge.service_url, token_of("consumer")), topic)
    producer = connect(clients, scene.bridge.service_url, token_of("producer")).create_producer(topic)
    at = now_ms() + 1_000
    publish(producer, ["delayed"], deliver_at=at)
    publish(producer, ["now"])
    assert receive(consumer).text == "now"
    delayed = receive(consumer)
    assert (delayed.text, delayed.at_ms >= at) == ("delayed", True)


def test_who_may_not_gets_the_brokers_error(scene: Scene, clients: Clients) -> None:
    """The same through the bridge as without it."""
    topic = new_topic()
    for url in (scene.bridge.service_url, scene.broker.service_url):
        for role, what in (("producer", "subscribe"), ("nobody", "subscribe"), ("consumer", "produce")):
            client = connect(clients, url, token_of(role))
            with pytest.raises(official.AuthorizationError):
                shared(client, topic) if what == "subscribe" else client.create_producer(topic)


@pytest.mark.parametrize("token", [None, "nonsense", forged_token_of("admin"), expired_token_of("admin")])
async def test_who_is_not_known_gets_the_brokers_error(scene: Scene, token: str | None) -> None:
    """Told in answer to CONNECT; official clients try again until their time is over."""
    for url in (scene.bridge.service_url, scene.broker.service_url):
        with pytest.raises(BrokerError) as caught:
            await connect_to_broker(url, Limits().connections, token)
        assert caught.value.code == ServerError.AuthenticationError, url


@pytest.mark.parametrize("elsewhere", [BaseCommand.CLOSE_CONSUMER, BaseCommand.CLOSE_PRODUCER])
async def test_who_may_only_produce_gets_no_message(
    scene: Scene, clients: Clients, elsewhere: BaseCommand.Type
) -> None:
    """Not by having a refused SUBSCRIBE answered by the SUCCESS of another command with the same request id."""
    topic = new_topic()
    consumer = await asyncio.to_thread(shared, connect(clients, scene.bridge.service_url, token_of("consumer")), topic)
    await asyncio.to_thread(consumer.close)
    intruder = await raw_client(scene.bridge.service_url, handshake=False)
    await intruder.handshake(auth_method_name="token", auth_data=token_of("producer").encode())
    await intruder.produce(topic)
    await intruder.publish(b"secret")
    subscribe = CommandSubscribe(topic=topic, subscription="s", consumer_id=1, request_id=50, consumer_name="x")
    subscribe.subType = CommandSubscribe.Shared
    intruder.send(BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=subscribe))
    for number in range(10, 20):
        if elsewhere == BaseCommand.CLOSE_CONSUMER:
            close: dict[str, Any] = {"close_consumer": {"consumer_id": number, "request_id": 50}}
        else:
            close = {"close_producer": {"producer_id": number, "request_id": 50}}
        intruder.send(BaseCommand(type=elsewhere, **close))
    with contextlib.suppress(AssertionError):  # the connection is closed
        for _ in range(50):
            intruder.flow(100)
            await asyncio.sleep(0.01)
    assert intruder.messages.empty()
    assert intruder.lost.done()


def test_the_bridge_may_be_allowed_a_single_topic(scene: Scene, clients: Clients) -> None:
    """Before it is, its reason is in the log; then all goes on by itself."""
    namespace = f"{TENANT}/n-{uuid.uuid4().hex[:6]}"
    topic = new_topic(namespace)
    done(scene.broker, "PUT", f"namespaces/{namespace}", {})
    for role, action in (("consumer", "consume"), ("producer", "produce")):
        allow(scene.broker, role, action, where=f"namespaces/{namespace}")
    consumer = shared(connect(clients, scene.bridge.service_url, token_of("consumer")), topic)
    producer = connect(clients, scene.bridge.service_url, token_of("producer")).create_producer(topic)
    publish(producer, ["waits"])

    def refused() -> bool:
        lines = [line for line in scene.bridge.log().splitlines() if topic in line]
        return any("topic is not served" in line and "authorized" in line for line in lines)

    wait_until(refused, "the reason in the log")
    assert scene.web("PUT", f"{REST}/{rest_path(topic)}/rebuild", token_of("tenant-admin")).status == 409
    allow(scene.broker, "bridge", "consume", where=rest_path(topic))
    assert receive(consumer).text == "waits"


# -- the web server


def test_what_the_broker_asks_of_the_calls_that_tell_permissions(scene: Scene, tracked: str) -> None:
    """What `bridge.web.access.pulsar_permissions` is built on."""
    needs = {
        "brokers/version": set(ROLES),
        "tenants": {"admin"},
        f"namespaces/{NAMESPACE}/permissions": {"admin", "tenant-admin"},
        f"{rest_path(tracked)}/subscriptions": {"admin", "tenant-admin", "bridge", "consumer"},
        f"{rest_path(tracked)}/stats": {"admin", "tenant-admin", "bridge", "consumer", "producer"},
    }
    for path, allowed in needs.items():
        found = {role: call(scene.broker.web_url, "GET", path, role)[0] for role in ROLES}
        assert {role for role, status in found.items() if status == 200} == allowed, path
        assert {status for role, status in found.items() if role not in allowed} <= {401, 403}, path
        assert call(scene.broker.web_url, "GET", path, None)[0] == 401


@pytest.mark.parametrize(
    ("role", "sees", "steers"),
    [
        ("admin", True, True),
        ("tenant-admin", True, True),
        ("bridge", True, False),
        ("consumer", True, False),
        ("producer", False, False),
        ("nobody", False, False),
    ],
)
def test_roles_see_and_steer_as_the_broker_lets_them(
    scene: Scene, tracked: str, role: str, sees: bool, steers: bool
) -> None:
    token, path = token_of(role), f"{REST}/{rest_path(tracked)}"
    assert (tracked in scene.topics(token)) == sees
    for what in ("stats", "partitions"):
        assert scene.web("GET", f"{path}/{what}", token).status == (200 if sees else 403)
    if not sees:
        said = scene.web("GET", f"{path}/stats", token).json["reason"]
        assert said == f"role {role!r} may not see {tracked}: that needs permission to consume"
    for method, what, allowed in (
        ("PUT", "audit", {202}),
        ("PUT", "rebuild", {202, 409}),
        ("DELETE", "rebuild", {202, 409}),
    ):
        answer = scene.web(method, f"{path}/{what}", token)
        if steers:
            assert answer.status in allowed, answer
        else:
            said = f"role {role!r} may not steer {tracked}: that needs an admin role of tenant {TENANT}"
            assert (answer.status, answer.json["reason"]) == (403, said)
    acts = [each for each in scene.web("GET", f"{REST}/actions?limit=1000", token).json if each["topic"] == tracked]
    assert [(each["actor"], each["peer"]) for each in acts if each["action"] == "audit"] == (
        [(role, "127.0.0.1")] if steers else []
    )
    assert scene.web("GET", "/metrics", token).status == 200


@pytest.mark.parametrize("token", [None, "", "nonsense", forged_token_of("admin"), expired_token_of("admin")])
def test_who_is_not_known_gets_nothing(scene: Scene, tracked: str, token: str | None) -> None:
    path = f"{REST}/{rest_path(tracked)}"
    for method, what in (("GET", "/stats"), ("PUT", "/rebuild"), ("DELETE", "/rebuild"), ("GET", "/rebuild")):
        answer = scene.web(method, path + what, token)
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, 'Bearer realm="delay-bridge"')
    for what in (f"{REST}/topics", f"{REST}/actions", "/metrics"):
        assert scene.web("GET", what, token).status == 401
    for what in ("/healthz", "/readyz"):
        assert scene.web("GET", what, token).status == 200


def test_permissions_count_from_when_they_are_given_or_taken(scene: Scene, tracked: str) -> None:
    role = f"r-{uuid.uuid4().hex[:6]}"
    token, where = token_of(role), rest_path(tracked)

    def sees() -> bool:
        status = scene.web("GET", f"{REST}/{where}/stats", token).status
        assert status in (200, 403)
        assert (tracked in scene.topics(token)) == (status == 200) or status == 200
        return status == 200

    assert not sees()
    allow(scene.broker, role, "consume", where=where)
    wait_until(sees, "the permission counts")
    assert scene.topics(token) == {tracked}, "and no other topic"
    disallow(scene.broker, role, where)
    wait_until(lambda: not sees(), "the permission is gone")


def test_a_permission_on_a_partitioned_topic_is_one_on_its_partitions(scene: Scene, clients: Clients) -> None:
    role, topic = f"r-{uuid.uuid4().hex[:6]}", new_topic()
    done(scene.broker, "PUT", f"{rest_path(topic)}/partitions", 2)
    allow(scene.broker, role, "consume", where=rest_path(topic))
    shared(connect(clients, scene.bridge.service_url, token_of(role)), topic)
    partitions = {f"{topic}-partition-{number}" for number in range(2)}
    wait_until(lambda: partitions <= scene.topics(token_of("admin")), "the partitions are tracked")
    wait_until(lambda: scene.topics(token_of(role)) == partitions, "they are seen")
    assert not partitions & scene.topics(token_of("nobody"))


def test_log_in_with_a_browser(scene: Scene, tracked: str) -> None:
    token, page = token_of("tenant-admin"), f"{REST}/{rest_path(tracked)}/stats"
    led = scene.web("GET", "/", Accept="text/html")
    assert (led.status, led.headers["Location"]) == (303, "/login?next=/")
    assert 'type="password"' in scene.web("GET", "/login?next=/").text
    for wrong in (forged_token_of("tenant-admin"), expired_token_of("tenant-admin"), "", "two\nlines"):
        answer = scene.web("POST", "/login", form={"token": wrong})
        assert (answer.status, answer.headers["Set-Cookie"]) == (401, None)
    answer = scene.web("POST", "/login", form={"token": token, "next": page})
    assert (answer.status, answer.headers["Location"]) == (303, page)
    cookie, *rest = answer.headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "Path=/", "SameSite=Strict"} <= set(rest)
    assert scene.web("GET", page, Cookie=cookie).status == 200
    origin = scene.bridge.web_url
    assert scene.web("DELETE", f"{REST}/{rest_path(tracked)}/rebuild", Cookie=cookie, Origin=origin).status == 409
    rebuild = f"{REST}/{rest_path(tracked)}/rebuild"
    for refused in (
        scene.web("PUT", rebuild, Cookie=cookie, Origin="http://evil.example"),
        scene.web("PUT", rebuild, Cookie=cookie, Sec_Fetch_Site="cross-site"),
    ):
        assert (refused.status, "another site" in refused.text) == (403, True)
    assert scene.web("POST", "/logout", Cookie=cookie).status == 303
    assert scene.web("GET", page, Cookie=cookie).status == 401


def test_the_command_line_says_who_asks(
    scene: Scene,
    tracked: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    here = ["--admin-url", scene.bridge.web_url]
    monkeypatch.delenv("DELAY_BRIDGE_AUTH_PARAMS", raising=False)
    assert run("topics", *here) == 1
    assert "401 a valid token is needed" in capsys.readouterr().err
    file = tmp_path / "token"
    file.write_text(token_of("consumer") + "\n")
    assert run("topics", *here, "--auth-params", f"file:{file}") == 0
    assert tracked in capsys.readouterr().out
    assert run("rebuild", *here, "--auth-params", f"file://{file}", tracked) == 1
    said = capsys.readouterr().err
    assert f"403 role 'consumer' may not steer {tracked}: that needs an admin role of tenant {TENANT}" in said
    monkeypatch.setenv("DELAY_BRIDGE_AUTH_PARAMS", f"token:{token_of('tenant-admin')}")
    assert run("audit", *here, tracked) == 0
    assert run("rebuild", "--wait", *here, tracked) == 0
    assert run("rebuild-status", *here, tracked) == 0
    for wrong, expected in (
        ("basic:x", "expected token:TOKEN or file:PATH"),
        ("token:", "what is given there is no token"),
        ("file:/nowhere", "cannot read the token file /nowhere"),
        ("token:two words", "what is given there is no token"),
    ):
        capsys.readouterr()
        assert run("topics", *here, "--auth-params", wrong) == 1
        assert expected in capsys.readouterr().err


def test_metrics_are_for_tokens_of_their_own_where_such_are_set(scene: Scene, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "web_token": WEB_TOKEN,
        "web_read_token": READ_TOKEN,
        "broker_token": token_of("bridge"),
    }
    process = BridgeProcess(scene.broker, tmp_path, access="pulsar", **settings).start()
    try:
        other = Scene(scene.broker, process)
        other.answers = scene.answers
        assert other.web("GET", "/metrics", READ_TOKEN).status == 200
        assert other.web("GET", "/metrics", token_of("admin")).status == 401
        assert other.web("GET", f"{REST}/topics", READ_TOKEN).status == 401
        assert other.web("GET", f"{REST}/topics", token_of("nobody")).json == []
    finally:
        process.stop()
    for secret in (WEB_TOKEN, READ_TOKEN, token_of("admin"), token_of("bridge")):
        assert secret not in process.log()


# -- jobs


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (token_of("nobody"), r"no permission \(401 Unauthorized to .*GET_STATS"),
        (forged_token_of("admin"), r"not authenticated \(401 "),
        (None, r"not authenticated \(401 "),
    ],
)
def test_a_job_says_what_its_token_lacks(scene: Scene, tracked: str, token: str | None, said: str) -> None:
    """And it does not try again what will not work a moment later."""
    access = ClusterAccess(scene.broker.service_url, scene.broker.web_url, token)
    with pytest.raises(LedgerReadError, match=f"{tracked}: {said}") as caught:
        topic_state(access, tracked)
    assert not isinstance(caught.value, NotYet)
    kind = "AuthorizationError" if token == token_of("nobody") else "AuthenticationError"
    with pytest.raises(LedgerReadError, match=kind) as caught:
        connect_to_owner(access, tracked)
    assert not isinstance(caught.value, NotYet)


async def test_a_job_without_permission_changes_nothing(
    scene: Scene,
    tmp_path: Path,
    clients: Clients,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its role may see that there are ledgers, not read them. The bridge, whose role may, reads in its place."""
    own = bridge.core._spark_settings
    monkeypatch.setattr(
        bridge.core, "_spark_settings", lambda given: dataclasses.replace(own(given), token=token_of("producer"))
    )
    values: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "web_port": 0, "data_dir": tmp_path / "data"}
    values |= {"broker_service_url": scene.broker.service_url, "broker_web_url": scene.broker.web_url}
    here = Bridge(Settings(**values, broker_token=SecretStr(token_of("bridge")), spark_master="local[1]"), Limits())
    await here.start()
    topic = new_topic()

    def fill() -> None:
        shared(connect(clients, here.advertised_url, token_of("consumer")), topic)
        producer = connect(clients, here.advertised_url, token_of("producer")).create_producer(topic)
        publish(producer, map(str, range(MANY)), deliver_at=now_ms() + 3_600_000)

    def entries() -> int:
        known = None if here.topics is None else here.topics.get(topic)
        return 0 if known is None or known.index is None else known.index.entries

    try:
        await asyncio.to_thread(fill)
        await wait_until_async(lambda: entries() == MANY, "entries in the index", timeout=30)
        where = ["--admin-url", f"http://127.0.0.1:{here.web_port}", topic]
        assert await asyncio.to_thread(run, "rebuild", "--wait", "--engine", "spark", *where) == 0
        said = capsys.readouterr().out
        reason = "read in the bridge, for the job failed: "
        assert "AuthorizationError: Client is not authorized to" in said.partition(reason)[2]
        assert "the gap is read here, the rebuild failed" in said
        assert f"index and topic hold the same {MANY} entries" in said
        assert entries() == MANY
        assert token_of("producer") not in said
    finally:
        await asyncio.to_thread(clients.close)
        await here.stop()


# -- secrets


def test_secrets_are_in_no_log_and_no_answer(scene: Scene, tracked: str) -> None:
    """Of all that went on before in this module."""
    scene.web("GET", f"{REST}/{rest_path(tracked)}/stats", token_of("consumer"))
    scene.web("POST", "/login", form={"token": token_of("consumer"), "next": f"/{token_of('consumer')[:5]}"})
    signatures = {token_of(role).rpartition(".")[2] for role in ROLES}
    signatures |= {make(role).rpartition(".")[2] for make in (forged_token_of,) for role in ROLES}
    secret = broker_config()["tokenSecretKey"].rpartition(",")[2]
    hidden = {*signatures, secret, base64.b64decode(secret).hex(), WEB_TOKEN, READ_TOKEN}
    log = scene.bridge.log()
    assert "request refused" in log
    acts = (scene.bridge.data_dir / "actions.log").read_text()
    assert "tenant-admin" in acts
    for place in (log, acts, *scene.answers):
        assert not [one for one in hidden if one in place]
