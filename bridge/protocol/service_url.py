"""Service URLs: `pulsar://host:port`, or `pulsar+ssl://host:port`. Pure: nothing is resolved or connected to."""

from typing import NamedTuple
from urllib.parse import urlsplit

PLAIN_PORT = 6650
TLS_PORT = 6651
TLS_SCHEME = "pulsar+ssl:"


class ServiceAddress(NamedTuple):
    """What a service URL names."""

    host: str
    port: int
    tls: bool


class ServiceUrls(NamedTuple):
    """Where a bridge serves clients: without TLS, with it, or both."""

    plain: str | None
    tls: str | None = None

    @classmethod
    def of(cls, name: str, tls: str | None) -> "ServiceUrls":
        """Of a bridge that is known by the URL `name`, and says that it serves TLS at `tls`."""
        return cls(None, name) if name.startswith(TLS_SCHEME) else cls(name, tls)

    @property
    def name(self) -> str:
        """What the bridge is known by: the URL without TLS if there is one."""
        name = self.plain or self.tls
        assert name is not None
        return name


def parse_service_url(url: str) -> ServiceAddress:
    """The port is Pulsar's default one where the URL has none. Raises ValueError naming the value."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # brackets or a port that are none
        host, port = None, None
    if not host or parts.scheme not in ("pulsar", "pulsar+ssl"):
        raise ValueError(f"not a service URL: {url!r} (expected pulsar://host:port or pulsar+ssl://host:port)")
    tls = parts.scheme == "pulsar+ssl"
    return ServiceAddress(host, port or (TLS_PORT if tls else PLAIN_PORT), tls)
