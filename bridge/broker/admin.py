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
from bridge.broker.clocks import ClockComparison
from bridge.broker.connection import describe
from bridge.clock import wall_clock_ms
from bridge.ledgers.bookies.layout import Layout, layouts_in
from bridge.ledgers.internal_stats import LedgerState, parse_internal_stats
from bridge.limits import ConnectionLimits
from bridge.net.certificates import CertificateError
from bridge.net.redirects import RedirectError, request_with_redirects
from bridge.net.trust import TrustedServers
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
_UNAVAILABLE = 503
_NO_TOPIC_POLICIES = (404, 405)
_TRANSACTIONS_OFF = "transactionCoordinatorEnabled"


def _pending_acks_path(what: str, topic: str) -> str:
    return f"/admin/v3/transactions/{what}/{TopicName.parse(topic).rest_path.partition('/')[2]}"


class AdminClient:
    """Calls `web_url`; redirects to the owning broker are followed."""

    def __init__(
        self,
        web_url: str,
        limits: ConnectionLimits,
        auth_token: str | None = None,
        trusted: TrustedServers | None = None,
        clocks: ClockComparison | None = None,
    ) -> None:
        """Open no connection yet. Must be called on an event loop. `trusted`: by default the system's authorities."""
        self._trusted = TrustedServers() if trusted is None else trusted
        headers = {"Authorization": f"Bearer {auth_token}"} if auth_token else {}
        self._limits = limits
        self._web_url = web_url.rstrip("/")
        self.clocks = ClockComparison() if clocks is None else clocks
        self.failures = 0
        """Calls without an answer that can be read."""
        self._session = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=30))

    async def internal_stats(self, topic: str) -> LedgerState:
        """Ledgers and cursors of a topic partition. Raises AdminError."""
        path = f"/admin/v2/{TopicName.parse(topic).rest_path}/internalStats"
        return self._read(path, parse_internal_stats, await self._get(path))

    async def ledger_layouts(self, topic: str) -> tuple[dict[int, int], dict[int, Layout]]:
        """How many entries each ledger has, and where they lie. Raises AdminError."""
        path = f"/admin/v2/{TopicName.parse(topic).rest_path}/internalStats?metadata=true"
        return self._read(path, _ledger_layouts, await self._get(path), self._web_url)

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

    async def pending_transactions(self, topic: str, subscription: str) -> int | None:
        """How many transactions entries of a subscription are acked in; None while the broker does not know yet.

        None are where transactions are off. Any role may ask. Raises AdminError.
        """
        path = f"{_pending_acks_path('pendingAckStats', topic)}/{quote(subscription, '')}"
        try:
            return self._read(path, answers.pending_transactions_in, await self._get(path))
        except AdminError as error:
            if error.status == _UNAVAILABLE and _TRANSACTIONS_OFF in str(error):
                return 0
            raise

    async def is_pending(self, topic: str, subscription: str, position: tuple[int, int]) -> bool:
        """Whether an entry is acked in a transaction that has not ended, or some of its messages. Raises AdminError."""
        ledger, entry = position
        path = f"{_pending_acks_path('positionStatsInPendingAck', topic)}/{quote(subscription, '')}/{ledger}/{entry}"
        return self._read(path, answers.is_pending_in, await self._get(path))

    async def is_for_nobody(self, topic: str, position: tuple[int, int]) -> bool:
        """Whether an entry is a marker, or of an aborted transaction, as far as the broker says. Raises AdminError.

        Whoever may consume may ask.
        """
        path = f"/admin/v2/{TopicName.parse(topic).rest_path}/ledger/{position[0]}/entry/{position[1]}"
        _, headers = await self._call("HEAD", path)
        return answers.is_for_nobody(headers)

    async def message_ttl_s(self, topic: str) -> int | None:
        """The message TTL in force; None without one, or where the broker does not let us know."""
        return answers.seconds_in(await self._policy(topic, "messageTTL"))

    async def backlog_quotas(self, topic: str) -> dict[str, Mapping[str, Any]]:
        """The backlog quotas in force by kind; empty without any, or where the broker does not let us know."""
        return answers.quotas_in(await self._policy(topic, "backlogQuotaMap"))

    async def delays(self, topic: str, known: bool = True) -> bool:
        """Whether delayed delivery is on; as it was `known` where the broker does not say so that it is clear."""
        try:
            return await self.policy(topic, "delayedDelivery", answers.delays_in, "delayedDelivery")
        except AdminError:
            return known

    async def policy(self, topic: str, name: str, read: Callable[[Any], T], in_namespace: str) -> T:
        """A policy of the topic that applies to it, or of its namespace, which may call it something else.

        `read` gets the answer, None for an empty one. Raises AdminError.
        """
        return await self._applied(topic, f"{TopicName.parse(topic).rest_path}/{name}", read, in_namespace)

    async def subscription_policy(
        self, topic: str, subscription: str, name: str, read: Callable[[Any], T], in_namespace: str
    ) -> T:
        """The same of one subscription: its own, or the topic's. Raises AdminError."""
        path = f"{TopicName.parse(topic).rest_path}/{quote(subscription, '')}/{name}"
        return await self._applied(topic, path, read, in_namespace)

    async def namespace_policy(self, topic: str, name: str, read: Callable[[Any], T]) -> T:
        """A policy of the topic's namespace alone. Raises AdminError."""
        path = f"{_namespace_path(topic)}/{name}"
        return self._read(path, read, await self._get(path))

    async def broker_setting(self, name: str, read: Callable[[Any], T]) -> T:
        """A setting of the broker that is asked. Raises AdminError, as for a role that is no super user."""
        path = "/admin/v2/brokers/configuration/runtime"
        settings = await self._get(path)
        return self._read(path, lambda body: read(body[name]), settings)

    async def published(self, topic: str) -> tuple[float, float]:
        """Messages, and bytes, published in a second to a topic partition, as of late. Raises AdminError."""
        path = f"/admin/v2/{TopicName.parse(topic).rest_path}/stats"
        return self._read(path, answers.published_in, await self._get(path))

    async def _applied(self, topic: str, path: str, read: Callable[[Any], T], in_namespace: str) -> T:
        """Brokers without topic policies refuse the first; one that is in trouble has no say."""
        path = f"/admin/v2/{path}?applied=true"
        try:
            return self._read(path, read, await self._get(path))
        except AdminError as error:
            if error.status not in _NO_TOPIC_POLICIES:
                raise
        return await self.namespace_policy(topic, in_namespace, read)

    async def _policy(self, topic: str, name: str) -> Any:
        """The topic's own policy, else the namespace's: brokers without topic policies refuse the first."""
        for path in (
            f"/admin/v2/{TopicName.parse(topic).rest_path}/{name}?applied=true",
            f"{_namespace_path(topic)}/{name}",
        ):
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
        text, _ = await self._call(method, path, body)
        return text

    async def _call(self, method: str, path: str, body: object = None) -> tuple[str, Mapping[str, str]]:
        """The text and the headers of an answer. Raises AdminError."""
        url = URL(self._web_url + path, encoded=True)
        sent_s = wall_clock_ms() / 1000
        try:
            asking = request_with_redirects(self._session, method, url, trusted=self._trusted, json=body)
            async with asking as response:
                self._compare_clocks(response.headers.get("Date"), sent_s)
                text = await response.text()
        except (aiohttp.ClientError, CertificateError, RedirectError, TimeoutError, ValueError) as error:
            self.failures += 1
            raise AdminError(f"{method} {path}: {describe(error)}") from error
        if response.status not in (200, 204):
            self.failures += response.status >= _SERVER_ERRORS
            raise AdminError(f"{method} {path}: {response.status} {text[:200]}", response.status)
        return text, response.headers

    def _compare_clocks(self, date: str | None, sent_s: float) -> None:
        """The header tells whole seconds, cut off, of some moment between the request and now."""
        if date is None:
            return
        try:
            told_s = parsedate_to_datetime(date).timestamp()
        except (ArithmeticError, LookupError, TypeError, ValueError):  # no time
            return
        self.clocks.note(told_s, sent_s, wall_clock_ms() / 1000, asyncio.get_running_loop().time())


def _ledger_layouts(body: Any, web_url: str) -> tuple[dict[int, int], dict[int, Layout]]:
    return parse_internal_stats(body).ledger_sizes, layouts_in(body, web_url)


def _namespace_path(topic: str) -> str:
    parsed = TopicName.parse(topic)
    return f"/admin/v2/namespaces/{quote(parsed.tenant, '')}/{quote(parsed.namespace, '')}"
