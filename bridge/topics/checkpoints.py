"""Checkpoints: up to where a subscription has acked everything immediate, kept by the broker for the next owner.

One delayed entry that waits for days holds a cursor's mark-delete position back for days. Without more, the next owner
would have to read everything behind it again to find what is immediate and not acked. So the owner notes how far that
is done, as properties of the hidden subscription's cursor.

A checkpoint is worth only as much as the acks it stands on. It therefore says of which history of the subscription's
cursor it is (see `cursor_history`), and how many single acks there were at or below it: a broker that forgot some, or a
cursor that was set anew, makes it void, and the feed starts at the mark-delete position.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from bridge.clock import RandBits
from bridge.ledgers.cursor_history import IDENTITY_PROPERTY, identity_of, new_history
from bridge.ledgers.internal_stats import LedgerState
from tracker import AckSet, Position

_FIELDS = ("ledger", "entry", "history", "base-ledger", "base-entry", "acked")


class Checkpoint(NamedTuple):
    """Everything immediate at or below `position` is acked.

    `acked` counts the single acks in (`mark_delete_position`, `position`] when it was taken.
    """

    position: Position
    history: int
    mark_delete_position: Position
    acked: int

    @classmethod
    def of(cls, position: Position, history: int, acks: AckSet) -> "Checkpoint":
        """Take one."""
        return cls(position, history, acks.mark_delete_position, acks.single_acks_upto(position))

    def holds(self, history: int, acks: AckSet, state: LedgerState) -> bool:
        """Whether a cursor with these acks, in this history, still has all that the checkpoint stands on."""
        mark_delete_position = acks.mark_delete_position
        if not history or history != self.history or mark_delete_position < self.mark_delete_position:
            return False
        passed = state.entries_between(self.mark_delete_position, min(mark_delete_position, self.position))
        return passed + acks.single_acks_upto(self.position) >= self.acked


def checkpoint_properties(name: str, checkpoint: Checkpoint) -> dict[str, int]:
    """Cursor properties for a subscription's checkpoint; values are unsigned, so an entry of -1 becomes 0."""
    position, base = checkpoint.position, checkpoint.mark_delete_position
    if not checkpoint.history or position.ledger < 0 or base.ledger < 0:
        return {}
    values = (*_unsigned(position), checkpoint.history, *_unsigned(base), checkpoint.acked)
    return {f"{field}:{name}": value for field, value in zip(_FIELDS, values, strict=True)}


def read_checkpoint(properties: Mapping[str, int], name: str) -> Checkpoint | None:
    """The checkpoint of a subscription, None when the cursor holds none, or one of a version that said less."""
    values = [properties.get(f"{field}:{name}") for field in _FIELDS]
    ledger, entry, history, base_ledger, base_entry, acked = values
    if ledger is None or entry is None or history is None or base_ledger is None or base_entry is None or acked is None:
        return None
    return Checkpoint(Position(ledger, entry - 1), history, Position(base_ledger, base_entry - 1), acked)


class CheckpointBook:
    """What the hidden subscription's cursor says of a topic partition's subscriptions, and what it is to say next."""

    def __init__(self, told: Mapping[str, int], subscriptions: Collection[str], randbits: RandBits) -> None:
        """`told`: the properties of that cursor. Deleted subscriptions take their checkpoints along."""
        names = {f"{field}:{name}" for name in subscriptions for field in _FIELDS}
        self._properties = {key: value for key, value in told.items() if key in names}
        self.is_empty = not self._properties
        """Whether nothing was told of any subscription."""
        self.told_identity = identity_of(told)
        """What the broker calls the topic, UNKNOWN when nothing."""
        self.identity = self.told_identity or new_history(randbits)
        """What it is to be called."""

    @property
    def properties(self) -> dict[str, int]:
        """What to put into the cursor."""
        return {**self._properties, IDENTITY_PROPERTY: self.identity}

    def start_of(self, name: str, history: int, acks: AckSet, state: LedgerState) -> Position:
        """Everything immediate at or below this position is acked, as far as a cursor in this state shows."""
        checkpoint = read_checkpoint(self._properties, name)
        if checkpoint is None or not checkpoint.holds(history, acks, state):
            return acks.mark_delete_position
        return max(acks.mark_delete_position, checkpoint.position)

    def take(self, name: str, checkpoint: Checkpoint) -> None:
        """Replace a subscription's checkpoint."""
        self.drop(name)
        self._properties.update(checkpoint_properties(name, checkpoint))

    def drop(self, name: str) -> None:
        """Forget a subscription's checkpoint."""
        for field in _FIELDS:
            self._properties.pop(f"{field}:{name}", None)


def _unsigned(position: Position) -> tuple[int, int]:
    return position.ledger, position.entry + 1
