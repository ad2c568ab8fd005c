"""Log lines that clients cause, limited by address and kind: who breaks the rules a million times fills no disk."""

import asyncio
from typing import Any

import structlog

from bridge.limits import ConnectionLimits

log = structlog.get_logger(__name__)

Kind = tuple[str, str, str]
REASON_MAX = 500
"""Characters: a client's own words may be in it."""
_OTHERS: Kind = ("others", "", "")


class LimitedLog:
    """Writes `log_lines_at_once` lines of each kind every `log_pause_s`, and then how many it left out."""

    def __init__(self, limits: ConnectionLimits) -> None:
        """Nothing is written yet."""
        self._limits = limits
        self._written: dict[Kind, int] = {}
        self._timers: dict[Kind, asyncio.TimerHandle] = {}

    def info(self, event: str, peer: str, kind: str, reason: str, **values: Any) -> None:
        """As structlog's; `peer`: ADDRESS:PORT of the client, `kind`: what lines are counted by, of few values."""
        if self._may(event, peer, kind):
            log.info(event, peer=peer, reason=reason[:REASON_MAX], **values)

    def warning(self, event: str, peer: str, kind: str, reason: str, **values: Any) -> None:
        """As `info`."""
        if self._may(event, peer, kind):
            log.warning(event, peer=peer, reason=reason[:REASON_MAX], **values)

    def critical(self, event: str, peer: str, error: BaseException) -> None:
        """An error that nobody thought of, with all that is known of it."""
        if self._may(event, peer, type(error).__name__):
            log.critical(event, peer=peer, exc_info=error)

    def close(self) -> None:
        """Tell what was left out so far."""
        for key, timer in list(self._timers.items()):
            timer.cancel()
            self._tell(key)

    def _may(self, event: str, peer: str, kind: str) -> bool:
        key = (event, peer.rpartition(":")[0], kind)
        if key not in self._written and len(self._written) >= self._limits.log_kinds_max:
            key = _OTHERS
        if key not in self._written:
            self._written[key] = 0
            self._timers[key] = asyncio.get_running_loop().call_later(self._limits.log_pause_s, self._tell, key)
        self._written[key] += 1
        return self._written[key] <= self._limits.log_lines_at_once

    def _tell(self, key: Kind) -> None:
        left_out = self._written.pop(key) - self._limits.log_lines_at_once
        del self._timers[key]
        if left_out > 0:
            event, address, kind = key
            log.warning("lines left out", of=event, address=address, kind=kind, lines=left_out)
