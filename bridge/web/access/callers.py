"""Callers of the web server, and the three ways to know them: not at all, by two tokens, by Pulsar."""

from __future__ import annotations

import base64
import hmac
import json
from dataclasses import dataclass, field
from typing import Protocol

from bridge.protocol.names import TopicName
from bridge.web.access.pulsar_permissions import PulsarPermissions
from bridge.web.access.secret_hash import secret_hash

_ROLE_LENGTH = 200


@dataclass(frozen=True)
class Caller:
    """Who makes a request, by the rules that know; the token is for asking the broker."""

    name: str
    rules: Rules = field(repr=False)
    may_steer: bool = False
    token: str | None = field(default=None, repr=False)
    key: bytes = field(default=b"", repr=False)


class Rules(Protocol):
    """Methods that ask the broker raise BrokerSilent."""

    @property
    def sees_all(self) -> bool:
        """Whether who may see at all may see every topic."""

    async def identify(self, token: str | None) -> Caller | None:
        """Return who presents a token, None for nobody."""

    def remembers_seeing(self, caller: Caller, topic: str) -> bool | None:
        """Whether a caller may see a topic, None when that has to be asked."""

    async def may_see(self, caller: Caller, topic: TopicName | None) -> bool:
        """Whether a caller may see a topic; without one: whatever is there for him."""

    async def may_steer(self, caller: Caller, topic: TopicName | None) -> bool:
        """Whether a caller may steer a topic; without one: all of them."""

    def reason(self, caller: Caller, permission: str, topic: TopicName | None) -> str:
        """Say what a caller lacks."""


class Unrestricted:
    """Whoever reaches the port may do all."""

    sees_all = True

    async def identify(self, token: str | None) -> Caller | None:
        """Return the one caller there is."""
        return Caller("local", self, may_steer=True)

    def remembers_seeing(self, caller: Caller, topic: str) -> bool | None:
        """Return True."""
        return True

    async def may_see(self, caller: Caller, topic: TopicName | None) -> bool:
        """Return True."""
        return True

    async def may_steer(self, caller: Caller, topic: TopicName | None) -> bool:
        """Return True."""
        return True

    def reason(self, caller: Caller, permission: str, topic: TopicName | None) -> str:
        """Never asked for."""
        return "not allowed"


class TokenRules:
    """One token that may do all, and one that may look; either may be None."""

    sees_all = True

    def __init__(self, token: str | None, read_token: str | None) -> None:
        """Keep hashes, of the same length whatever the tokens'."""
        self._known = [
            (secret_hash(known), Caller(name, self, may_steer))
            for known, name, may_steer in ((token, "token", True), (read_token, "read-token", False))
            if known is not None
        ]

    @property
    def any_set(self) -> bool:
        """Whether there is a token at all."""
        return bool(self._known)

    async def identify(self, token: str | None) -> Caller | None:
        """Compare with both, in a time that does not depend on them."""
        found = self._callers(token or "")
        return found[0] if found and token else None

    def holds(self, token: str) -> bool:
        """Whether it is one of them."""
        return bool(self._callers(token))

    def _callers(self, token: str) -> list[Caller]:
        given = secret_hash(token)
        return [caller for known, caller in self._known if hmac.compare_digest(known, given)]

    def remembers_seeing(self, caller: Caller, topic: str) -> bool | None:
        """Return True: both may."""
        return True

    async def may_see(self, caller: Caller, topic: TopicName | None) -> bool:
        """Return True: both may."""
        return True

    async def may_steer(self, caller: Caller, topic: TopicName | None) -> bool:
        """Return whether it is the token that may."""
        return caller.may_steer

    def reason(self, caller: Caller, permission: str, topic: TopicName | None) -> str:
        """Say which token it takes."""
        return f"{caller.name} may not {permission}: that needs web_token, this is web_read_token"


class PulsarRules:
    """The caller's own token, and what the broker says of it."""

    sees_all = False

    def __init__(self, permissions: PulsarPermissions) -> None:
        """`permissions` asks the broker."""
        self._permissions = permissions

    async def identify(self, token: str | None) -> Caller | None:
        """Return the role, once the broker took the token for valid."""
        if not token or not await self._permissions.accepts(token):
            return None
        return Caller(role_in(token) or "pulsar client", self, token=token, key=secret_hash(token))

    def remembers_seeing(self, caller: Caller, topic: str) -> bool | None:
        """Return what the broker said a short while ago."""
        return self._permissions.remembers_seeing(caller.key, topic)

    async def may_see(self, caller: Caller, topic: TopicName | None) -> bool:
        """Return whether the role may consume."""
        return topic is None or await self._permissions.may_see(caller.token or "", topic)

    async def may_steer(self, caller: Caller, topic: TopicName | None) -> bool:
        """Return whether the role is an admin of the tenant."""
        if topic is None:
            return await self._permissions.is_super_user(caller.token or "")
        return await self._permissions.may_steer(caller.token or "", topic)

    def reason(self, caller: Caller, permission: str, topic: TopicName | None) -> str:
        """Say which permission the role lacks in Pulsar."""
        if topic is None:
            return f"role {caller.name!r} may not {permission} this: that needs a super user"
        needed = f"an admin role of tenant {topic.tenant}" if permission == "steer" else "permission to consume"
        return f"role {caller.name!r} may not {permission} {topic}: that needs {needed}"


def role_in(token: str) -> str | None:
    """Return the subject that a JWT names, None without one. Not verified here: ask only once the broker did."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        payload = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return None
    subject = payload.get("sub") if isinstance(payload, dict) else None
    if not isinstance(subject, str) or not subject.isprintable():
        return None
    return subject[:_ROLE_LENGTH] or None
