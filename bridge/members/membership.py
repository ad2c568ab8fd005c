"""Which bridges there are: those that the broker lists at a topic on which all of them stand.

No coordination service of our own: a bridge is there as long as the broker has its consumer. The topic holds nothing.
"""

from typing import NamedTuple

from bridge.broker.candidates import WEB_URL
from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from bridge.topics.context import BridgeContext
from bridge.topics.pass_through import stand
from bridge.topics.standing.ownership import Ownership


class Member(NamedTuple):
    """A bridge; `url` is what it is known by, and where it serves clients."""

    url: str
    web_url: str | None = None
    is_certain: bool = False
    """Whether it is a bridge for certain, and not somebody whom nothing tells from one."""


class Membership:
    """This bridge's place among the others."""

    def __init__(self, topic: str, context: BridgeContext) -> None:
        """Nothing is sent before `stand`. `topic`: the same for all bridges of a cluster."""
        self._topic = topic
        self._context = context
        self._ownership: Ownership | None = None

    async def stand(self) -> None:
        """Be there, if this bridge is not yet. Raises BrokerError, AdminError."""
        if self._ownership is not None and not self._ownership.lost.done():
            return
        await self.leave()
        context = self._context
        connection = await context.pool.for_topic(self._topic)
        stated = context.peers.metadata(
            self._topic, context.advertised_url, context.web_url(), context.now_ms(), context.tls_url
        )
        ownership = Ownership(connection, self._topic, context.advertised_url, stated, context.limits.topics)
        try:
            await stand(ownership, context.admin, 0, create=True)
        except BaseException:  # also when nobody waits any more: the broker may know of it
            await ownership.resign()
            raise
        self._ownership = ownership

    async def look(self) -> list[Member]:
        """Who is there, this bridge among them. Raises AdminError."""
        context = self._context
        known = await context.admin.candidates(self._topic, HIDDEN_SUBSCRIPTION)
        context.peers.note_own_role(context.advertised_url, known)
        bridges = context.peers.bridges(self._topic, known)
        certain = context.peers.can_tell
        return list({each.name: Member(each.name, each.metadata.get(WEB_URL), certain) for each in bridges}.values())

    async def leave(self) -> None:
        """Be there no more; errors do not matter."""
        ownership, self._ownership = self._ownership, None
        if ownership is not None:
            await ownership.resign()
