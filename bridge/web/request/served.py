"""What the web server may ask of the running bridge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from aiohttp import web

from bridge.clock import ClockSteps
from bridge.config import Settings
from bridge.gateway.listener import Gateway
from bridge.limits import Limits, OperatorLimits
from bridge.members.balance import Balance
from bridge.net.certificates import ServerCertificate
from bridge.net.failures import Failures
from bridge.net.trust import TrustedServers
from bridge.operate.action_log import ActionLog
from bridge.topics.topics import Topics


class Served(Protocol):
    """The running bridge as pages, REST and metrics see it."""

    @property
    def settings(self) -> Settings:
        """How it was started."""

    @property
    def limits(self) -> Limits:
        """What holds for it."""

    @property
    def web_port(self) -> int:
        """Where this web server listens."""

    @property
    def neighbours(self) -> Mapping[str, str]:
        """Where the REST of the other workers is that this bridge answers for: as others know it, and for itself."""

    @property
    def advertised_url(self) -> str:
        """What other bridges know this one by."""

    @property
    def web_urls(self) -> tuple[str | None, str | None]:
        """Where callers reach this web server without TLS, and with it."""

    @property
    def certificate(self) -> ServerCertificate | None:
        """What is shown at the ports with TLS; None where there are none."""

    @property
    def failed_handshakes(self) -> int:
        """Connections to these ports that were closed before they had begun."""

    @property
    def trusted(self) -> TrustedServers:
        """What brokers and other bridges with TLS are checked by."""

    @property
    def started_ms(self) -> int:
        """When it was started, in epoch ms."""

    @property
    def actions(self) -> ActionLog:
        """What operators did."""

    @property
    def topics(self) -> Topics | None:
        """All topic partitions it tracks; None while it starts."""

    @property
    def gateway(self) -> Gateway | None:
        """The side that clients see; None while it starts."""

    @property
    def balance(self) -> Balance | None:
        """What this bridge knows of the others; None while it starts, and where it is to know nothing."""

    @property
    def not_ready(self) -> str | None:
        """Why clients are not served; None while they are."""

    @property
    def exposed(self) -> str | None:
        """Why other users of the machine may look into the data directory; None when they cannot."""

    @property
    def clock_offset_s(self) -> float | None:
        """How far at least the broker's clock is ahead of this machine's; None while it is not known."""

    @property
    def clock_steps(self) -> ClockSteps | None:
        """Whether and how this machine's clock was set; None while the bridge starts."""

    @property
    def failures(self) -> Failures:
        """Errors that nobody thought of."""

    @property
    def admin_failures(self) -> int:
        """Calls of the broker's admin interface without an answer that can be read."""

    @property
    def broker_connections(self) -> int:
        """The bridge's own connections to brokers, and those it holds for clients."""


BRIDGE: web.AppKey[Served] = web.AppKey("bridge")
"""The running bridge, in every application of its web server."""


def limits_of(request: web.Request) -> OperatorLimits:
    """What operators may ask for at once."""
    return request.app[BRIDGE].limits.operators
