"""Whether a cursor wants its mark; one client at a time finds out for a subscription.

See `bridge.ledgers.cursor_history` for what the mark is.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import structlog

from bridge.broker.admin import AdminClient, AdminError
from bridge.ledgers.cursor_history import UNKNOWN, history_of
from bridge.ledgers.internal_stats import LedgerState
from bridge.net.failures import Failures, Part

log = structlog.get_logger(__name__)


class Marks:
    """Of all subscriptions that clients of this bridge consume from."""

    def __init__(self, admin: AdminClient, failures: Failures, timeout_s: float) -> None:
        """Ask brokers by `admin`; `timeout_s`: how long an answer is waited for."""
        self._admin = admin
        self._failures = failures
        self._timeout_s = timeout_s
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._users: Counter[tuple[str, str]] = Counter()
        self._queued: dict[str, asyncio.Task[LedgerState]] = {}
        self._running: dict[str, asyncio.Task[LedgerState]] = {}

    async def close(self) -> None:
        """Ask no more."""
        tasks = [*self._queued.values(), *self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def alone(self, topic: str, subscription: str) -> AsyncIterator[None]:
        """Keep others of this bridge from attaching to a subscription meanwhile."""
        key = topic, subscription
        self._users[key] += 1
        try:
            async with self._locks.setdefault(key, asyncio.Lock()):
                yield
        finally:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key], self._locks[key]

    async def is_wanted(self, topic: str, subscription: str) -> bool:
        """Whether a cursor has no mark, as far as its broker says so; nobody may be attached."""
        try:
            async with asyncio.timeout(self._timeout_s):
                state = await self._read(topic)
        except (AdminError, TimeoutError) as error:
            if isinstance(error, AdminError) and error.status == 404:
                return True  # the topic is to be made by this very SUBSCRIBE
            log.debug("cannot tell whether a cursor is marked", topic=topic, reason=str(error))
            return False  # another mark than the one it may have would be worse than none
        if subscription in state.unreadable:
            return False
        cursor = state.cursors.get(subscription)
        return cursor is None or history_of(cursor.properties) == UNKNOWN

    async def _read(self, topic: str) -> LedgerState:
        """What the broker says at or after this moment; those who come while it is asked share the next answer."""
        task = self._queued.get(topic)
        if task is None:
            work = self._ask(topic, self._running.get(topic))
            task = self._queued[topic] = asyncio.get_running_loop().create_task(work)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # also when nobody waits any more
        return await asyncio.shield(task)

    async def _ask(self, topic: str, before: asyncio.Task[LedgerState] | None) -> LedgerState:
        this = asyncio.current_task()
        assert this is not None
        if before is not None:
            await asyncio.wait({before})
        del self._queued[topic]
        self._running[topic] = this
        try:
            return await self._admin.internal_stats(topic)
        except AdminError:
            raise
        except Exception as error:  # whoever waits does without
            self._failures.note(Part.marks, "cannot tell whether cursors are marked", error, topic=topic)
            raise AdminError(f"failed: {error!r}") from error
        finally:
            if self._running.get(topic) is this:
                del self._running[topic]
