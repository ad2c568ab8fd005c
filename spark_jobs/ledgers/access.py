"""Where the cluster is, and who asks."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bridge.ledgers.bookies.read_from import ReadFrom
from bridge.protocol.service_url import ServiceAddress, parse_service_url
from spark_jobs.errors import LedgerReadError


@dataclass(frozen=True)
class ClusterAccess:
    """How to reach a cluster. `token` and `token_file` exclude each other; a file is read by each task anew."""

    service_url: str
    web_url: str
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    tls_trust_certs: str | None = None
    """File of certificates to trust, for `pulsar+ssl` and `https`; the system's when None."""
    tls_verify_hostname: bool = True
    read_from: ReadFrom = ReadFrom.auto

    def auth_token(self) -> str | None:
        """Return the token to present, None for none. Raises LedgerReadError when its file cannot be read."""
        if self.token_file is None:
            return self.token
        try:
            return Path(self.token_file).read_text().strip()
        except OSError as error:
            raise LedgerReadError(f"cannot read the token file {self.token_file}: {error}") from error

    def tls_context(self) -> ssl.SSLContext:
        """Return the TLS settings. Raises LedgerReadError when the certificates cannot be read."""
        try:
            context = ssl.create_default_context(cafile=self.tls_trust_certs)
        except OSError as error:
            raise LedgerReadError(f"cannot read the certificates {self.tls_trust_certs}: {error}") from error
        context.check_hostname = self.tls_verify_hostname
        return context


def service_address(url: str) -> ServiceAddress:
    """Return what a service URL names. Raises LedgerReadError naming the value."""
    try:
        return parse_service_url(url)
    except ValueError as error:
        raise LedgerReadError(str(error)) from error


def access_from(options: Mapping[str, str]) -> ClusterAccess:
    """Read the options of a data source: see `source`. Raises LedgerReadError naming what is missing or wrong."""
    for name in ("serviceUrl", "webUrl"):
        if not options.get(name):
            raise LedgerReadError(f"the option {name} is missing")
    if options.get("authToken") and options.get("authTokenFile"):
        raise LedgerReadError("give authToken or authTokenFile, not both")
    service_address(options["serviceUrl"])
    read_from = options.get("readFrom") or ReadFrom.auto
    if read_from not in list(ReadFrom):
        raise LedgerReadError(f"option readFrom: {read_from!r} is none of {', '.join(ReadFrom)}")
    return ClusterAccess(
        options["serviceUrl"],
        options["webUrl"].rstrip("/"),
        options.get("authToken") or None,
        options.get("authTokenFile") or None,
        options.get("tlsTrustCerts") or None,
        options.get("tlsVerifyHostname", "true").lower() != "false",
        ReadFrom(read_from),
    )
