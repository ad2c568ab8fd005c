"""The port for clients with TLS, on both event loops: who gets in, who does not, and what that does to others."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from bridge.app import Bridge
from bridge.config import Settings
from bridge.embedded.ports import free_ports
from bridge.gateway.listener import Gateway
from bridge.limits import ConnectionLimits, Limits
from bridge.net.certificates import ServerCertificate, TlsFiles
from bridge.net.failures import Failures
from bridge.net.listening import StartError
from bridge.net.tls_listener import TlsListener, TlsPort
from bridge.protocol import commands
from bridge.protocol.frames import encode_frame
from bridge.protocol.pulsar_pb2 import BaseCommand, CommandLookupTopicResponse, ServerError
from bridge.protocol.service_url import ServiceUrls
from tests.authority import Authority, Pair
from tests.fake_broker import FakeBroker
from tests.helpers import wait_until_async
from tests.raw_client import RawClient, raw_client
from tests.unit.test_gateway_sessions import NoTopics

TOPIC = "persistent://public/default/t"
PLAIN, TLS = "pulsar://bridge:6650", "pulsar+ssl://bridge:6651"
USUAL = ConnectionLimits()
Work = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Work], None]:
    """Runs a test on an event loop that nothing is left on, and whose own errors fail it."""

    async def checked(work: Work) -> None:
        unexpected: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unexpected.append(context))
        await work()
        await wait_until_async(lambda: asyncio.all_tasks() == {asyncio.current_task()}, "the end of all tasks")
        assert not unexpected

    def go(work: Work) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(checked(work))

    return go


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


class Topics(NoTopics):
    urls = ServiceUrls(PLAIN, TLS)

    async def owner_urls(self, topic: str) -> ServiceUrls:
        return self.urls


class Door:
    """A gateway with both ports."""

    def __init__(self, gateway: Gateway, broker: FakeBroker, topics: Topics, ports: list[int]) -> None:
        self.gateway, self.broker, self.topics = gateway, broker, topics
        self.port, self.tls_port = ports

    @property
    def url(self) -> str:
        return f"pulsar+ssl://127.0.0.1:{self.tls_port}"

    @property
    def tls(self) -> TlsListener:
        return self.gateway.tls[0]

    @property
    def failed(self) -> int:
        return self.tls.failed_handshakes

    async def has_failed(self, count: int) -> None:
        await wait_until_async(lambda: self.failed == count, f"{count} handshakes that failed")


@asynccontextmanager
async def opened(
    files: TlsFiles, limits: ConnectionLimits = USUAL, max_connections: int = 1_000
) -> AsyncIterator[Door]:
    topics, failures = Topics(), Failures()
    bound = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    for each in bound:
        each.setblocking(False)
    async with FakeBroker() as broker:
        gateway = Gateway(broker.url, topics, failures, max_connections, limits)
        await gateway.start(bound[:1], [TlsPort(bound[1], ServerCertificate(files, "127.0.0.1"))])
        try:
            yield Door(gateway, broker, topics, [each.getsockname()[1] for each in bound])
        finally:
            await gateway.close()
    assert not failures.counts


def trusting(authority: Authority, shown: Pair | None = None) -> ssl.SSLContext:
    """A client that trusts an authority, and shows a certificate if it has one."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if shown is not None:
        context.load_cert_chain(*shown)
    return context


async def refused(connecting: Awaitable[RawClient]) -> None:
    """With TLS 1.3 a client learns of it at the first answer it waits for."""
    with pytest.raises((OSError, asyncio.TimeoutError)):
        await connecting


def test_clients_are_led_on_as_they_came(run: Callable[[Work], None], authority: Authority) -> None:
    async def work() -> None:
        async with opened(TlsFiles(*authority.issue())) as door:
            by_tls = await raw_client(door.url, tls=trusting(authority))
            plain = await raw_client(f"pulsar://127.0.0.1:{door.port}")
            found = (await by_tls.lookup(TOPIC)).lookupTopicResponse
            assert (found.brokerServiceUrl, found.brokerServiceUrlTls) == ("", TLS)
            found = (await plain.lookup(TOPIC)).lookupTopicResponse
            assert (found.brokerServiceUrl, found.brokerServiceUrlTls) == (PLAIN, "")
            for client, urls, how in (
                (by_tls, ServiceUrls(PLAIN), "with TLS"),
                (plain, ServiceUrls(None, TLS), "without TLS"),
            ):
                door.topics.urls = urls
                found = (await client.lookup(TOPIC)).lookupTopicResponse
                assert found.response == CommandLookupTopicResponse.Failed
                assert found.error == ServerError.ServiceNotReady
                assert f"{urls.name}, is not known to serve clients {how}" in found.message
            await by_tls.close()
            await plain.close()

    run(work)


