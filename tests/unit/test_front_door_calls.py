"""What a request to the broker's HTTP interface is about: pure."""

import pytest
from multidict import CIMultiDict

from bridge.protocol.service_url import ServiceUrls
from bridge.web.front_door import headers
from bridge.web.front_door.calls import Call, Kind, NotAsked, call_of, is_for_clients
from bridge.web.front_door.lookups import NotToldHow, led

T = "persistent://acme/orders/t"
PLAIN, BOTH = ServiceUrls("pulsar://b:1"), ServiceUrls("pulsar://b:1", "pulsar+ssl://b:2")
TOLD = b'{"brokerUrl":"pulsar://broker:6650","httpUrl":"http://broker:8080","nativeUrl":"x","brokerUrlSsl":""}'
WEB = ("http://b:8081", None)


@pytest.mark.parametrize(
    ("path", "call"),
    [
        ("/lookup/v2/topic/persistent/acme/orders/t", Call(Kind.lookup, T)),
        ("/lookup/v2/topic/persistent/acme/orders/t/", Call(Kind.lookup, T)),
        ("/lookup/v2/topic/persistent/acme/orders/a%2Fb%20c", Call(Kind.lookup, "persistent://acme/orders/a/b c")),
        ("/lookup/v2/topic/non-persistent/acme/orders/t", Call(Kind.lookup, "non-persistent://acme/orders/t")),
        ("/lookup/v2/destination/persistent/p/c/n/t", Call(Kind.lookup, "persistent://p/c/n/t")),
        ("/lookup/v2/topic/persistent/acme/orders/t/bundle", Call(Kind.other)),
        ("/lookup/v2/topic/odd/acme/orders/t", Call(Kind.other)),
        ("/admin/v2/persistent/acme/orders/t/partitions", Call(Kind.client, T)),
        ("/admin/persistent/p/c/n/t/partitions", Call(Kind.client, "persistent://p/c/n/t")),
        ("/admin/v2/namespaces/acme/orders/topics", Call(Kind.client)),
        ("/admin/namespaces/p/c/n/destinations", Call(Kind.client)),
        ("/admin/v2/schemas/acme/orders/t/schema", Call(Kind.client)),
        ("/admin/v2/schemas/acme/orders/t/schema/3", Call(Kind.client)),
        ("/admin/v2/schemas/acme/orders/t/schema/3/x", Call(Kind.other)),
        ("/admin/v2/persistent/acme/orders/t/stats", Call(Kind.stats, T)),
        ("/admin/v2/persistent/acme/orders/t/partitioned-stats", Call(Kind.partitioned_stats, T)),
        ("/admin/v2/persistent/acme/orders/t/subscriptions", Call(Kind.subscriptions, T)),
        ("/admin/v2/persistent/acme/orders/t/internalStats", Call(Kind.other)),
        ("/admin/v2/tenants", Call(Kind.other)),
        ("/admin/v2/persistent/acme/orders/a%5C..b/stats", Call(Kind.stats, "persistent://acme/orders/a\\..b")),
    ],
)
def test_what_a_call_is_about(path: str, call: Call) -> None:
    assert call_of("GET", path) == call_of("HEAD", path) == call
    for method in ("PUT", "POST", "DELETE"):
        assert call_of(method, path) == Call(Kind.other)


@pytest.mark.parametrize(
    "path",
    [
        "/admin/../metrics",
        "/admin/v2/%2e%2E/x",
        "/admin/v2/.%2e;x=1/x",
        "/admin/v2/./tenants",
        "/admin//v2/tenants",
        "//admin/v2/tenants",
        "/admin/v2/x%2f..%2F..%2fmetrics",
        "/admin/v2/a%00b",
        "/admin/v2/a%0d%0ab",
        "/admin/v2/a%2",
        "/admin/v2/ä",
        "/admin/v2/a b",
    ],
)
def test_paths_that_others_may_take_for_other_paths(path: str) -> None:
    with pytest.raises(NotAsked) as refusal:
        call_of("GET", path)
    assert refusal.value.status == 400


