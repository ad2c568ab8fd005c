"""Whatever the broker's admin interface answers is understood, or the call has failed and says why."""

import copy
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bridge.broker.admin import AdminClient, AdminError
from bridge.broker.answers import TopicStats
from bridge.broker.candidates import Candidates, Peers
from bridge.ledgers.internal_stats import LedgerState
from bridge.limits import ConnectionLimits, OperatorLimits
from bridge.operate.outlook import Outlook
from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from tracker import AckSet, Position, parse_ranges

TOPIC = "persistent://public/default/t"
OWN_URL = "pulsar://bridge:6650"

CONSUMER = {
    "consumerName": OWN_URL,
    "appId": "bridge",
    "connectedSince": "2026-11-22T10:16:10.959Z",
    "metadata": {"web-url": "http://bridge:8081"},
}
STATS: dict[str, Any] = {
    "backlogSize": 317,
    "publishers": [{"producerName": "p"}],
    "subscriptions": {
        "s": {
            "backlogSize": 17,
            "consumers": [{"consumerName": "c", "metadata": {"__delay-bridge": "the-mark"}}, {"consumerName": "d"}],
        },
        HIDDEN_SUBSCRIPTION: {"backlogSize": 0, "activeConsumerName": OWN_URL, "consumers": [CONSUMER]},
    },
}
INTERNAL_STATS: dict[str, Any] = {
    "currentLedgerEntries": 7,
    "lastConfirmedEntry": "136:6",
    "ledgers": [{"ledgerId": 130, "entries": 5}, {"ledgerId": 136, "entries": 0}],
    "cursors": {
        "s": {
            "markDeletePosition": "136:2",
            "readPosition": "136:7",
            "individuallyDeletedMessages": "[(136:3..136:5]]",
            "properties": {"delay-bridge-history": 3794945430236830426},
        },
        HIDDEN_SUBSCRIPTION: {
            "markDeletePosition": "136:6",
            "readPosition": "136:7",
            "individuallyDeletedMessages": "[]",
            "properties": {"delay-bridge-topic": 42881467656193857},
        },
    },
}
QUOTAS = {
    "destination_storage": {"limit": 10737418240, "limitSize": 10737418240, "limitTime": -1},
    "message_age": {"limitTime": 60},
}

Call = Callable[[AdminClient], Awaitable[Any]]

CALLS: dict[str, tuple[Call, Any]] = {
    "internalStats": (lambda admin: admin.internal_stats(TOPIC), INTERNAL_STATS),
    "candidates": (lambda admin: admin.candidates(TOPIC, HIDDEN_SUBSCRIPTION), STATS),
    "stats": (lambda admin: admin.topic_stats(TOPIC), STATS),
    "marks": (lambda admin: admin.listed_marks(TOPIC, ["the-mark", "another-mark"]), STATS),
    "lastMessageId": (lambda admin: admin.last_position(TOPIC), {"ledgerId": 136, "entryId": 6, "batchIndex": -1}),
    "messageTTL": (lambda admin: admin.message_ttl_s(TOPIC), 3_600),
    "backlogQuotaMap": (lambda admin: admin.backlog_quotas(TOPIC), QUOTAS),
    "delayedDelivery": (lambda admin: admin.delays(TOPIC), {"tickTime": 1000, "active": False}),
}
POLICIES = {"messageTTL", "backlogQuotaMap", "delayedDelivery"}
"""Many roles may not read them: then they are not known."""

ODD: tuple[Any, ...] = (
    None,
    True,
    -7,
    3.5,
    10**30,
    float("inf"),
    "",
    "odd",
    "1:2:3",
    [],
    [None],
    ["x"],
    [[]],
    {},
    {"odd": {}},
    {"a": 1},
)


