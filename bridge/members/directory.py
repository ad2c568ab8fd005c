"""What other bridges own, asked of their REST."""

import asyncio
import json

import aiohttp

from bridge.config import Settings
from bridge.limits import MemberLimits
from bridge.members.membership import Member
from bridge.members.plan import Loads
from bridge.net.certificates import CertificateError
from bridge.net.trust import TrustedServers

PATH = "/admin/v2/delayed/owned"


class SilentError(Exception):
    """A bridge does not say what it owns; the message says why."""


class Directory:
    """Asks with the token that lets somebody see at this bridge, which is set up as the others are."""

    def __init__(self, settings: Settings, trusted: TrustedServers, limits: MemberLimits) -> None:
        """Nothing is opened yet."""
        self._token = _token(settings)
        self._trusted = trusted
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, member: Member) -> Loads:
        """What a bridge owns. Raises SilentError."""
        if member.web_url is None:
            raise SilentError("it does not say where its REST is")
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._limits.answer_s)
            self._session = aiohttp.ClientSession(timeout=timeout, headers=self._headers())
        try:
            checked = self._trusted.context if member.web_url.startswith("https:") else True
            # Not followed anywhere else: the token is for this bridge.
            asked = self._session.get(member.web_url + PATH, allow_redirects=False, ssl=checked)
            async with asked as answer:
                if answer.status != 200:
                    raise SilentError(f"{member.web_url}{PATH}: {answer.status} {(await answer.text())[:200]}")
                return await asyncio.to_thread(loads_in, await answer.text())
        except (aiohttp.ClientError, CertificateError, TimeoutError, ValueError, OSError) as error:
            raise SilentError(f"{member.web_url}{PATH}: {str(error) or type(error).__name__}") from error

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()

    def _headers(self) -> dict[str, str]:
        return {} if self._token is None else {"Authorization": f"Bearer {self._token}"}


def loads_in(text: str) -> Loads:
    """Read the answer. Raises ValueError."""
    try:
        found = {str(each["topic"]): float(each["load"]) for each in json.loads(text)}
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"not a list of topics: {text[:100]!r}") from error
    if any(not 0 <= load < 1e9 for load in found.values()):
        raise ValueError("a load is no number that can be")
    return found


def _token(settings: Settings) -> str | None:
    by_mode = {
        "token": settings.web_read_token or settings.web_token,
        "pulsar": settings.broker_token,
    }
    secret = by_mode.get(settings.access or "off")
    return None if secret is None else secret.get_secret_value()
