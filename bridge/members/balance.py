"""Sees to it that this bridge has its share: ready for what others own, and the owner of as much as they are."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from bridge.broker.admin import AdminError
from bridge.broker.connection import BrokerError
from bridge.members.membership import Member, Membership
from bridge.members.plan import Loads, Orphans, Owned, Shares, invitations, moves, owned_elsewhere
from bridge.net.backoff import Backoff
from bridge.net.failures import Part
from bridge.net.tasks import all_of
from bridge.topics.context import BridgeContext
from bridge.topics.topics import Topics

log = structlog.get_logger(__name__)

Ask = Callable[[Member], Awaitable[Owned]]


class Balance:
    """`run` until cancelled."""

    def __init__(self, membership: Membership, topics: Topics, ask: Ask, context: BridgeContext) -> None:
        """`ask`: what another bridge owns; raises an Exception where it does not say."""
        self.members: list[Member] = []
        """Those that were there at the last look, this bridge among them."""
        self.shares: Shares = {}
        """What they own, of those that said so."""
        self.leaving: frozenset[str] = frozenset()
        """The URLs of those that are draining."""
        self.clock_offsets_ms: dict[str, float] = {}
        """By URL, how far at least the clocks of others are ahead of this machine's."""
        self.trouble: str | None = None
        """Why this bridge does not know the others; None while it does."""
        self._membership = membership
        self._topics = topics
        self._ask = ask
        self._context = context
        self._limits = context.limits.members
        self._own_url = context.advertised_url
        self._draining = False
        self._wanted: list[str] = []  # to be taken over as soon as this bridge is ready for them
        self._taking: dict[str, float] = {}  # since when, by the event loop's clock
        self._listed: dict[str, tuple[Member, float]] = {}
        self._orphans = Orphans(self._limits.orphan_after_s)

    def owner_of(self, topic: str) -> Member | None:
        """The other bridge that owned a topic partition at the last look."""
        return next((member for member in self.members if topic in self.shares.get(member.url, ())), None)

    @property
    def draining(self) -> bool:
        """Whether this bridge is to own nothing."""
        return self._draining

    def drain(self, draining: bool) -> None:
        """Have others take over what this bridge owns, from now on, or take its share again."""
        if draining != self._draining:
            log.info("draining: others take over what is owned here" if draining else "taking a share again")
        self._draining = draining

    async def run(self) -> None:
        """Look, again and again. Whatever goes wrong, topics are served as they are."""
        pauses = Backoff(self._context.randbits, (self._limits.look_s,))
        try:
            while True:
                try:
                    await self._membership.stand()
                    await self.look()
                    self._note(None)
                except (BrokerError, AdminError) as error:
                    self._note(str(error))
                except Exception as error:  # it goes on with the next look
                    self._context.failures.note(Part.topic, "bridges cannot share topics", error)
                await asyncio.sleep(pauses.next_s())
        finally:
            await self._membership.leave()

    async def look(self) -> None:
        """Look who is there and what they own, and take what this bridge is to have. Raises AdminError."""
        found = await self._membership.look()
        listed = {member.url for member in found}
        self.members = self._remembered(found)
        others = [member for member in self.members if member.url != self._own_url]
        answers = dict(zip(others, await all_of(self._asked(member) for member in others), strict=True))
        gone = [member for member, owned in answers.items() if owned is None and member.url not in listed]
        self.members = [member for member in self.members if member not in gone]
        told = {member.url: owned for member, owned in answers.items() if owned is not None}
        self.clock_offsets_ms = {
            url: owned.clock_offset_ms for url, owned in told.items() if owned.clock_offset_ms is not None
        }
        told[self._own_url] = Owned(await self._topics.owned(), self._draining)
        self.shares = shares = {url: owned.loads for url, owned in told.items()}
        self.leaving = leaving = frozenset(url for url, owned in told.items() if owned.draining)
        # With ten thousand topics this takes a tenth of a second.
        invited = await asyncio.to_thread(invitations, self._own_url, shares, self._context.standby_count, leaving)
        elsewhere, now_s = owned_elsewhere(self._own_url, shares), asyncio.get_running_loop().time()
        whole = len(shares) == len(self.members)  # who does not answer owns something that is not known
        if whole:
            self._wanted = self._to_take(shares, elsewhere, now_s)
            orphans = self._orphans.of(shares, now_s)
            invited.update(() if self._draining else orphans)
        self._topics.invite(invited.union(self._wanted, self._taking), elsewhere)
        for topic in self._wanted if whole else ():
            if self._topics.take_over(topic):
                self._taking[topic] = now_s

    def _to_take(self, shares: Shares, elsewhere: Loads, now_s: float) -> list[str]:
        """What is at hand goes first, then what this bridge has begun to read; what is on its way counts as here."""
        own = shares[self._own_url]
        for topic, at_s in list(self._taking.items()):
            if topic in own or now_s - at_s > self._limits.orphan_after_s:
                del self._taking[topic]
        left = {
            url: {topic: load for topic, load in loads.items() if topic not in self._taking or url == self._own_url}
            for url, loads in shares.items()
        }
        left[self._own_url] = {**dict.fromkeys(self._taking, 1.0), **own}
        preferred = {*self._wanted, *(topic for topic in elsewhere if self._topics.is_ready(topic))}
        count = self._limits.moves_at_once - len(self._taking)
        return moves(self._own_url, left, preferred, count, self.leaving)

    def _remembered(self, listed: list[Member]) -> list[Member]:
        """With those that were listed just now, who may have lost their place for a moment; they have to answer."""
        now_s = asyncio.get_running_loop().time()
        self._listed.update({member.url: (member, now_s) for member in listed})
        for url, (_, at_s) in list(self._listed.items()):
            if now_s - at_s > self._limits.remembered_s:
                del self._listed[url]
        return [member for member, _ in self._listed.values()]

    async def _asked(self, member: Member) -> Owned | None:
        try:
            return await self._ask(member)
        except Exception as error:
            log.debug("a bridge does not say what it owns", bridge=member.url, reason=str(error))
            return None

    def _note(self, trouble: str | None) -> None:
        if trouble is not None and trouble != self.trouble:
            log.warning("the other bridges are not known", reason=trouble)
        self.trouble = trouble
