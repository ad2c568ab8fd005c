"""The few calls of the broker's admin REST interface that the bridge makes."""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from bridge import limits
from bridge.broker.candidates import Candidate, Candidates
from bridge.broker.connection import describe
from bridge.ledgers.internal_stats import LedgerState, parse_internal_stats
from bridge.net.redirects import RedirectedTooOften, request_with_redirects
from bridge.protocol.names import TopicName
from tracker import Position

MARK_METADATA = "__delay-bridge"
"""What the gateway adds to a consumer's metadata, to know it again; it takes 30 of the 1,024 bytes allowed."""


class AdminError(Exception):
    """An admin call failed; `status` is None when there was no answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        """`message` names the call and the reason."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class TopicStats:
    """What `stats` says of a topic partition: bytes of backlog, and by subscription consumer names and bytes.

    `publishers`: how many producers are connected; `marks`: those that the gateway has given consumers.
    """

    backlog_bytes: int
    consumers: dict[str, list[str]]
    backlog_by_subscription: dict[str, int]
    publishers: int = 0
    marks: frozenset[str] = frozenset()


_FORBIDDEN = 403


class AdminClient:
    """Calls `web_url`; redirects to the owning broker are followed."""

    def __init__(self, web_url: str, auth_token: str | None = None) -> None:
        """Open no connection yet. Must be called on an event loop."""
        headers = {"Authorization": f"Bearer {auth_token}"} if auth_token else {}
        self._web_url = web_url.rstrip("/")
        self.clock_offset_s: float | None = None
        """How far at least the broker's clock is ahead of this machine's, by its last answer; None before that."""
        self._session = aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=30))

    async def internal_stats(self, topic: str) -> LedgerState:
        """Ledgers and cursors of a topic partition. Raises AdminError."""
        path = f"/admin/v2/{TopicName.parse(topic).rest_path}/internalStats"
        with _well_formed(path):
            return parse_internal_stats(await self._get(path))

    async def candidates(self, topic: str, subscription: str) -> Candidates:
        """The consumers of a Failover subscription, and which one the broker elected. Raises AdminError."""
        path = f"/admin/v2/{TopicName.parse(topic).rest_path}/stats"
        body = await self._get(path)
        with _well_formed(path):
            found = body.get("subscriptions", {}).get(subscription, {})
            known = [_candidate(each) for each in found.get("consumers", [])]
            return Candidates(found.get("activeConsumerName") or None, known)

    async def create_subscription(self, topic: str, subscription: str) -> None:
        """Make a durable subscription from the start of the topic; one that exists stays as it is. Raises AdminError.

        Allowed to whoever may consume, also where `allowAutoSubscriptionCreation` is off.
        """
        path = f"/admin/v2/{TopicName.parse(topic).rest_path}/subscription/{quote(subscription, '')}"
        try:
            await self._call("PUT", path, {"ledgerId": -1, "entryId": -1})
        except AdminError as error:
            if error.status != 409:
                raise

    async def topic_stats(self, topic: str) -> TopicStats:
        """Consumers and backlogs of all subscriptions. Raises AdminError."""
        body = await self._get(f"/admin/v2/{TopicName.parse(topic).rest_path}/stats?subscriptionBacklogSize=true")
        with _well_formed(f"stats of {topic}"):
            found = body.get("subscriptions", {})
            return TopicStats(
                int(body.get("backlogSize", 0)),
                {name: [each["consumerName"] for each in one.get("consumers", [])] for name, one in found.items()},
                {name: int(one.get("backlogSize", 0)) for name, one in found.items()},
                len(body.get("publishers", [])),
                frozenset(
                    each["metadata"][MARK_METADATA]
                    for one in found.values()
                    for each in one.get("consumers", [])
                    if MARK_METADATA in (each.get("metadata") or {})
                ),
            )

    async def listed_marks(self, topic: str, marks: Collection[str]) -> set[str]:
        """Those of `marks` that stand in the metadata of the topic partition's consumers. Raises AdminError.

        Marks are such that they occur nowhere else: the answer, a kilobyte for each consumer, need not be parsed.
        """
        text = await self._call_text("GET", f"/admin/v2/{TopicName.parse(topic).rest_path}/stats")
        return {mark for mark in marks if f'"{mark}"' in text}

    async def last_position(self, topic: str) -> Position:
        """The last entry of a topic partition; much cheaper than `internal_stats`. Raises AdminError."""
        path = f"/admin/v2/{TopicName.parse(topic).rest_path}/lastMessageId"
        body = await self._get(path)
        with _well_formed(path):
            return Position(int(body["ledgerId"]), int(body["entryId"]))

    async def message_ttl_s(self, topic: str) -> int | None:
        """The message TTL in force; None without one, or where the broker does not let us know."""
        found = await self._policy(topic, "messageTTL")
        return found if isinstance(found, int) and found > 0 else None

    async def backlog_quotas(self, topic: str) -> dict[str, Any]:
        """The backlog quotas in force by kind; empty without any, or where the broker does not let us know."""
        found = await self._policy(topic, "backlogQuotaMap")
        return found if isinstance(found, dict) else {}

    async def delays(self, topic: str) -> bool:
        """Whether delayed delivery is on; taken for on where the broker does not let us know."""
        found = await self._policy(topic, "delayedDelivery")
        return not isinstance(found, dict) or found.get("active") is not False

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
            async with asyncio.timeout(limits.ADMIN_CHECK_TIMEOUT_S):
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
        return await self._call("GET", path)

    async def _call(self, method: str, path: str, body: object = None) -> Any:
        text = await self._call_text(method, path, body)
        try:
            return json.loads(text) if text.strip() else None
        except ValueError as error:
            raise AdminError(f"{method} {path}: {error}") from error

    async def _call_text(self, method: str, path: str, body: object = None) -> str:
        url = URL(self._web_url + path, encoded=True)
        sent_s = time.time()
        try:
            async with request_with_redirects(self._session, method, url, json=body) as response:
                self._compare_clocks(response.headers.get("Date"), sent_s)
                text = await response.text()
        except (aiohttp.ClientError, RedirectedTooOften, TimeoutError, ValueError) as error:
            raise AdminError(f"{method} {path}: {describe(error)}") from error
        if response.status not in (200, 204):
            raise AdminError(f"{method} {path}: {response.status} {text[:200]}", response.status)
        return text

    def _compare_clocks(self, date: str | None, sent_s: float) -> None:
        """The header tells whole seconds, cut off, of some moment between the request and now."""
        if date is None:
            return
        try:
            told_s = parsedate_to_datetime(date).timestamp()
        except ValueError:
            return
        least, most = told_s - time.time(), told_s + 1 - sent_s
        self.clock_offset_s = least if least > 0 else min(most, 0.0)


def _candidate(consumer: dict[str, Any]) -> Candidate:
    try:
        connected_ms = round(datetime.fromisoformat(consumer["connectedSince"]).timestamp() * 1000)
    except (KeyError, TypeError, ValueError):  # not every broker writes it alike
        connected_ms = None
    stated = {str(key): str(value) for key, value in (consumer.get("metadata") or {}).items()}
    return Candidate(consumer.get("consumerName") or "", consumer.get("appId") or None, stated, connected_ms)


@contextlib.contextmanager
def _well_formed(what: str) -> Iterator[None]:
    """An answer that lacks a field, or holds something else there, is a call that failed: the next may not."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise AdminError(f"{what}: the answer cannot be read: {reason}") from error
