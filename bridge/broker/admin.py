"""The few calls of the broker's admin REST interface that the bridge makes."""

import asyncio
import contextlib
import re
from collections.abc import Callable, Collection, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote

import aiohttp
from yarl import URL

from bridge.broker import answers
from bridge.broker.answers import TopicStats
from bridge.broker.candidates import Candidates
from bridge.broker.connection import describe
from bridge.clock import wall_clock_ms
from bridge.ledgers.internal_stats import LedgerState, parse_internal_stats
from bridge.limits import ConnectionLimits
from bridge.net.redirects import RedirectedTooOften, request_with_redirects
from bridge.protocol.names import TopicName
from tracker import Position


class AdminError(Exception):
    """An admin call failed; `status` is None when there was no answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        """`message` names the call and the reason."""
        super().__init__(message)
        self.status = status


P = ParamSpec("P")
T = TypeVar("T")

_FORBIDDEN = 403
_SERVER_ERRORS = 500


class AdminClient:
    """Calls `web_url`; redirects to the owning broker are followed."""

    def __init__(self, web_url: str, limits: ConnectionLimits, auth_token: str | None = None) -> None:
        """Open no connection yet. Must be called on an event loop."""
        headers = {"Authorization": f"Bearer {auth_token}"} if auth_token else {}
        self._limits = limits
        self._web_url = web_url.rstrip("/")
        self.clock_offset_s: float | None = None
        """How far at least the broker's clock is ahead of this machine's, by its last answer; None before that."""
        self.failures = 0
        """Calls without an answer that can be read."""
        self._session = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=30))

    async def internal_stats(self, topic: str) -> LedgerState:
        """Ledgers and cursors of a topic partition. Raises AdminError."""
        path = f"/admin/v2/{TopicName.parse(topic).rest_path}/internalStats"
        return self._read(path, parse_internal_stats, await self._get(path))

    async def candidates(self, topic: str, subscription: str) -> Candidates:
        """The consumers of a Failover subscription, and which one the broker elected. Raises AdminError."""
        path = f"/admin/v2/{TopicName.parse(topic).rest_path}/stats"
        return self._read(path, answers.candidates_in, await self._get(path), subscription)

    async def create_subscription(self, topic: str, subscription: str) -> None:
        """Make a durable subscription from the start of the topic; one that exists stays as it is. Raises AdminError.

        Allowed to whoever may consume, also where `allowAutoSubscriptionCreation` is off.
        """
        path = f"/admin/v2/{TopicName.parse(topic).rest_path}/subscription/{quote(subscription, '')}"
        try:
            await self._call_text("PUT", path, {"ledgerId": -1, "entryId": -1})
        except AdminError as error:
            if error.status != 409:
                raise

    async def topic_stats(self, topic: str) -> TopicStats:
        """Consumers and backlogs of all subscriptions. Raises AdminError."""
        path = f"/admin/v2/{TopicName.parse(topic).rest_path}/stats?subscriptionBacklogSize=true"
        return self._read(path, answers.topic_stats_in, await self._get(path))

    async def listed_marks(self, topic: str, marks: Collection[str]) -> set[str]:
        """Those of `marks` that stand in the metadata of the topic partition's consumers. Raises AdminError."""
        path = f"/admin/v2/{TopicName.parse(topic).rest_path}/stats"
        return self._read(path, answers.marks_in, await self._call_text("GET", path), marks)

    async def last_position(self, topic: str) -> Position:
        """The last entry of a topic partition; much cheaper than `internal_stats`. Raises AdminError."""
        path = f"/admin/v2/{TopicName.parse(topic).rest_path}/lastMessageId"
        return self._read(path, answers.position_in, await self._get(path))

    async def message_ttl_s(self, topic: str) -> int | None:
        """The message TTL in force; None without one, or where the broker does not let us know."""
        return answers.seconds_in(await self._policy(topic, "messageTTL"))

    async def backlog_quotas(self, topic: str) -> dict[str, Mapping[str, Any]]:
        """The backlog quotas in force by kind; empty without any, or where the broker does not let us know."""
        return answers.quotas_in(await self._policy(topic, "backlogQuotaMap"))

    async def delays(self, topic: str) -> bool:
        """Whether delayed delivery is on; taken for on where the broker does not let us know."""
        return answers.delays_in(await self._policy(topic, "delayedDelivery"))

    async def _policy(self, topic: str, name: str) -> Any:
        """The topic's own policy, else the namespace's: brokers without topic policies refuse the first."""
        parsed = TopicName.parse(topic)
        namespace = f"/admin/v2/namespaces/{quote(parsed.tenant, '')}/{quote(parsed.namespace, '')}/{name}"
        for path in (f"/admin/v2/{parsed.rest_path}/{name}?applied=true", namespace):
            with contextlib.suppress(AdminError):
                return await self._get(path)
        return None

    async def check(self) -> None:
        """Return when the broker's admin interface is there and knows this role. Raises AdminError naming the URL."""
        path = "/admin/v2/brokers/version"
        try:
            async with asyncio.timeout(self._limits.admin_check_timeout_s):
                version = await self._call_text("GET", path)
        except (AdminError, TimeoutError) as error:
            if isinstance(error, AdminError) and error.status == _FORBIDDEN:  # it is there, and knows the role
                return
            raise AdminError(f"broker_web_url {self._web_url} cannot be used: {describe(error)}") from error
        if not re.match(r"\d+\.\d+", version):
            raise AdminError(f"broker_web_url {self._web_url} is not a broker's: GET {path}: {version[:50]!r}")

    async def close(self) -> None:
        """Close the HTTP session."""
        await self._session.close()

    async def _get(self, path: str) -> Any:
        return self._read(path, answers.parse_json, await self._call_text("GET", path))

    def _read(
        self, path: str, read: Callable[Concatenate[Any, P], T], answer: Any, *rest: P.args, **named: P.kwargs
    ) -> T:
        """An answer that cannot be read is a call that failed, whatever is wrong with it: the next may not."""
        try:
            return read(answer, *rest, **named)
        except Exception as error:
            self.failures += 1
            reason = f"{error} is missing" if isinstance(error, KeyError) else f"{error}" or repr(error)
            raise AdminError(f"{path}: the answer cannot be read: {reason}") from error

    async def _call_text(self, method: str, path: str, body: object = None) -> str:
        url = URL(self._web_url + path, encoded=True)
        sent_s = wall_clock_ms() / 1000
        try:
            async with request_with_redirects(self._session, method, url, json=body) as response:
                self._compare_clocks(response.headers.get("Date"), sent_s)
                text = await response.text()
        except (aiohttp.ClientError, RedirectedTooOften, TimeoutError, ValueError) as error:
            self.failures += 1
            raise AdminError(f"{method} {path}: {describe(error)}") from error
        if response.status not in (200, 204):
            self.failures += response.status >= _SERVER_ERRORS
            raise AdminError(f"{method} {path}: {response.status} {text[:200]}", response.status)
        return text

    def _compare_clocks(self, date: str | None, sent_s: float) -> None:
        """The header tells whole seconds, cut off, of some moment between the request and now."""
        if date is None:
            return
        try:
            told_s = parsedate_to_datetime(date).timestamp()
        except (ArithmeticError, LookupError, TypeError, ValueError):  # no time
            return
        least, most = told_s - wall_clock_ms() / 1000, told_s + 1 - sent_s
        self.clock_offset_s = least if least > 0 else min(most, 0.0)
