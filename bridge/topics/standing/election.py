"""Where to stand for a topic partition, what to make of who else does, and when to look again. Pure.

Bridges stand one behind the other: a broker elects among the consumers of the lowest priority level, so a newcomer that
stands behind all others does not depose an owner, and one that is to take over stands before it.
"""

from collections.abc import Sequence

from bridge.broker.candidates import Candidate, Candidates
from bridge.broker.connection import BrokerError
from bridge.limits import TopicLimits

Candidacy = tuple[str, int]
"""Whose it is, and since when, in epoch ms."""
FIRST_LEVEL = 1 << 20
"""Of who stands alone: there is room before it and behind it."""
LAST_LEVEL = (1 << 31) - 1


def level_behind(others: Sequence[Candidate]) -> int:
    """Behind everybody who stands."""
    return min(max((each.level + 1 for each in others), default=FIRST_LEVEL), LAST_LEVEL)


def level_before(others: Sequence[Candidate]) -> int:
    """Before everybody who stands; there may be no room, and the broker chooses among equals then."""
    return max(min((each.level - 1 for each in others), default=FIRST_LEVEL), 0)


class Election:
    """One candidacy of this bridge."""

    def __init__(self, own_url: str, limits: TopicLimits, now_s: float, before: Candidates | None = None) -> None:
        """It has just begun to stand; `before`: who stood until then, as far as that is known."""
        self._own_url = own_url
        self._former: Candidacy | None = None
        self._note_former(before or Candidates(None, ()))
        self._limits = limits
        self._began_s = now_s
        self._mine_since_s: float | None = None
        self.pause_s = limits.election_poll_s
        """How long to wait for news or questions before the next look: ever longer."""

    def settled(self, now_s: float) -> bool:
        """Whether the broker had the time to elect somebody."""
        return now_s - self._began_s > self._limits.election_lasts_s

    def is_won(self, known: Candidates, now_s: float) -> bool:
        """Whether nobody else owns it: then there is no former owner to wait for, as the broker does for a second.

        Nobody does if nobody else stands, and if this bridge is elected and the former owner's candidacy is over: it
        stops first. Raises BrokerError when the broker has elected this bridge for long, and does not tell it: it
        stands anew then.
        """
        names = [each.name for each in known.all]
        if names == [self._own_url]:
            return True
        if known.active != self._own_url or names.count(self._own_url) != 1:
            self._mine_since_s = None
            self._note_former(known)
        elif self._former is not None and self._former not in _candidacies(known):
            return True
        elif self._mine_since_s is None:
            self._mine_since_s = now_s
        elif now_s - self._mine_since_s > self._limits.election_untold_s:
            raise BrokerError("the broker has elected this bridge and did not tell it")
        return False

    def _note_former(self, known: Candidates) -> None:
        """Whose time as owner has to be over first. It may stand anew by then, which is another candidacy."""
        active = [each for each in known.all if each.name == known.active != self._own_url]
        if len(active) == 1:
            self._former = None if active[0].connected_ms is None else (active[0].name, active[0].connected_ms)

    def waited(self) -> None:
        """In vain."""
        self.pause_s = min(self.pause_s * 2, self._limits.standby_check_s)

    def woken(self, by_broker: bool) -> None:
        """By the broker's word, after which more follows soon, or by somebody who asks."""
        self.pause_s = self._limits.election_poll_s if by_broker else min(self.pause_s, self._limits.owner_known_s)


def _candidacies(known: Candidates) -> set[Candidacy]:
    return {(each.name, each.connected_ms) for each in known.all if each.connected_ms is not None}
