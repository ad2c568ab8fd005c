"""The few calls of the broker's admin REST interface that the bridge makes."""

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from itertools import islice
from typing import Any
from urllib.parse import quote, unquote_plus

import aiohttp
from yarl import URL

from bridge import limits
from bridge.broker.connection import describe
from bridge.protocol.topic_name import TopicName
from tracker import AckSet, Position, iter_ranges


class AdminError(Exception):
    """An admin call failed; `status` is None when there was no answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        """`message` names the call and the reason."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class CursorState:
    """A durable subscription as `internalStats` shows it; `individually_deleted` lists ranges, see `acks_of`."""

    mark_delete_position: Position
    individually_deleted: str
    properties: dict[str, int]


@dataclass(frozen=True)
class TopicStats:
    """What `stats` says of a topic partition: bytes of backlog, and by subscription consumer names and bytes."""

    backlog_bytes: int
    consumers: dict[str, list[str]]
    backlog_by_subscription: dict[str, int]


RANGES_SLICE = 500
_REDIRECTS = (301, 302, 307, 308)


async def acks_of(cursor: CursorState) -> AckSet:
    """What a cursor has acked. In slices: with a hundred thousand holes it takes a tenth of a second."""
    acks = AckSet(cursor.mark_delete_position)
    ranges = iter_ranges(cursor.individually_deleted)
    while part := list(islice(ranges, RANGES_SLICE)):
        acks.merge_ranges(part)
        await asyncio.sleep(0)
    return acks


@dataclass(frozen=True)
class LedgerState:
    """What `internalStats` says of a topic partition."""

    last_confirmed_entry: Position
    ledger_sizes: dict[int, int] = field(default_factory=dict)
    cursors: dict[str, CursorState] = field(default_factory=dict)

    def entries_between(self, after: Position, upto: Position) -> int:
        """Return how many entries of the topic lie in (after, upto]."""
        entries = 0
        for ledger, size in self.ledger_sizes.items():
            if after.ledger <= ledger <= upto.ledger:
                first = after.entry + 1 if ledger == after.ledger else 0
                end = upto.entry + 1 if ledger == upto.ledger else size
                entries += max(end - first, 0)
        return entries


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
        body = await self._get(f"/admin/v2/{TopicName.parse(topic).rest_path}/internalStats")
        cursors = {unquote_plus(name): _cursor_state(cursor) for name, cursor in body.get("cursors", {}).items()}
        sizes = {int(ledger["ledgerId"]): int(ledger["entries"]) for ledger in body.get("ledgers", [])}
        if sizes:
            sizes[max(sizes)] = int(body.get("currentLedgerEntries", 0))  # the open ledger is listed with 0 entries
        return LedgerState(Position.parse(body["lastConfirmedEntry"]), sizes, cursors)

    async def active_consumer(self, topic: str, subscription: str) -> tuple[str | None, dict[str, str]]:
        """The Failover consumer that the broker elected, None without one, and its metadata. Raises AdminError."""
        found = await self._subscription(topic, subscription)
        name = found.get("activeConsumerName") or None
        metadata = (each.get("metadata") for each in found.get("consumers", []) if each.get("consumerName") == name)
        return name, dict(next(metadata, None) or {})

    async def consumer_names(self, topic: str, subscription: str) -> list[str]:
        """The names of the consumers connected to a subscription. Raises AdminError."""
        found = await self._subscription(topic, subscription)
        return [consumer["consumerName"] for consumer in found.get("consumers", [])]

    async def topic_stats(self, topic: str) -> TopicStats:
        """Consumers and backlogs of all subscriptions. Raises AdminError."""
        body = await self._get(f"/admin/v2/{TopicName.parse(topic).rest_path}/stats?subscriptionBacklogSize=true")
        found = body.get("subscriptions", {})
        return TopicStats(
            int(body.get("backlogSize", 0)),
            {name: [each["consumerName"] for each in one.get("consumers", [])] for name, one in found.items()},
            {name: int(one.get("backlogSize", 0)) for name, one in found.items()},
        )

    async def last_position(self, topic: str) -> Position:
        """The last entry of a topic partition; much cheaper than `internal_stats`. Raises AdminError."""
        path = f"/admin/v2/{TopicName.parse(topic).rest_path}/lastMessageId"
        body = await self._get(path)
        try:
            return Position(int(body["ledgerId"]), int(body["entryId"]))
        except (KeyError, TypeError, ValueError) as error:
            raise AdminError(f"GET {path}: no position in the answer: {body!r}") from error

    async def message_ttl_s(self, topic: str) -> int | None:
        """The message TTL in force; None without one, or where the broker does not let us know."""
        found = await self._policy(topic, "messageTTL")
        return found if isinstance(found, int) and found > 0 else None

    async def backlog_quotas(self, topic: str) -> dict[str, Any]:
        """The backlog quotas in force by kind; empty without any, or where the broker does not let us know."""
        found = await self._policy(topic, "backlogQuotaMap")
        return found if isinstance(found, dict) else {}

    async def _policy(self, topic: str, name: str) -> Any:
        """The topic's own policy, else the namespace's: brokers without topic policies refuse the first."""
        parsed = TopicName.parse(topic)
        namespace = f"/admin/v2/namespaces/{quote(parsed.tenant, '')}/{quote(parsed.namespace, '')}/{name}"
        for path in (f"/admin/v2/{parsed.rest_path}/{name}?applied=true", namespace):
            with contextlib.suppress(AdminError):
                return await self._get(path)
        return None

    async def _subscription(self, topic: str, subscription: str) -> dict[str, Any]:
        body = await self._get(f"/admin/v2/{TopicName.parse(topic).rest_path}/stats")
        found: dict[str, Any] = body.get("subscriptions", {}).get(subscription, {})
        return found

    async def healthy(self) -> bool:
        """Whether the broker says that it serves."""
        try:
            async with self._session.get(f"{self._web_url}/admin/v2/brokers/health") as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def close(self) -> None:
        """Close the HTTP session."""
        await self._session.close()

    async def _get(self, path: str) -> Any:
        """Follow redirects here: the library would leave the token out on its way to another broker."""
        url = URL(self._web_url + path, encoded=True)
        try:
            for _ in range(limits.MAX_LOOKUP_REDIRECTS):
                sent_s = time.time()
                async with self._session.get(url, allow_redirects=False) as response:
                    if response.status in _REDIRECTS:
                        url = url.join(URL(response.headers.get("Location", ""), encoded=True))
                        continue
                    self._compare_clocks(response.headers.get("Date"), sent_s)
                    text = await response.text()
                    if response.status != 200:
                        raise AdminError(f"GET {path}: {response.status} {text[:200]}", response.status)
                    return json.loads(text) if text.strip() else None
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise AdminError(f"GET {path}: {describe(error)}") from error
        raise AdminError(f"GET {path}: redirected {limits.MAX_LOOKUP_REDIRECTS} times")

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


def _cursor_state(cursor: dict[str, Any]) -> CursorState:
    return CursorState(
        Position.parse(cursor["markDeletePosition"]),
        cursor.get("individuallyDeletedMessages") or "[]",
        {name: int(value) for name, value in (cursor.get("properties") or {}).items()},
    )
