"""Servers with TLS, checked by the certificates of a file: brokers' admin interface, binary port, the front door's."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from multidict import CIMultiDict
from structlog.testing import capture_logs
from yarl import URL

from bridge.broker.admin import AdminClient, AdminError
from bridge.broker.connection import BrokerError, connect, reach
from bridge.limits import ConnectionLimits, WebLimits
from bridge.net.certificates import CertificateError, TlsFiles, server_context
from bridge.net.redirects import RedirectedFromTls, request_with_redirects
from bridge.net.trust import TrustedServers
from bridge.web.access.pulsar_permissions import BrokerSilent, PulsarPermissions
from bridge.web.front_door.broker import Broker, NoAnswer, Question
from tests.authority import Authority, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def _version(request: web.Request) -> web.Response:
    return web.Response(text="4.0.8")


async def _to_plain(request: web.Request) -> web.Response:
    return web.Response(status=307, headers={"Location": "http://127.0.0.1:1/stolen"})


class Server:
    """Web server with TLS for `localhost`, under another name, too."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.port = 0

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    @property
    def other_url(self) -> str:
        return f"https://127.0.0.1:{self.port}"


@pytest_asyncio.fixture
async def server(authority: Authority) -> AsyncIterator[Server]:
    made = Server(authority.issue("DNS:localhost"))
    app = web.Application()
    app.router.add_get("/admin/v2/brokers/version", _version)
    app.router.add_get("/plain", _to_plain)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    context = await asyncio.to_thread(server_context, TlsFiles(*made.pair))
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


async def check(url: str, trusted: TrustedServers | None) -> None:
    if trusted is not None:
        await asyncio.to_thread(_made, trusted)
    admin = AdminClient(url, ConnectionLimits(), None, trusted)
    try:
        await admin.check()
    finally:
        await admin.close()


async def test_the_admin_interface_of_a_trusted_broker(server: Server, authority: Authority) -> None:
    await check(server.url, TrustedServers(authority.certificate))
    with pytest.raises(AdminError, match="certificate verify failed"):
        await check(server.url, None)


async def test_a_certificate_for_another_host(server: Server, authority: Authority) -> None:
    with pytest.raises(AdminError, match="certificate verify failed: IP address mismatch"):
        await check(server.other_url, TrustedServers(authority.certificate))
    await check(server.other_url, TrustedServers(authority.certificate, check_host_name=False))
    with pytest.raises(AdminError, match="certificate verify failed"):
        await check(server.other_url, TrustedServers(check_host_name=False))


async def test_the_binary_port(server: Server, authority: Authority) -> None:
    """The same server: what matters is the handshake."""
    trusted = await asyncio.to_thread(_made, TrustedServers(authority.certificate))
    url = f"pulsar+ssl://localhost:{server.port}"
    made = await reach(url, asyncio.Protocol, 5.0, trusted)
    assert isinstance(made, asyncio.Protocol)
    with pytest.raises(BrokerError, match="IP address mismatch"):
        await reach(url.replace("localhost", "127.0.0.1"), asyncio.Protocol, 5.0, trusted)
    with pytest.raises(BrokerError, match="certificate verify failed"):
        await connect(url, ConnectionLimits())


def _made(trusted: TrustedServers) -> TrustedServers:
    _ = trusted.context
    return trusted


async def test_who_may(server: Server, authority: Authority) -> None:
    """The broker that is asked takes any token for valid: that it says so is an answer."""
    trusted = await asyncio.to_thread(_made, TrustedServers(authority.certificate))
    for trust, reason in ((trusted, "takes any token"), (None, "cannot ask the broker")):
        permissions = PulsarPermissions(server.url, asyncio.get_running_loop().time, WebLimits(), trust)
        with pytest.raises(BrokerSilent, match=reason):
            await permissions.accepts("token")
        await permissions.close()


async def test_the_front_door(server: Server, authority: Authority) -> None:
    trusted = await asyncio.to_thread(_made, TrustedServers(authority.certificate))
    broker = Broker(server.url, WebLimits(), trusted)
    async with broker.asked(Question("GET", "/admin/v2/brokers/version", CIMultiDict())) as answer:
        assert (answer.status, await answer.text()) == (200, "4.0.8")
    with pytest.raises(NoAnswer, match="which is without TLS: not followed with credentials"):
        async with broker.asked(Question("GET", "/plain", CIMultiDict(Authorization="Bearer x"))):
            pass
    await broker.close()
    stranger = Broker(server.url, WebLimits(), TrustedServers())
    with pytest.raises(NoAnswer, match=r"cannot be reached.*certificate"):
        async with stranger.asked(Question("GET", "/admin/v2/brokers/version", CIMultiDict())):
            pass
    await stranger.close()


async def test_no_redirect_leads_from_tls_to_none(server: Server, authority: Authority) -> None:
    trusted = await asyncio.to_thread(_made, TrustedServers(authority.certificate))
    async with aiohttp.ClientSession() as session:
        with pytest.raises(RedirectedFromTls, match=r"to http://127\.0\.0\.1:1, which is without TLS"):
            async with request_with_redirects(session, "GET", URL(f"{server.url}/plain"), trusted=trusted):
                pass


def test_a_file_that_is_replaced(tmp_path: Path, authority: Authority) -> None:
    file = tmp_path / "trusted.pem"
    file.write_bytes(authority.certificate.read_bytes())
    trusted = TrustedServers(file)
    before = trusted.context
    trusted.look()
    assert trusted.context is before
    file.write_text("nothing")
    with capture_logs() as logs:
        trusted.look()
        trusted.look()
    assert trusted.context is before
    assert [each["reason"] for each in logs] == [f"trust_certs {str(file)!r}: holds no certificate in PEM"]
    other = Authority(tmp_path, "other")
    file.write_bytes(other.certificate.read_bytes())
    trusted.look()
    assert [each["subject"] for each in trusted.context.get_ca_certs()] == [((("commonName", "other"),),)]


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    for setting, file in (("a", tmp_path / "gone"), ("b", tmp_path)):
        with pytest.raises(CertificateError, match=f"^{setting} "):
            _ = TrustedServers(file, setting=setting).context


def test_by_default_it_is_the_systems() -> None:
    context = TrustedServers().context
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED
