"""What to make of who stands for a topic partition, and when to look again. Pure."""

from bridge.broker.candidates import Candidates
from bridge.broker.connection import BrokerError
from bridge.limits import TopicLimits


class Election:
    """One candidacy of this bridge."""

    def __init__(self, own_url: str, limits: TopicLimits, now_s: float) -> None:
        """It has just begun to stand."""
        self._own_url = own_url
        self._limits = limits
        self._began_s = now_s
        self._mine_since_s: float | None = None
        self.pause_s = limits.election_poll_s
        """How long to wait for news or questions before the next look: ever longer."""

    def settled(self, now_s: float) -> bool:
        """Whether the broker had the time to elect somebody."""
        return now_s - self._began_s > self._limits.election_lasts_s

    def is_won(self, known: Candidates, now_s: float) -> bool:
        """Whether nobody else stands: then there is no former owner to wait for, as the broker does for a second.

        Raises BrokerError when the broker has elected this bridge for long, and does not tell it: it stands anew then.
        """
        names = [each.name for each in known.all]
        if names == [self._own_url]:
            return True
        if known.active != self._own_url or names.count(self._own_url) != 1:
            self._mine_since_s = None
        elif self._mine_since_s is None:
            self._mine_since_s = now_s
        elif now_s - self._mine_since_s > self._limits.election_untold_s:
            raise BrokerError("the broker has elected this bridge and did not tell it")
        return False

    def waited(self) -> None:
        """In vain."""
        self.pause_s = min(self.pause_s * 2, self._limits.standby_check_s)

    def woken(self, by_broker: bool) -> None:
        """By the broker's word, after which more follows soon, or by somebody who asks."""
        self.pause_s = self._limits.election_poll_s if by_broker else min(self.pause_s, self._limits.owner_known_s)
