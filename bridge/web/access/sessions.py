"""Browsers that are logged in: a random id in a cookie, the token it stands for in memory only."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import NamedTuple

from bridge.limits import WebLimits
from bridge.web.access.secret_hash import secret_hash


class Session(NamedTuple):
    """What a cookie stands for; `until` by the clock of `Sessions`."""

    token: str
    until: float


class Sessions:
    """Bounded in number and time; gone when the bridge ends."""

    def __init__(self, clock: Callable[[], float], limits: WebLimits) -> None:
        """`clock` counts seconds."""
        self._clock = clock
        self._limits = limits
        self._known: dict[bytes, Session] = {}

    @property
    def last_s(self) -> float:
        """How long a browser stays logged in."""
        return self._limits.web_session_lasts_s

    def __len__(self) -> int:
        """Return how many are logged in."""
        return len(self._known)

    def open(self, token: str) -> str:
        """Return the id of a new session."""
        session_id = secrets.token_urlsafe(32)
        now = self._clock()
        self._known = {key: one for key, one in self._known.items() if one.until > now}
        while len(self._known) >= self._limits.web_sessions_max:
            del self._known[next(iter(self._known))]
        self._known[secret_hash(session_id)] = Session(token, now + self._limits.web_session_lasts_s)
        return session_id

    def token(self, session_id: str) -> str | None:
        """Return the token of a session, None when it is not known or over."""
        session = self._known.get(secret_hash(session_id))
        return session.token if session is not None and self._clock() < session.until else None

    def close(self, session_id: str) -> None:
        """Forget a session."""
        self._known.pop(secret_hash(session_id), None)