@pytest.mark.parametrize("path", ["/admin/v2/%64elayed/topics", "/admin/v2/delayed", "/%61dmin/v2/delayed/x"])
def test_what_is_the_bridges_own_is_not_asked_of_the_broker(path: str) -> None:
    with pytest.raises(NotAsked) as refusal:
        call_of("GET", path)
    assert refusal.value.status == 404


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "PROPFIND", "get"])
def test_odd_methods(method: str) -> None:
    with pytest.raises(NotAsked) as refusal:
        call_of(method, "/admin/v2/tenants")
    assert refusal.value.status == 405


def test_what_clients_ask_by_themselves() -> None:
    assert {kind for kind in Kind if is_for_clients(Call(kind))} == {Kind.lookup, Kind.client}


def test_headers_of_a_hop_stay_there() -> None:
    asked = CIMultiDict(
        [
            *(("Host", "b:8081"), ("Authorization", "Bearer x"), ("Cookie", "delay-bridge-1=y"), ("Accept", "*/*")),
            *(("Connection", "close, X-Mine"), ("X-Mine", "1"), ("TE", "trailers"), ("Upgrade", "websocket")),
            *(("Transfer-Encoding", "chunked"), ("X-Pulsar-ListenerName", "inside"), ("Expect", "100-continue")),
        ]
    )
    kept = {"Authorization": "Bearer x", "Accept": "*/*", "X-Pulsar-ListenerName": "inside"}
    assert dict(headers.asked(asked)) == kept
    assert "Authorization" not in headers.asked(asked, with_credentials=False)


def test_an_answer_is_no_page_of_the_bridge() -> None:
    answered = CIMultiDict(
        [
            *(("Content-Type", "text/html"), ("Set-Cookie", "a=b"), ("Content-Security-Policy", "default-src *")),
            *(("Content-Length", "3"), ("Content-Encoding", "gzip"), ("Keep-Alive", "x"), ("ETag", "1")),
        ]
    )
    as_it_is = headers.answered(answered)
    assert set(as_it_is) == {"Content-Type", "Content-Length", "Content-Encoding", "ETag", "Content-Security-Policy"}
    assert as_it_is.getall("Content-Security-Policy") == ["sandbox; default-src 'none'"]
    assert set(headers.answered_anew(answered)) == {"Content-Security-Policy"}


def test_a_lookup_names_the_bridge() -> None:
    told = '{"brokerUrl": "pulsar://b:1", "httpUrl": "http://b:8081", "nativeUrl": "pulsar://b:1", "brokerUrlSsl": ""}'
    assert led(TOLD, PLAIN, WEB, T, by_tls=False).decode() == told
    told = (
        '{"brokerUrl": "pulsar://b:1", "brokerUrlTls": "pulsar+ssl://b:2", "httpUrl": "http://b:8081", '
        '"nativeUrl": "pulsar://b:1", "brokerUrlSsl": "pulsar+ssl://b:2"}'
    )
    assert led(TOLD, BOTH, WEB, T, by_tls=True).decode() == told


@pytest.mark.parametrize(("owner", "by_tls"), [(PLAIN, True), (ServiceUrls(None, "pulsar+ssl://b:2"), False)])
def test_nobody_is_led_to_where_the_owner_does_not_serve(owner: ServiceUrls, by_tls: bool) -> None:
    with pytest.raises(NotToldHow, match="is not known to serve clients with"):
        led(TOLD, owner, WEB, T, by_tls=by_tls)


@pytest.mark.parametrize("text", [b"", b"[]", b"<html>", b"\xff"])
def test_a_lookup_that_cannot_be_read(text: bytes) -> None:
    with pytest.raises(NotToldHow, match="cannot be read"):
        led(text, PLAIN, WEB, T, by_tls=False)
