"""Of which history a cursor is: what tells a seek from forgotten acks.

A broker forgets acks: those of its last seconds when it is killed, and beyond a number of holes even when a topic is
unloaded in order. It also sets cursors back, when a consumer seeks or an operator resets, and it makes them anew when a
subscription is deleted and created again. Both look the same by their positions, but want the opposite: forgotten acks
are to be given again, after a seek the messages are.

So every cursor gets a mark: a random number in the properties of its mark-delete position. The broker carries them
along when consumers ack, stores them with the position, and leaves them out when it sets a cursor anew by any other
way than acks (tried: seek, reset to a time, to a position, to where it was already, skip, deletion). A cursor that
bears the mark which the acks noted here were given under was not set anew since; one that does not is taken at the
broker's word.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self

from bridge.clock import RandBits
from bridge.ledgers.internal_stats import LedgerState
from tracker import AckSet, Position, SubscriptionView, TopicIndex

PROPERTY = "delay-bridge-history"
IDENTITY_PROPERTY = "delay-bridge-topic"
"""Of the hidden subscription's cursor: a random number that tells the topic from another one of its name."""
UNKNOWN = 0
"""The history of a cursor that bears no mark: never the same as any other."""


def new_history(randbits: RandBits) -> int:
    """A mark that no cursor had before."""
    return randbits(62) + 1


def history_of(properties: Mapping[str, int]) -> int:
    """The mark in a cursor's properties, UNKNOWN without one."""
    history = properties.get(PROPERTY, UNKNOWN)
    return history if history > 0 else UNKNOWN


def identity_of(properties: Mapping[str, int]) -> int:
    """What the hidden subscription's cursor calls the topic, UNKNOWN when nothing."""
    return properties.get(IDENTITY_PROPERTY, UNKNOWN)


def is_of_another(index: TopicIndex, identity: int, last_confirmed_entry: Position) -> bool:
    """Whether an index is of another topic of its name: one that was deleted, or of a cluster set up anew.

    `identity`: what the hidden subscription's cursor calls the topic. An index whose name for it the cursor does not
    bear is in doubt: its topic may bear the same positions again.
    """
    harvested = index.harvested_position
    if harvested is None:
        return False
    return harvested > last_confirmed_entry or index.identity not in (UNKNOWN, identity)


def takes_back(known: AckSet, history: int, told: AckSet, told_history: int, state: LedgerState) -> bool:
    """Whether acks known here, given under `history`, are void by what the broker says of its cursor now.

    They are when the cursor may have been set anew since, and lacks some of them.
    """
    if history != UNKNOWN and history == told_history:
        return False
    if known.highest > state.last_confirmed_entry:
        return True  # of another topic of this name
    return next(known.missing_in(told, state.ledger_sizes), None) is not None


class CursorReading(NamedTuple):
    """What the broker says of a subscription's cursor; `takes_back`: what is known here of acks is void."""

    acks: AckSet
    history: int
    takes_back: bool

    @classmethod
    def of(cls, view: SubscriptionView, acks: AckSet, history: int, state: LedgerState) -> Self:
        """What is to be made of it, by what the view knows."""
        return cls(acks, history, takes_back(view.acks, view.history, acks, history, state))

    def give(self, view: SubscriptionView) -> None:
        """Have the view know what the broker says, and what was known here as far as it holds."""
        if self.takes_back:
            view.reset(self.acks)
            view.covered = False
        else:
            view.merge(self.acks)
        view.history = self.history
