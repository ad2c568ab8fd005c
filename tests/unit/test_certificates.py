"""From files to what the TLS port shows: which files are good, what is said of others, and what a change does."""

import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bridge.net.certificates import CertificateError, ServerCertificate, TlsFiles, expiry_s, is_for, server_context
from tests.authority import Authority, Pair, with_passphrase

DAY_S = 86_400


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.issue()


def test_a_good_pair(authority: Authority, pair: Pair) -> None:
    context = server_context(TlsFiles(*pair))
    assert (context.minimum_version, context.verify_mode) == (ssl.TLSVersion.TLSv1_2, ssl.CERT_NONE)
    assert ssl.OP_NO_RENEGOTIATION in context.options
    files = TlsFiles(*pair, ssl.TLSVersion.TLSv1_3, authority.certificate)
    context = server_context(files)
    assert (context.minimum_version, context.verify_mode) == (ssl.TLSVersion.TLSv1_3, ssl.CERT_OPTIONAL)
    assert server_context(files._replace(require_client_cert=True)).verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("days", [1, 400, 30_000])
def test_when_it_ends(authority: Authority, days: int) -> None:
    """The last is written with a year of four digits."""
    made_s = time.time()
    ends_s = expiry_s(authority.issue(days=days).certificate)
    assert made_s - 60 < ends_s - days * DAY_S < time.time() + 60


@pytest.mark.parametrize(
    ("names", "host", "expected"),
    [
        ("DNS:localhost", "localhost", True),
        ("DNS:localhost", "127.0.0.1", False),
        ("DNS:localhost,IP:127.0.0.1", "127.0.0.1", True),
        ("IP:::1", "::1", True),
        ("IP:10.0.0.1", "127.0.0.1", False),
        ("DNS:*.example.com", "bridge.example.com", True),
        ("DNS:*.example.com", "bridge.example.org", False),
    ],
)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("required", [False, True])
def test_for_whom_it_is(
    authority: Authority, names: str, host: str, expected: bool, version: ssl.TLSVersion, required: bool
) -> None:
    pair = authority.issue(names)
    context = server_context(TlsFiles(*pair, version, authority.certificate, required))
    context.maximum_version = version
    assert is_for(context, pair.certificate, host) == expected


def missing(pair: Pair, authority: Authority) -> TlsFiles:
    return TlsFiles(pair.certificate.with_name("gone.pem"), pair.key)


def missing_key(pair: Pair, authority: Authority) -> TlsFiles:
    return TlsFiles(pair.certificate, pair.key.with_name("gone.pem"))


def a_folder(pair: Pair, authority: Authority) -> TlsFiles:
    return TlsFiles(pair.certificate.parent, pair.key)


def a_key_as_certificate(pair: Pair, authority: Authority) -> TlsFiles:
    return TlsFiles(pair.key, pair.key)


def a_certificate_as_key(pair: Pair, authority: Authority) -> TlsFiles:
    return TlsFiles(pair.certificate, pair.certificate)


def anothers_key(pair: Pair, authority: Authority) -> TlsFiles:
    return TlsFiles(pair.certificate, authority.issue().key)


def a_locked_key(pair: Pair, authority: Authority) -> TlsFiles:
    return TlsFiles(pair.certificate, with_passphrase(pair.key))


def no_authority(pair: Pair, authority: Authority) -> TlsFiles:
    return TlsFiles(*pair, trust_certs=pair.key)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (missing, r"tls_certificate_file_path '.*gone\.pem': cannot be read: No such file"),
        (missing_key, r"tls_key_file_path '.*gone\.pem': cannot be read: No such file"),
        (a_folder, r"tls_certificate_file_path '.*': cannot be read: Is a directory"),
        (a_key_as_certificate, r"tls_certificate_file_path '.*-key\.pem': holds no certificate in PEM"),
        (a_certificate_as_key, r"tls_key_file_path '.*-1\.pem': holds no private key in PEM"),
        (anothers_key, r"tls_key_file_path '.*-2-key\.pem': does not fit the certificate in '.*-1\.pem'"),
        (a_locked_key, r"tls_key_file_path '.*\.locked': the key has a passphrase"),
        (no_authority, r"tls_trust_certs_file_path '.*-key\.pem': holds no certificate in PEM"),
    ],
)
def test_the_file_at_fault_is_named(
    wrong: Callable[[Pair, Authority], TlsFiles], message: str, pair: Pair, authority: Authority
) -> None:
    with pytest.raises(CertificateError, match=message):
        server_context(wrong(pair, authority))


def test_new_files_are_used_and_broken_ones_are_not(authority: Authority, pair: Pair) -> None:
    certificate = ServerCertificate(TlsFiles(*pair), "localhost")
    first, ends_s = certificate.context, certificate.expires_s
    certificate.look()
    assert certificate.context is first
    pair.key.write_text("half of a k")
    with capture_logs() as lines:
        certificate.look()
        certificate.look()
    assert [line["log_level"] for line in lines] == ["error"], "told once, not at every look"
    assert certificate.context is first
    assert "holds no private key" in (certificate.failure or "")
    pair.key.unlink()
    certificate.look()
    assert (certificate.context is first, certificate.expires_s) == (True, ends_s)
    assert "No such file" in (certificate.failure or "")
    pair.replace_by(authority.issue(days=9))
    certificate.look()
    assert certificate.context is not first
    assert certificate.expires_s > ends_s + 6 * DAY_S
    assert certificate.failure is None


def test_links_that_lead_elsewhere(authority: Authority, tmp_path: Path) -> None:
    """As files of a mounted secret change."""
    names = Pair(tmp_path / "tls.crt", tmp_path / "tls.key")
    for number in range(2):
        for link, target in zip(names, authority.issue(days=2 + number), strict=True):
            link.unlink(missing_ok=True)
            link.symlink_to(target)
        if number == 0:
            certificate = ServerCertificate(TlsFiles(*names), "localhost")
            first = certificate.context
    certificate.look()
    assert certificate.context is not first
