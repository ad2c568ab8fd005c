"""Statistics of topics: asked of the broker, completed here or by the bridge that owns the topic."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from yarl import URL

from bridge.broker.answers import candidates_in, parse_json
from bridge.clock import wall_clock_ms
from bridge.net.tasks import all_of
from bridge.protocol.names import HIDDEN_SUBSCRIPTION, TopicName
from bridge.topics.topics import Topics
from bridge.web.front_door.bodies import BadBody
from bridge.web.front_door.broker import NoAnswer, Question
from bridge.web.front_door.relay import Relay
from bridge.web.front_door.stats import Stats, added_up, filled, has_own, is_own, with_subscriptions
from bridge.web.front_door.truths import truths_of

REMARK: Final = "X-Delay-Bridge-Stats"
"""Of an answer: `filled` when it is complete, else `partly` or `broker`, and why."""
ASKED_BY: Final = "X-Delay-Bridge-Asked-By"
"""Of a question: another bridge asks, which takes this one for the owner. It is not asked back."""
SHOW_OWN: Final = "showDelayBridge"
"""The parameter that shows the bridge's own subscriptions too."""
FILLED: Final = "filled"


class Told(NamedTuple):
    """Statistics as the caller gets them, and the remark on them."""

    stats: Stats
    remark: str = FILLED


class Asking(NamedTuple):
    """On whose behalf: `question` is the caller's, `own_url` what other bridges know this one by."""

    relay: Relay
    topics: Topics
    question: Question
    own_url: str

    @property
    def show_own(self) -> bool:
        """Whether the caller wants the bridge's own subscriptions too."""
        return URL(self.question.target, encoded=True).query.get(SHOW_OWN, "").lower() == "true"

    async def of_topic(self, topic: str, text: bytes) -> Told:
        """What `stats` of a topic partition is told, where the broker told `text`. Raises NoAnswer."""
        return await self._told(topic, _read(text))

    async def of_partitions(self, text: bytes, *, each: bool) -> Told:
        """What `partitioned-stats` is told, where the broker told `text`, its partitions too; `each`: tell them.

        Raises NoAnswer.
        """
        total = _read(text)
        before = _partitions(total)
        room = asyncio.Semaphore(self.relay.limits.relay_partitions_at_once)

        async def told(topic: str, stats: Stats) -> Told:
            async with room:
                return await self._told(topic, stats)

        after = dict(zip(before, await all_of(told(*one) for one in before.items()), strict=True))
        try:
            changed = added_up(total, before.values(), [one.stats for one in after.values()], show_own=self.show_own)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _unreadable(error) from error
        changed["partitions"] = {topic: one.stats for topic, one in after.items()} if each else {}
        return Told(changed, _common_remark({topic: one.remark for topic, one in after.items()}))

    async def _told(self, topic: str, stats: Stats) -> Told:
        try:
            here = self._from_here(topic, stats)
            if here is not None:
                return here
            if not has_own(stats) and self.topics.get(topic) is None:
                return Told(stats, "broker; no bridge dispatches it")
            reason, web_url = self._owner(topic, stats)
            if web_url is not None:
                try:
                    return await self._from_owner(topic, web_url)
                except (NoAnswer, BadBody) as error:
                    reason = f"the bridge that owns it did not say: {error}"
            own = with_subscriptions(stats, stats["subscriptions"], show_own=self.show_own)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _unreadable(error) from error
        return Told(own, f"broker; {reason}")

    def _from_here(self, topic: str, stats: Stats) -> Told | None:
        known = self.topics.get(topic)
        exactly = self.relay.limits.count_exactly_entries
        truths = None if known is None else truths_of(known, wall_clock_ms(), exactly)
        if truths is None:
            return None
        remark = FILLED if truths.remark is None else f"partly; {truths.remark}"
        return Told(filled(stats, truths.subscriptions, show_own=self.show_own), remark)

    def _owner(self, topic: str, stats: Stats) -> tuple[str, str | None]:
        """Why it is not told from here, and where the bridge is that can, if it may be asked."""
        if ASKED_BY in self.question.headers:
            return "the bridge that was asked does not own it", None
        known = self.topics.get(topic)
        if known is not None and known.role == "passed-through":
            return "the broker dispatches it", None
        if known is not None and known.owner_web_url is not None:
            return "", known.owner_web_url
        believed = self.topics.believed_owner(topic, candidates_in(stats, HIDDEN_SUBSCRIPTION))
        if believed.url in (None, self.own_url):
            return believed.doubt or "no bridge owns it at the moment", None
        return "the bridge that owns it does not say where it is", believed.web_url

    async def _from_owner(self, topic: str, web_url: str) -> Told:
        """Raises NoAnswer when it does not know better."""
        query = self.question.target.partition("?")[2]
        headers = self.question.headers.copy()
        headers[ASKED_BY] = self.own_url
        target = f"/admin/v2/{TopicName.parse(topic).rest_path}/stats" + (f"?{query}" if query else "")
        answer, text = await self.relay.whole(Question("GET", target, headers), web_url)
        remark = answer.headers.get(REMARK, "")
        if answer.status != 200 or not remark.startswith((FILLED, "partly")):
            raise NoAnswer(f"{answer.status} {remark[:200]}".strip())
        return Told(_read(text), remark)


def with_partitions(question: Question) -> tuple[Question, bool]:
    """The question for the statistics of all partitions beside their sum; whether the caller wants to see them."""
    url = URL(question.target, encoded=True)
    each = url.query.get("perPartition", "true").lower() == "true"
    return question._replace(target=str(url.update_query(perPartition="true"))), each


def without_own(text: bytes) -> bytes:
    """The list of a topic's subscriptions, where the broker told `text`. Raises NoAnswer."""
    try:
        found = json.loads(text)
        return json.dumps([name for name in found if not is_own(name)]).encode()
    except (AttributeError, TypeError, ValueError) as error:
        raise _unreadable(error) from error


def _read(text: bytes) -> Stats:
    try:
        found = parse_json(text.decode())
    except ValueError as error:
        raise _unreadable(error) from error
    if not isinstance(found, dict) or not isinstance(found.get("subscriptions"), dict):
        raise _unreadable(ValueError("no statistics"))
    return found


def _partitions(total: Mapping[str, Any]) -> dict[str, Stats]:
    found = total.get("partitions")
    if not isinstance(found, dict):
        raise _unreadable(ValueError("no partitions"))
    return found


def _common_remark(remarks: Mapping[str, str]) -> str:
    """One for all partitions; where they differ, the first that is not complete."""
    odd = {topic: remark for topic, remark in remarks.items() if remark != FILLED}
    if not odd:
        return FILLED
    topic, remark = next(iter(odd.items()))
    if len(set(remarks.values())) == 1:
        return remark
    return f"partly; {len(odd)} of {len(remarks)} partitions, {topic}: {remark}"


def _unreadable(error: Exception) -> NoAnswer:
    return NoAnswer(f"the broker's answer cannot be read: {type(error).__name__} {str(error)[:100]}")