def test_what_is_no_handshake_ends_alone(run: Callable[[Work], None], authority: Authority) -> None:
    async def work() -> None:
        async with opened(TlsFiles(*authority.issue()), replace(USUAL, handshake_timeout_s=0.3)) as door:
            beside = await raw_client(door.url, tls=trusting(authority))
            with capture_logs() as lines:
                for number, first in enumerate(
                    (
                        encode_frame(commands.connect(None)),
                        b"GET / HTTP/1.1\r\n\r\n",
                        b"\x16\x03\x01" + bytes(600),
                        b"",
                    ),
                    1,
                ):
                    reader, writer = await asyncio.open_connection("127.0.0.1", door.tls_port)
                    writer.write(first)
                    with suppress(ConnectionError):
                        await reader.read()  # the last one says nothing, and is closed when its time is over
                    writer.close()
                    await door.has_failed(number)
            assert [line["event"] for line in lines] == ["TLS handshake failed"] * 4
            assert all(line["peer"].startswith("127.0.0.1:") and line["reason"] for line in lines), lines
            assert (await beside.lookup(TOPIC)).lookupTopicResponse.brokerServiceUrlTls == TLS
            await beside.close()

    run(work)


def test_who_leaves_in_the_middle_of_the_handshake(run: Callable[[Work], None], authority: Authority) -> None:
    async def work() -> None:
        async with opened(TlsFiles(*authority.issue())) as door:
            for ending in (socket.socket.close, lambda each: each.shutdown(socket.SHUT_WR)):
                failed = door.failed
                leaving = socket.create_connection(("127.0.0.1", door.tls_port))
                leaving.sendall(b"\x16\x03\x01\x01\x00")
                ending(leaving)
                await door.has_failed(failed + 1)
                leaving.close()
            assert door.gateway.connections == 0

    run(work)


def test_tls_at_the_plain_port(run: Callable[[Work], None], authority: Authority) -> None:
    async def work() -> None:
        async with opened(TlsFiles(*authority.issue())) as door:
            with pytest.raises(ConnectionError):
                await raw_client(f"pulsar://127.0.0.1:{door.port}", tls=trusting(authority))
            await wait_until_async(lambda: door.gateway.connections == 0, "the end of the session")

    run(work)


