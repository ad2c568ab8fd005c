"""Which bridge dispatches a topic partition: the one whose consumer the broker elects on `__delay-bridge`.

A Failover consumer with 0 permits, named after the bridge's advertised URL. The harvested position and the
subscriptions' checkpoints are kept in that subscription's cursor, as its mark-delete position and as properties of
the cumulative ack that moves it: the broker keeps them, and gives them to the next owner.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping

from bridge.broker.admin import AdminClient
from bridge.broker.candidates import LEVEL, Candidates
from bridge.broker.connection import BrokerConnection, BrokerError
from bridge.limits import TopicLimits
from bridge.net.waiting import is_set_within
from bridge.protocol import commands
from bridge.protocol.entries import StoredEntry
from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from bridge.topics.standing.election import FIRST_LEVEL, Election
from tracker import Position


class Ownership:
    """The bridge's candidacy for one topic partition."""

    def __init__(
        self,
        connection: BrokerConnection,
        topic: str,
        advertised_url: str,
        metadata: Mapping[str, str],
        limits: TopicLimits,
    ) -> None:
        """Nothing is sent yet. `metadata`: what proves this bridge to others, see `bridge.broker.candidates`."""
        self.topic = topic
        self.connection = connection
        self.active = asyncio.Event()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.deposed = False
        """It was the owner, and the broker has elected another bridge."""
        self.own_url = advertised_url
        self._metadata = metadata
        self._limits = limits
        self._consumer_id = connection.register(self)
        self._news = 0  # so often the broker spoke of the election
        self._to_look = asyncio.Event()
        self._looked_s = -math.inf
        self._seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gone = False  # the broker does not know the consumer any more

    async def stand(self, level: int = FIRST_LEVEL, *, create: bool = False) -> None:
        """Become a candidate, at a priority level; `create`: of a topic that may not exist yet. Raises BrokerError."""
        request_id = self.connection.next_request_id()
        # From the start of the topic: the broker is to keep what a bridge has not harvested yet.
        stated = {**self._metadata, LEVEL: str(level)}
        command = commands.subscribe_failover(
            self.topic,
            HIDDEN_SUBSCRIPTION,
            self._consumer_id,
            request_id,
            self.own_url,
            stated,
            level,
            create=create,
        )
        await self.connection.request(command, request_id)

    async def elected(
        self, admin: AdminClient, on_known: Callable[[Candidates, bool], None], before: Candidates | None = None
    ) -> None:
        """Wait until this bridge is the owner. Raises BrokerError, AdminError. `before`: who stood when it did not yet.

        `on_known` is told who stands, and whether the broker had the time to elect one.

        The broker tells a new owner about a second late, to let the former one finish. When there is no
        other candidate there is no former one, and the stats say so at once. They are looked at when the broker has
        news, when somebody asks for the owner, and ever more seldom otherwise: there may be thousands of topics.
        """
        loop = asyncio.get_running_loop()
        election = Election(self.own_url, self._limits, loop.time(), before)
        try:
            while not self.active.is_set():
                if self.lost.done():
                    raise BrokerError(self.lost.result())
                # Many may ask at once.
                await asyncio.sleep(max(self._looked_s + self._limits.election_poll_s - loop.time(), 0))
                self._to_look.clear()
                news = self._news
                known = await admin.candidates(self.topic, HIDDEN_SUBSCRIPTION)
                on_known(known, election.settled(loop.time()))
                self._note_seen(loop.time())
                # What came of the election while the stats were on their way is of others, who came since.
                if election.is_won(known, loop.time()) and news == self._news:
                    self.active.set()
                elif await is_set_within(self._to_look, election.pause_s):
                    election.woken(by_broker=news != self._news)
                else:
                    election.waited()
        finally:
            self._note_seen(loop.time())

    def look_soon(self) -> None:
        """Look who owns the topic partition, however lately that was done."""
        self._to_look.set()

    async def looked_at(self) -> None:
        """Return when who owns the topic partition was looked at just now, or that takes too long."""
        over = self.active.is_set() or self.lost.done()
        if not over and asyncio.get_running_loop().time() - self._looked_s > self._limits.owner_known_s:
            self._to_look.set()
            await asyncio.wait({self._seen}, timeout=self._limits.owner_wait_s)

    def _note_seen(self, now_s: float) -> None:
        self._looked_s = now_s
        self._seen.set_result(None)
        self._seen = asyncio.get_running_loop().create_future()

    def keep(self, harvested_position: Position, properties: dict[str, int]) -> None:
        """Store the harvested position, which must be on disk, and `properties` in the broker's cursor."""
        if self.lost.done():
            return
        self.connection.send(commands.ack_up_to(self._consumer_id, harvested_position, properties))

    async def resign(self, *, unsubscribe: bool = False) -> None:
        """Give the topic partition up, and with `unsubscribe` its cursor; errors do not matter any more."""
        if self._gone:
            return
        self._gone, lost = True, self.lost.done()
        self.connection.unregister(self._consumer_id)
        self._lose("resigned")
        with contextlib.suppress(BrokerError):
            if unsubscribe and await self._unsubscribe():
                return
            request_id = self.connection.next_request_id()
            command = commands.close_consumer(self._consumer_id, request_id)
            if lost:
                # Deposed, or in trouble: the consumer is still a candidate, and would be elected without knowing of it.
                # The broker may have closed it just now, and give no answer.
                self.connection.send(command)
            else:
                await self.connection.request(command, request_id, timeout_s=self.connection.limits.close_timeout_s)

    async def _unsubscribe(self) -> bool:
        """Delete the cursor. A broker refuses while another bridge stands for it too, and keeps this consumer."""
        request_id = self.connection.next_request_id()
        command = commands.unsubscribe(self._consumer_id, request_id)
        try:
            await self.connection.request(command, request_id, timeout_s=self.connection.limits.close_timeout_s)
        except BrokerError:
            return False
        return True

    # -- ConsumerListener

    def on_entries(self, entries: list[StoredEntry]) -> None:
        """Without permits there are none."""

    def on_active(self, active: bool) -> None:
        """Elected, or deposed: a deposed owner stops at once."""
        self._news += 1
        self._to_look.set()
        if active:
            self.active.set()
        elif self.active.is_set():
            self.deposed = True
            self._lose("another bridge was elected")

    def on_closed(self, reason: str) -> None:
        """The topic was unloaded, or the broker is gone."""
        self._gone = True
        self._lose(reason)

    def give_up(self, reason: str) -> None:
        """Not to be the owner any more, for a reason of the bridge's own; `resign` is still to come."""
        self._lose(reason)

    def _lose(self, reason: str) -> None:
        self._to_look.set()
        if not self.lost.done():
            self.lost.set_result(reason)
