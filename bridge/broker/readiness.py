"""Whether the bridge can serve: both ways to the broker, its service URL and its admin URL, are tried all the time."""

import asyncio

import structlog

from bridge.broker.admin import AdminClient, AdminError
from bridge.broker.connection import BrokerError
from bridge.broker.pool import BrokerPool
from bridge.limits import ConnectionLimits
from bridge.net.failures import Failures, Part

log = structlog.get_logger(__name__)


class Readiness:
    """One per bridge."""

    def __init__(self, failures: Failures, limits: ConnectionLimits) -> None:
        """It is starting."""
        self.reason: str | None = "starting"
        """Why it is not ready; None while it is."""
        self._limits = limits
        self._unexpected = failures
        self._failures = 0
        self._stopping = False

    def stop(self) -> None:
        """For good."""
        self.reason, self._stopping = "stopping", True

    async def watch(self, pool: BrokerPool, admin: AdminClient) -> None:
        """Keep `reason` true to life, until cancelled."""
        while True:
            try:
                self._note(await self._what_fails(pool, admin))
                await asyncio.sleep(self._limits.broker_check_s)
            except Exception as error:
                self._unexpected.note(Part.readiness, "cannot tell whether the broker is there", error)
                self._note(f"failed: {error!r}")
                await asyncio.sleep(self._limits.broker_check_retry_s)

    async def _what_fails(self, pool: BrokerPool, admin: AdminClient) -> str | None:
        try:
            await pool.connection()
        except BrokerError as error:
            return str(error)
        try:
            await admin.check()
        except AdminError as error:
            # What is served goes on without; topics that are new, or change owners, do not.
            self._failures += 1
            if self.reason is not None or self._failures >= self._limits.admin_failures:
                return str(error)
            return None
        self._failures = 0
        return admin.clocks.doubt

    def _note(self, reason: str | None) -> None:
        if self._stopping:
            return
        if reason is None and self.reason is not None:
            log.info("broker is there")
        elif reason is not None and reason != self.reason:
            log.warning("waiting for the broker", reason=reason)
        self.reason = reason