def test_a_client_that_does_not_trust_it(run: Callable[[Work], None], authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")

    async def work() -> None:
        async with opened(TlsFiles(*authority.issue())) as door:
            with pytest.raises(ssl.SSLCertVerificationError):
                await raw_client(door.url, tls=trusting(other))
            await door.has_failed(1)
        async with opened(TlsFiles(*authority.issue("DNS:elsewhere"))) as door:
            with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
                await raw_client(door.url, tls=trusting(authority))

    run(work)


def test_client_certificates(run: Callable[[Work], None], authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    shown, false = authority.issue(), other.issue()

    async def work() -> None:
        required = TlsFiles(*authority.issue(), trust_certs=authority.certificate, require_client_cert=True)
        for files, welcome in ((required, [shown]), (required._replace(require_client_cert=False), [shown, None])):
            async with opened(files) as door:
                for pair in (shown, None, false):
                    connecting = raw_client(door.url, tls=trusting(authority, pair))
                    if pair in welcome:
                        await (await connecting).close()
                    else:
                        await refused(connecting)
                assert door.failed == 3 - len(welcome)

    run(work)


def test_the_oldest_version(run: Callable[[Work], None], authority: Authority) -> None:
    old = trusting(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2

    async def work() -> None:
        files = TlsFiles(*authority.issue())
        async with opened(files) as door:
            await (await raw_client(door.url, tls=old)).close()
        async with opened(files._replace(min_version=ssl.TLSVersion.TLSv1_3)) as door:
            with pytest.raises(ConnectionError):
                await raw_client(door.url, tls=old)
            await (await raw_client(door.url, tls=trusting(authority))).close()

    run(work)


def test_a_new_certificate_is_for_new_connections(run: Callable[[Work], None], authority: Authority) -> None:
    pair = authority.issue()

    async def work() -> None:
        async with opened(TlsFiles(*pair), replace(USUAL, certificate_check_s=0.02)) as door:
            before = await raw_client(door.url, tls=trusting(authority))
            first = door.tls.certificate.context
            pair.replace_by(authority.issue())
            await wait_until_async(lambda: door.tls.certificate.context is not first, "the new one")
            after = await raw_client(door.url, tls=trusting(authority))
            assert serial(before) != serial(after)
            for client in (before, after):
                assert (await client.lookup(TOPIC)).lookupTopicResponse.brokerServiceUrlTls == TLS
                await client.close()

    run(work)


def serial(client: RawClient) -> str:
    """Of the certificate that it was shown."""
    return str(client.transport.get_extra_info("peercert")["serialNumber"])


def test_further_clients_are_refused(run: Callable[[Work], None], authority: Authority) -> None:
    """Handshakes under way count, too."""

    async def work() -> None:
        async with opened(TlsFiles(*authority.issue()), max_connections=2) as door:
            first = await raw_client(door.url, tls=trusting(authority))
            silent = socket.create_connection(("127.0.0.1", door.tls_port))
            await wait_until_async(lambda: door.tls.handshakes == 1, "a handshake under way")
            with pytest.raises(ConnectionError):
                await raw_client(door.url, tls=trusting(authority))
            assert door.failed == 1
            silent.close()
            await door.has_failed(2)
            await (await raw_client(door.url, tls=trusting(authority))).close()
            await first.close()

    run(work)


def test_a_client_that_does_not_read(run: Callable[[Work], None], authority: Authority) -> None:
    """The broker has to wait, nothing is lost, and nothing is written twice."""
    part = bytes(100_000)
    frames = [encode_frame(message_of(number), number.to_bytes(4, "big") + part) for number in range(200)]

    async def work() -> None:
        async with opened(TlsFiles(*authority.issue())) as door:
            client = await raw_client(door.url, tls=trusting(authority))
            (session,) = door.gateway._sessions
            client.transport.pause_reading()
            for frame in frames:
                door.broker.send(frame)
            await wait_until_async(lambda: not session.writable, "the client's buffer is full")
            client.transport.resume_reading()
            got = [await client.message() for _ in frames]
            assert [int.from_bytes(each.entry[:4], "big") for each in got] == list(range(len(frames)))
            assert all(each.entry[4:] == part for each in got)
            assert session.writable
            await client.close()

    run(work)


def message_of(number: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.MESSAGE)
    command.message.consumer_id = 1
    command.message.message_id.ledgerId, command.message.message_id.entryId = 1, number
    return command


def test_what_a_client_sends_in_one_go(run: Callable[[Work], None], authority: Authority) -> None:
    """Much more than is read in a turn, as one stream of small commands."""

    async def work() -> None:
        async with opened(TlsFiles(*authority.issue())) as door:
            client = await raw_client(door.url, tls=trusting(authority))
            ack = commands.ack(1, [(1, 1)])
            client.send_bytes(encode_frame(ack) * 20_000)
            await wait_until_async(lambda: heard(door, BaseCommand.ACK) == 20_000, "all of it at the broker")
            await client.close()

    run(work)


def heard(door: Door, kind: int) -> int:
    return sum(each.type == kind for each in door.broker.heard)


def test_a_client_that_reads_no_more_is_cut(run: Callable[[Work], None], authority: Authority) -> None:
    """The end of a connection with TLS waits for the client's word, and not for ever."""

    async def work() -> None:
        async with opened(TlsFiles(*authority.issue()), replace(USUAL, close_timeout_s=0.2)) as door:
            client = await raw_client(door.url, tls=trusting(authority))
            (session,) = door.gateway._sessions
            client.transport.pause_reading()
            for number in range(200):
                door.broker.send(encode_frame(message_of(number), bytes(100_000)))
            await wait_until_async(lambda: not session.writable, "the client's buffer is full")
            session.end("told to")
            await wait_until_async(lambda: door.gateway.connections == 0, "the end of the session")
            await client.close()

    run(work)


def test_the_end_of_the_gateway(run: Callable[[Work], None], authority: Authority) -> None:
    """With handshakes under way, and clients connected."""

    async def work() -> None:
        async with opened(TlsFiles(*authority.issue())) as door:
            client = await raw_client(door.url, tls=trusting(authority))
            silent = socket.create_connection(("127.0.0.1", door.tls_port))
            await wait_until_async(lambda: door.tls.handshakes == 1, "a handshake under way")
            await door.gateway.close()
            await client.closed_by_peer()
            with pytest.raises(ConnectionError):
                await raw_client(door.url, tls=trusting(authority))
            silent.close()

    run(work)


def test_a_start_that_fails_leaves_no_port_taken(
    run: Callable[[Work], None], authority: Authority, tmp_path: Path
) -> None:
    pair, [port, tls_port] = authority.issue(), free_ports(2)
    settings = Settings(
        broker_service_url="pulsar://127.0.0.1:1",
        broker_web_url="http://127.0.0.1:1",
        data_dir=tmp_path / "data",
        host="127.0.0.1",
        port=port,
        **pair.settings(tls_port),
    )

    async def work() -> None:
        with socket.create_server(("127.0.0.1", tls_port)), pytest.raises(StartError, match=f":{tls_port}"):
            await Bridge(settings, Limits()).start()
        pair.key.unlink()  # good when the settings were read, and not any more
        with pytest.raises(StartError, match=r"tls_key_file_path .* cannot be read"):
            await Bridge(settings, Limits()).start()
        for each in (port, tls_port):
            socket.create_server(("127.0.0.1", each)).close()

    run(work)
