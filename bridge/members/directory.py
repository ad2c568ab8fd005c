"""What other bridges own, asked of their REST."""

import asyncio
import json

import aiohttp

from bridge.broker.clocks import least_offset
from bridge.clock import wall_clock_ms
from bridge.config import Settings
from bridge.limits import MemberLimits
from bridge.members.membership import Member
from bridge.members.plan import Owned
from bridge.net.certificates import CertificateError
from bridge.net.trust import TrustedServers

PATH = "/admin/v2/delayed/owned"
_WHY_NOT = "set cluster_secret, or peer_urls, that bridges can be told from others"


class SilentError(Exception):
    """A bridge does not say what it owns; the message says why."""


class Directory:
    """Asks with the token that lets somebody see at this bridge, which is set up as the others are.

    Without one who cannot be told from somebody that only says that it is a bridge.
    """

    def __init__(self, settings: Settings, trusted: TrustedServers, limits: MemberLimits) -> None:
        """Nothing is opened yet."""
        self._token = _token(settings)
        self._trusted = trusted
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, member: Member) -> Owned:
        """What a bridge owns. Raises SilentError."""
        if member.web_url is None:
            raise SilentError("it does not say where its REST is")
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._limits.answer_s)
            self._session = aiohttp.ClientSession(timeout=timeout)
        try:
            checked = self._trusted.context if member.web_url.startswith("https:") else True
            # Not followed anywhere else: the token is for this bridge.
            headers = self._headers() if member.is_certain else {}
            asked = self._session.get(member.web_url + PATH, allow_redirects=False, ssl=checked, headers=headers)
            sent_ms = wall_clock_ms()
            async with asked as answer:
                received_ms = wall_clock_ms()
                text = await _text(answer, self._limits.answer_bytes)
                if answer.status != 200:
                    hint = "" if headers or self._token is None else f", asked without a token: {_WHY_NOT}"
                    raise SilentError(f"{member.web_url}{PATH}: {answer.status} {text[:200]}{hint}")
                return await asyncio.to_thread(owned_in, text, sent_ms, received_ms)
        except (aiohttp.ClientError, CertificateError, TimeoutError, ValueError, OSError) as error:
            raise SilentError(f"{member.web_url}{PATH}: {str(error) or type(error).__name__}") from error

    async def close(self) -> None:
        """Close connections."""
        if self._session is not None:
            await self._session.close()

    def _headers(self) -> dict[str, str]:
        return {} if self._token is None else {"Authorization": f"Bearer {self._token}"}


async def _text(answer: aiohttp.ClientResponse, most: int) -> str:
    """Raises ValueError for an answer that is too long."""
    read = bytearray()
    async for part in answer.content.iter_any():
        read += part
        if len(read) > most:
            raise ValueError(f"it answers more than {most:,} bytes")
    return read.decode()


def owned_in(text: str, sent_ms: int, received_ms: int) -> Owned:
    """Read what was asked for, and began to come, at these times by this machine's clock. Raises ValueError."""
    try:
        answer = json.loads(text)
        found = {str(each["topic"]): float(each["load"]) for each in answer["topics"]}
        draining = answer["draining"] is True
        told_ms = answer.get("nowMs")  # those of an earlier version do not say
        offset_ms = None if told_ms is None else least_offset(float(told_ms), sent_ms, received_ms)
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"not a list of topics: {text[:100]!r}") from error
    if any(not 0 <= load < 1e9 for load in found.values()):
        raise ValueError("a load is no number that can be")
    return Owned(found, draining, offset_ms)


def _token(settings: Settings) -> str | None:
    by_mode = {
        "token": settings.web_read_token or settings.web_token,
        "pulsar": settings.broker_token,
    }
    secret = by_mode.get(settings.access or "off")
    return None if secret is None else secret.get_secret_value()
