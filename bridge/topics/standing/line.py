"""Where a bridge stands in the line for a topic partition, from one candidacy to the next."""

from bridge.broker.admin import AdminClient, AdminError
from bridge.broker.candidates import Candidates
from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from bridge.topics.pass_through import stand
from bridge.topics.standing.election import FIRST_LEVEL, level_before, level_behind
from bridge.topics.standing.ownership import Ownership


class PlaceInLine:
    """One per tracked topic partition."""

    def __init__(self) -> None:
        """At the back."""
        self.takes_over = False
        """To stand before all others, the next time."""
        self._level = FIRST_LEVEL

    async def stand(self, ownership: Ownership, admin: AdminClient) -> Candidates | None:
        """Stand; returns who stood before, None where that is not known. Raises BrokerError."""
        takes_over, self.takes_over = self.takes_over, False
        try:
            known = await admin.candidates(ownership.topic, HIDDEN_SUBSCRIPTION)
        except AdminError:  # the topic may be about to come into being
            known = None
        # What is left of an earlier candidacy of its own does not matter: behind that it would wait for itself.
        others = [] if known is None else [each for each in known.all if each.name != ownership.own_url]
        if others and takes_over:
            self._level = level_before(others)
        elif others:
            self._level = level_behind(others)
        # Else as before: after a broker's end the former owner is before its standbys again.
        await stand(ownership, admin, self._level)
        return known
