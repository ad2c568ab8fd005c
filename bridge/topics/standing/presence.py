"""Whether anybody but bridges is connected to a topic partition. If not, the bridge lets go of it.

A broker does not delete a topic, and does not clean up an inactive one, as long as anything is connected to it: the
bridge's own candidate and readers would stand in the way. Where nobody publishes there is nothing to harvest, and where
nobody consumes there is nothing to deliver; what is pending stays in the index and in the broker meanwhile.
"""

import asyncio
from collections.abc import Callable, Iterable

import structlog

from bridge.broker.admin import AdminClient, AdminError
from bridge.broker.answers import TopicStats
from bridge.broker.reader import READER_NAME_PREFIX
from bridge.limits import TopicLimits
from bridge.net.waiting import is_set_within
from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from tracker import Position

log = structlog.get_logger(__name__)


class Presence:
    """One per tracked topic partition."""

    def __init__(self, topic: str, admin: AdminClient, limits: TopicLimits) -> None:
        """Wanted, for a start."""
        self.resting = False
        """The bridge has let go, or is about to."""
        self.served = asyncio.Event()
        """Set by whoever serves it, when its owner is known; of use after it was let go."""
        self._topic = topic
        self._admin = admin
        self._limits = limits
        self._wanted = asyncio.Event()
        self._look_at = self._look_again_s = 0.0
        self.want()

    def want(self) -> None:
        """Somebody is there, came or left: not to be let go for a while, and to be served again if it was."""
        self._look_again_s = self._limits.let_go_after_s
        self._look_at = asyncio.get_running_loop().time() + self._look_again_s
        self._wanted.set()

    async def serve(self) -> None:
        """Have it served if it was let go; wait a while until it is."""
        resting = self.resting
        if resting:
            self.served.clear()
        self.want()
        if resting:
            await is_set_within(self.served, self._limits.served_wait_s)

    async def let_go(self, harvested: Position | None) -> bool:
        """Whether nobody is connected and nothing left to be read; may be called often, asks the broker seldom.

        The caller lets go then, and calls `rest`.
        """
        now = asyncio.get_running_loop().time()
        if now < self._look_at:
            return False
        self._look_again_s = min(2 * self._look_again_s, 10 * self._limits.let_go_after_s)
        self._look_at = now + self._look_again_s
        self._wanted.clear()
        try:
            alone = only_bridges(await self._admin.topic_stats(self._topic))
            read = harvested is None or await self._admin.last_position(self._topic) <= harvested
        except AdminError as error:
            log.debug("cannot see who is connected", topic=self._topic, reason=str(error))
            return False
        self.resting = alone and read and not self._wanted.is_set()
        return self.resting

    async def let_go_when(self, free: Callable[[], bool], give_up: Callable[[str], None]) -> None:
        """For who stands by: give up once nobody is connected, as long as `free` says so."""
        now = asyncio.get_running_loop().time
        while True:
            if free() and await self.let_go(None):
                break
            await asyncio.sleep(max(self._look_at - now(), self._limits.let_go_after_s / 2))
        give_up("nobody is connected to the topic")

    async def rest(self, names: Callable[[], Iterable[str]]) -> None:
        """Wait, when let go, until somebody wants it or is connected, or one of the subscriptions `names` is gone."""
        while self.resting and not await is_set_within(self._wanted, self._limits.maintenance_interval_s):
            try:
                stats = await self._admin.topic_stats(self._topic)
            except AdminError as error:
                self.resting = error.status is None  # deleted, perhaps: who serves it finds out
                continue
            self.resting = only_bridges(stats) and all(name in stats.consumers for name in names())
        self.resting = False


def only_bridges(stats: TopicStats) -> bool:
    """Whether nobody publishes, and nobody consumes but candidates and readers of bridges."""
    own = (HIDDEN_SUBSCRIPTION, READER_NAME_PREFIX)
    return not stats.publishers and not any(
        consumers for name, consumers in stats.consumers.items() if not name.startswith(own)
    )