def places(answer: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in an answer; () is the answer itself."""
    yield path
    inner = answer.items() if isinstance(answer, dict) else enumerate(answer) if isinstance(answer, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


def with_odd(answer: Any, path: tuple[Any, ...], odd: Any) -> Any:
    if not path:
        return odd
    changed = copy.deepcopy(answer)
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = odd
    return changed


def without(answer: Any, path: tuple[Any, ...]) -> Any:
    changed = copy.deepcopy(answer)
    place = changed
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    return changed


def broken(answer: Any) -> Iterator[tuple[str, str]]:
    """Texts in place of an answer: each field missing in turn, and of each wrong type; cut off at each length."""
    for path in places(answer):
        if path:
            yield f"without {path}", json.dumps(without(answer, path))
        for odd in ODD:
            yield f"{odd!r} at {path}", json.dumps(with_odd(answer, path, odd))
    text = json.dumps(answer)
    for length in range(len(text)):
        yield f"cut off after {length}", text[:length]
    yield "a page", "<html><body><h1>502 Bad Gateway</h1></body></html>"
    yield "not a number", '{"subscriptions": NaN, "cursors": Infinity}'


def use(found: Any) -> None:
    """What the bridge does with an answer at once: it must not be surprised later."""
    if isinstance(found, LedgerState):
        assert isinstance(found.subscriptions, set)
        assert found.ledger_sizes is not None
        found.entries_between(Position(1, 1), found.last_confirmed_entry)
        for cursor in found.cursors.values():
            assert isinstance(cursor.individually_deleted, str)
            AckSet(cursor.mark_delete_position).missing_in(AckSet(), found.ledger_sizes)
            assert all(isinstance(value, int) for value in cursor.properties.values())
    elif isinstance(found, Candidates):
        peers = Peers()
        peers.note_own_role(OWN_URL, found)
        peers.judge(TOPIC, OWN_URL, found)
        peers.judge(TOPIC, "pulsar://another:6650", found)
    elif isinstance(found, TopicStats):
        for consumers in found.consumers.values():
            assert sorted(consumers) is not None
            assert all(isinstance(each, str) for each in consumers)
        assert isinstance(found.backlog_bytes, int)
    elif isinstance(found, Position):
        assert found <= found


class Answering(AdminClient):
    """Gets its answers from the test."""

    text = ""

    async def _call_text(self, method: str, path: str, body: object = None) -> str:
        return self.text


@pytest.mark.parametrize("name", CALLS)
async def test_every_answer_is_understood_or_refused(name: str) -> None:
    call, answer = CALLS[name]
    admin = Answering("http://broker:8080", ConnectionLimits())
    admin.text = json.dumps(answer)
    use(await call(admin))
    refused: list[str] = []
    for what, text in broken(answer):
        admin.text = text
        try:
            use(await call(admin))
        except AdminError as error:
            refused.append(str(error))
        except Exception as error:
            raise AssertionError(f"{what}: {text[:200]}") from error
    assert all(re.search(r": the answer cannot be read: .", reason) for reason in refused)
    assert refused or name in POLICIES
    await admin.close()


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("internalStats", ("cursors",)),
        ("internalStats", ("ledgers",)),
        ("internalStats", ("currentLedgerEntries",)),
        ("internalStats", ("lastConfirmedEntry",)),
        ("stats", ("subscriptions",)),
        ("stats", ("publishers",)),
        ("stats", ("subscriptions", "s", "consumers")),
        ("candidates", ("subscriptions",)),
        ("candidates", ("subscriptions", HIDDEN_SUBSCRIPTION, "consumers")),
        ("marks", ("subscriptions",)),
        ("lastMessageId", ("entryId",)),
    ],
)
async def test_what_is_missing_is_not_taken_for_empty(name: str, path: tuple[Any, ...]) -> None:
    """Else subscriptions were forgotten, consumers turned away, a topic let go of, and acks taken for void."""
    call, answer = CALLS[name]
    admin = Answering("http://broker:8080", ConnectionLimits())
    admin.text = json.dumps(without(answer, path))
    with pytest.raises(AdminError, match="cannot be read"):
        await call(admin)
    await admin.close()


async def test_a_cursor_that_cannot_be_read_does_not_stand_in_the_way_of_others() -> None:
    admin = Answering("http://broker:8080", ConnectionLimits())
    cursor = ("cursors", "s")
    for path in places(INTERNAL_STATS["cursors"]["s"], cursor):
        for odd in ODD:
            admin.text = json.dumps(with_odd(INTERNAL_STATS, path, odd), allow_nan=True)
            if odd == float("inf"):  # that is no JSON
                continue
            found = await admin.internal_stats(TOPIC)
            assert found.subscriptions == {"s", HIDDEN_SUBSCRIPTION}
            assert HIDDEN_SUBSCRIPTION in found.cursors
    await admin.close()


async def test_policies_that_cannot_be_read_are_not_known() -> None:
    """What watches over them goes on with the rest."""
    admin = Answering("http://broker:8080", ConnectionLimits())
    for what, text in broken(QUOTAS):
        admin.text = text
        assert await admin.message_ttl_s(TOPIC) is None or text.strip().isdecimal(), what
        quotas = await admin.backlog_quotas(TOPIC)
        assert all(hasattr(each, "get") for each in quotas.values()), what
        assert await admin.delays(TOPIC), what
        assert await admin.delays(TOPIC, known=False) is (text.strip() in ("", "null")), what
    await admin.close()


async def test_the_outlook_takes_any_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Answering("http://broker:8080", ConnectionLimits())
    for what, text in broken(QUOTAS):

        async def answer(method: str, path: str, body: object = None, text: str = text) -> str:
            if "lastMessageId" in path:
                return '{"ledgerId": 1, "entryId": 1}'
            return text if "backlogQuotaMap" in path else json.dumps(STATS)

        monkeypatch.setattr(admin, "_call_text", answer)
        stats = await Outlook(TOPIC, {}, OperatorLimits()).ask_broker(admin, None)
        assert stats.publishers == 1, what
    await admin.close()


def test_ranges_are_of_the_kind_that_the_broker_prints() -> None:
    """The answers above are as a broker gave them."""
    ranges = INTERNAL_STATS["cursors"]["s"]["individuallyDeletedMessages"]
    assert parse_ranges(ranges) == [(Position(136, 3), Position(136, 5))]


# -- by HTTP


async def hang_up(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"subscriptions": {')
    assert request.transport is not None
    request.transport.close()
    return response


async def page(request: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>a page of a proxy</html>", content_type="text/html")


async def bad_gateway(request: web.Request) -> web.StreamResponse:
    return web.Response(status=502, text="<html>Bad Gateway</html>", content_type="text/html")


async def empty(request: web.Request) -> web.StreamResponse:
    return web.Response(text="")


async def no_text(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"\xff\xfe{", headers={"Content-Type": "application/json; charset=utf-8"})


async def odd_charset(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"{}", headers={"Content-Type": "application/json; charset=odd"})


async def odd_date(request: web.Request) -> web.StreamResponse:
    return web.Response(text="[]", headers={"Date": "Mon, 99 Foo 0 00:00:00 +99999999999"})


async def in_circles(request: web.Request) -> web.StreamResponse:
    raise web.HTTPTemporaryRedirect(request.raw_path)


async def nowhere(request: web.Request) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": "http://[no-address/"})


async def to_nobody(request: web.Request) -> web.StreamResponse:
    return web.Response(status=307)


BROKEN_SERVERS = (hang_up, page, bad_gateway, empty, no_text, odd_charset, odd_date, in_circles, nowhere, to_nobody)


@pytest.mark.parametrize("serve", BROKEN_SERVERS, ids=lambda each: each.__name__)
async def test_what_stands_between_is_told(serve: Any) -> None:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", serve)
    async with TestServer(app) as server:
        admin = AdminClient(str(server.make_url("")).rstrip("/"), ConnectionLimits())
        try:
            for name, (call, _) in CALLS.items():
                if name in POLICIES:
                    assert await call(admin) in (None, True, {})
                    continue
                with pytest.raises(AdminError):
                    await call(admin)
            if serve not in (empty, page, odd_charset, odd_date):  # whose status says that it was done
                with pytest.raises(AdminError):
                    await admin.create_subscription(TOPIC, HIDDEN_SUBSCRIPTION)
            with pytest.raises(AdminError, match="broker_web_url"):
                await admin.check()
        finally:
            await admin.close()
