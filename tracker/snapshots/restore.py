"""An index that begins with a snapshot: its entries by a bulk load, its views at once, what it claims last.

Until the last of it is in, the index claims no more than one that began with nothing. Then it is what that index was
which the snapshot was taken of, with all that came since left out, and noted so.
"""

from __future__ import annotations

from dataclasses import replace

from tracker.care.damage import Damage
from tracker.index_core import IndexCore
from tracker.snapshots.contents import LOAD_PREFIX, Snapshot, ViewCopy
from tracker.views.view import SubscriptionView


class SnapshotRestore:
    """Of one index."""

    def __init__(self, core: IndexCore, damage: Damage) -> None:
        """Nothing happens yet."""
        self._core = core
        self._damage = damage

    def give_views(self, views: list[ViewCopy]) -> None:
        """Have a fresh index know what subscriptions had acked. Raises StoreError."""
        for copy in views:
            view = self._core.views.get_or_create(copy.name)
            view.merge(copy.acks)
            view.history = copy.history

    def claim(self, snapshot: Snapshot, views: list[ViewCopy]) -> None:
        """All entries are loaded: let the index cover what the snapshot does. One write, but for the views.

        Raises StoreError; then nothing is claimed. May be called again.
        """
        core = self._core
        record, floor = core.record, core.floor
        batch = core.store.new_batch()
        left_out = None
        if snapshot.upto < floor:
            left_out = self._damage.stage_left_out(batch, snapshot.upto, floor)
        dropped = max(record.dropped_number, snapshot.dropped_number)
        low = max(snapshot.after, record.dropped or snapshot.after)
        core.write_topic(replace(record, floor=min(floor, low), dropped_number=dropped), batch)
        core.table.dropped_number = dropped
        if left_out is not None:
            left_out()
        for copy in views:
            view = core.views.by_name.get(copy.name)
            if view is not None and copy.covered and _has_all(view, copy):
                view.covered = True


def _has_all(view: SubscriptionView, copy: ViewCopy) -> bool:
    """Whether a view has acked all that a copy has: entries that were dropped are in no snapshot."""
    if view.mark_delete_position < copy.acks.mark_delete_position:
        return False
    return next(copy.acks.newly_acked(view.acks), None) is None


def is_of_snapshot(load: str) -> bool:
    """Tell whether a bulk load is one of a snapshot, by its id."""
    return load.startswith(LOAD_PREFIX)
