"""What servers' certificates are checked against where the bridge connects by TLS: brokers, other bridges."""

import ssl
from pathlib import Path

import structlog

from bridge.net.certificates import CertificateError, stamp_of, trust

log = structlog.get_logger(__name__)


class TrustedServers:
    """The system's authorities, or those of a file, of which the newest usable state counts."""

    def __init__(
        self, trust_certs: Path | None = None, *, check_host_name: bool = True, setting: str = "trust_certs"
    ) -> None:
        """Reads nothing yet. `trust_certs`: PEM; `check_host_name`: whether a certificate has to be for whom one asked.

        `setting`: what names the file in errors.
        """
        self._file = trust_certs
        self._check_host_name = check_host_name
        self._setting = setting
        self._seen: object = None
        self._context: ssl.SSLContext | None = None

    @property
    def context(self) -> ssl.SSLContext:
        """Of connections that begin from now on. Reads files at the first call. Raises CertificateError then."""
        if self._context is None:
            self._seen = stamp_of(self._file)
            self._context = self._made()
        return self._context

    def look(self) -> None:
        """Use the file if it has changed; one that cannot be used leaves the former in place. Reads files."""
        stamp = stamp_of(self._file)
        if self._context is None or stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._context = self._made()
        except CertificateError as error:
            log.error("trusted certificates have changed and cannot be used, the former ones stay", reason=str(error))
        else:
            log.info("trusted certificates have changed, new connections use them", file=str(self._file))

    def _made(self) -> ssl.SSLContext:
        if self._file is None:
            context = ssl.create_default_context()
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            trust(context, self._setting, self._file)
        context.check_hostname = self._check_host_name
        return context
