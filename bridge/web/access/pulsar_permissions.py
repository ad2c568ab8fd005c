"""What a role may do, found out by asking the broker's admin REST with the role's own token.

What each call needs was tried on a real broker: the list of a topic's subscriptions needs permission to consume (its
statistics are shown to producers too), the permissions of a namespace an admin role of the tenant, the list of tenants
a super user, the version any token that is valid.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable

import aiohttp
from yarl import URL

from bridge.broker.connection import describe
from bridge.limits import WebLimits
from bridge.net.certificates import CertificateError
from bridge.net.redirects import RedirectedTooOften, RedirectError, request_with_redirects
from bridge.net.trust import TrustedServers
from bridge.protocol.names import TopicName
from bridge.web.access.secret_hash import secret_hash

_ALLOWED = (200, 204)
_REFUSED = (401, 403, 404)


class BrokerSilent(Exception):
    """The broker did not say whether something is allowed; the message says why. It is not allowed then."""


class PulsarPermissions:
    """Answers are kept for a moment, under a hash of the token and the question; for lists of topics for a while.

    One topic shows payloads, which nobody is to read for long whose permission was taken away. A list shows names and
    counts of many topics, which cannot all be asked about again and again.
    """

    def __init__(
        self, web_url: str, clock: Callable[[], float], limits: WebLimits, trusted: TrustedServers | None = None
    ) -> None:
        """`clock` counts seconds; `trusted`: what brokers with TLS are checked by.

        Nothing is opened before the first question.
        """
        self._trusted = TrustedServers() if trusted is None else trusted
        self._web_url = web_url.rstrip("/")
        self._clock = clock
        self._limits = limits
        self._answers: OrderedDict[tuple[bytes, str], tuple[bool, float]] = OrderedDict()
        self._session: aiohttp.ClientSession | None = None
        self._at_once = asyncio.Semaphore(limits.access_questions_at_once)
        self._checks_until = 0.0

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def accepts(self, token: str) -> bool:
        """Whether the broker takes a token for valid. Raises BrokerSilent."""
        await self._make_sure_it_checks()
        return await self._allowed(token, "brokers/version")

    async def is_super_user(self, token: str) -> bool:
        """Whether the role may do all. Raises BrokerSilent."""
        return await self._allowed(token, "tenants")

    async def may_steer(self, token: str, topic: TopicName) -> bool:
        """Whether the role is an admin of the topic's tenant, or a super user. Raises BrokerSilent."""
        if not _is_plain(topic):
            return False
        namespace = "/".join(topic.rest_path.split("/")[1:3])
        return await self._allowed(token, f"namespaces/{namespace}/permissions")

    async def may_see(self, token: str, topic: TopicName) -> bool:
        """Whether the role may consume from the topic. Raises BrokerSilent."""
        # First what is asked once for a namespace, not once for each of its topics.
        answer = await self.may_steer(token, topic) or (
            _is_plain(topic) and await self._allowed(token, f"{topic.rest_path}/subscriptions")
        )
        lasts_s = self._limits.access_list_lasts_s if answer else self._limits.access_answer_lasts_s
        self._keep((secret_hash(token), str(topic)), answer, lasts_s)
        return answer

    def remembers_seeing(self, key: bytes, topic: str) -> bool | None:
        """Return what `may_see` answered a short while ago, None when it has to be asked.

        Cheap, for lists of many topics. `key`: the `secret_hash` of the token.
        """
        known = self._answers.get((key, topic))
        return known[0] if known is not None and self._clock() < known[1] else None

    async def _make_sure_it_checks(self) -> None:
        """A broker that takes anything for a valid token would make everybody anybody."""
        if self._clock() < self._checks_until:
            return
        if await self._ask(f"no-token-{secrets.token_hex(8)}", "brokers/version"):
            raise BrokerSilent("the broker takes any token for valid: access 'pulsar' needs one that checks them")
        self._checks_until = self._clock() + self._limits.access_list_lasts_s

    async def _allowed(self, token: str, path: str) -> bool:
        key = secret_hash(token), path
        known = self._answers.get(key)
        if known is not None and self._clock() < known[1]:
            self._answers.move_to_end(key)
            return known[0]
        async with self._at_once:
            answer = await self._ask(token, path)
        self._keep(key, answer, self._limits.access_answer_lasts_s)
        return answer

    def _keep(self, key: tuple[bytes, str], answer: bool, lasts_s: float) -> None:
        self._answers[key] = answer, self._clock() + lasts_s
        self._answers.move_to_end(key)
        while len(self._answers) > self._limits.access_answers_max:
            self._answers.popitem(last=False)

    async def _ask(self, token: str, path: str) -> bool:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._limits.access_timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        url = URL(f"{self._web_url}/admin/v2/{path}", encoded=True)
        headers = {"Authorization": f"Bearer {token}"}
        try:
            asking = request_with_redirects(self._session, "GET", url, trusted=self._trusted, headers=headers)
            async with asking as answer:
                status = answer.status
        except RedirectedTooOften:
            raise BrokerSilent("the broker redirects without end") from None
        except (aiohttp.ClientError, CertificateError, RedirectError, TimeoutError, ValueError) as error:
            # Without the library's words for what is wrong with a header: they hold the header.
            reason = type(error).__name__ if isinstance(error, ValueError) else describe(error)
            raise BrokerSilent(f"cannot ask the broker whether this is allowed: {reason}") from None
        if status in _ALLOWED:
            return True
        if status in _REFUSED:
            return False
        raise BrokerSilent(f"the broker did not say whether this is allowed: {status}")


def _is_plain(topic: TopicName) -> bool:
    """Dots alone would lead to another path."""
    return not {".", ".."} & {topic.tenant, topic.namespace, topic.name}
