"""A server's certificate, and what those of its clients are checked against: from files to a context for TLS.

Files are looked at again from time to time: who renews a certificate restarts nothing.
"""

import asyncio
import contextlib
import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import structlog

log = structlog.get_logger(__name__)

_ONE_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_OTHER_NAME: Final = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_VERSION_TAG, _GENERALIZED_TIME = 0xA0, 0x18
_VALIDITY: Final = 3
"""Its place among the fields of a certificate (RFC 5280, 4.1), the optional version not counted."""


class CertificateError(Exception):
    """Files that cannot be used; the message names the setting, the file, and what is wrong."""


class TlsFiles(NamedTuple):
    """What a server shows, and asks for; all files are PEM."""

    certificate: Path
    """The server's own first, then those that lead to an authority."""
    key: Path
    """Of the first certificate; without a passphrase, for nobody is there to type it."""
    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    trust_certs: Path | None = None
    """Authorities of clients' certificates; without it no client is asked for one."""
    require_client_cert: bool = False
    """Whether a client without a certificate is refused; a wrong one is in any case."""


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """The context of connections that begin from now on. Reads files. Raises CertificateError."""
    trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "tls_certificate_file_path", files.certificate)  # is it one?
    read_file("tls_key_file_path", files.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = files.min_version
    # Without it a client has the server calculate as often as it likes on one connection.
    context.options |= ssl.OP_NO_RENEGOTIATION

    def ask_nobody() -> str:
        raise CertificateError(f"tls_key_file_path {str(files.key)!r}: the key has a passphrase, which nobody can type")

    try:
        context.load_cert_chain(files.certificate, files.key, ask_nobody)
    except (OSError, ValueError) as error:
        fits = getattr(error, "reason", None) != "KEY_VALUES_MISMATCH"
        why = "holds no private key in PEM" if fits else f"does not fit the certificate in {str(files.certificate)!r}"
        raise CertificateError(f"tls_key_file_path {str(files.key)!r}: {why}") from error
    if files.trust_certs is not None:
        trust(context, "tls_trust_certs_file_path", files.trust_certs)
        context.verify_mode = ssl.CERT_REQUIRED if files.require_client_cert else ssl.CERT_OPTIONAL
    return context


class ServerCertificate:
    """The newest usable state of the files."""

    def __init__(self, files: TlsFiles, host: str) -> None:
        """Reads them. `host`: where clients are told to connect. Raises CertificateError."""
        self._files = files
        self.host = host
        self._seen = _stamps(files)
        self.failure: str | None = None
        """Why the files as they are now are not used; None while they are."""
        self._use(server_context(files), expiry_s(files.certificate))

    def _use(self, context: ssl.SSLContext, expires_s: float) -> None:
        self.context = context
        self.expires_s = expires_s
        """When it ends, in epoch seconds."""
        self.is_for_host = is_for(context, self._files.certificate, self.host)
        """Whether clients that are told to connect to the host, and check its name, will be content."""
        if not self.is_for_host:
            log.warning("the certificate is not for where clients are told to connect", host=self.host)

    def look(self) -> None:
        """Use the files for new connections if they have changed; a broken pair leaves the former one. Reads files."""
        stamps = _stamps(self._files)
        if stamps == self._seen:
            return
        self._seen = stamps
        try:
            self._use(server_context(self._files), expiry_s(self._files.certificate))
        except CertificateError as error:
            self.failure = str(error)
            log.error("TLS files have changed and cannot be used, the former ones stay", reason=self.failure)
        else:
            self.failure = None
            log.info("TLS files have changed, new connections use them", expires=_in_words(self.expires_s))

    async def watch(self, pause_s: float) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(pause_s)
            await asyncio.to_thread(self.look)


def expiry_s(certificate: Path) -> float:
    """When the first certificate of a file ends, in epoch seconds. Reads it. Raises CertificateError."""
    found = _ONE_CERTIFICATE.search(read_file("tls_certificate_file_path", certificate))
    try:
        return _not_after(ssl.PEM_cert_to_DER_cert("" if found is None else found[0])).timestamp()
    except (ValueError, IndexError, StopIteration) as error:
        raise CertificateError(f"tls_certificate_file_path {str(certificate)!r}: does not say when it ends") from error


def is_for(server: ssl.SSLContext, certificate: Path, host: str) -> bool:
    """Whether a client that trusts the certificate takes it for the host's: tried, without a connection. Reads it."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself is trusted, whoever signed it
    trust(client, "tls_certificate_file_path", certificate)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(back, there, server_hostname=host)
    answering = server.wrap_bio(there, back, server_side=True)
    try:
        for side in (asking, answering, asking):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return error.verify_code not in _OTHER_NAME
    return True


def trust(context: ssl.SSLContext, setting: str, file: Path) -> None:
    """Take the certificates of a PEM file for authorities. Raises CertificateError naming the setting."""
    read_file(setting, file)
    try:
        context.load_verify_locations(file)
    except OSError as error:  # those of TLS are such, too
        raise CertificateError(f"{setting} {str(file)!r}: holds no certificate in PEM") from error


def read_file(setting: str, file: Path) -> str:
    """Its text. Raises CertificateError naming the setting."""
    try:
        return file.read_text(errors="replace")
    except OSError as error:
        raise CertificateError(f"{setting} {str(file)!r}: cannot be read: {error.strerror}") from error


def _stamps(files: TlsFiles) -> list[tuple[int, int, int] | None]:
    return [stamp_of(file) for file in (files.certificate, files.key, files.trust_certs)]


def stamp_of(file: Path | None) -> tuple[int, int, int] | None:
    """What tells one state of a file from another; a link that leads elsewhere now is another state."""
    if file is not None:
        with contextlib.suppress(OSError):
            stat = file.stat()
            return stat.st_mtime_ns, stat.st_size, stat.st_ino
    return None


def _not_after(certificate: bytes) -> datetime:
    """What DER says: a certificate is a sequence in a sequence. Raises ValueError, IndexError, StopIteration."""
    _, whole = next(_elements(certificate))
    _, told = next(_elements(whole))
    fields = [content for tag, content in _elements(told) if tag != _VERSION_TAG]
    _, (tag, until) = _elements(fields[_VALIDITY])
    form = "%Y%m%d%H%M%SZ" if tag == _GENERALIZED_TIME else "%y%m%d%H%M%SZ"
    return datetime.strptime(until.decode(), form).replace(tzinfo=UTC)


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of what stands side by side. Raises IndexError."""
    at = 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(data[at : at + size], "big"), at + size
        yield tag, data[at : at + length]
        at += length


def _in_words(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).isoformat(timespec="seconds")
