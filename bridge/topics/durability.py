"""What of an owned topic partition is on disk, and what the broker's cursor is told of that.

Nothing here keeps messages from going out: what cannot be written is in the broker, and written later.
"""

import asyncio
import contextlib
from collections.abc import Collection

import structlog

from bridge.broker.connection import BrokerError
from bridge.topics.checkpoints import Checkpoint, CheckpointBook
from bridge.topics.context import BridgeContext
from bridge.topics.standing.ownership import Ownership
from bridge.topics.subscriptions import Subscriptions
from tracker import Position, StoreError, TopicIndex

log = structlog.get_logger(__name__)


class Durability:
    """One per time as owner."""

    def __init__(
        self,
        ownership: Ownership,
        context: BridgeContext,
        index: TopicIndex,
        book: CheckpointBook,
        subscriptions: Subscriptions,
    ) -> None:
        """Known to be on disk is only what is synced from now on: what was read from its log may be in memory."""
        self.kept: tuple[Position, dict[str, int]] | None = None
        """The harvested position and the properties that the broker was told last."""
        self._ownership = ownership
        self._context = context
        self._index = index
        self._book = book
        self._subscriptions = subscriptions
        self._synced: Position | None = None
        self._trouble: str | None = None

    def ask_for_sync(self) -> None:
        """Have what was written synced soon."""
        self._context.mark_dirty(self)

    def harvested_unsynced(self) -> Position | None:
        """The position that a sync starting now makes durable."""
        return self._index.harvested_position

    def on_synced(self, position: Position | None) -> None:
        """What was written up to `position` is on disk."""
        self._trouble = None
        known = self._index.harvested_position
        if position is not None and known is not None and position <= known:  # else of before the store was opened anew
            self._synced = position

    def on_recovered(self) -> None:
        """The store was opened anew: what was not synced before may be gone from the index."""
        self._synced = None
        self.ask_for_sync()

    def cannot_store(self, error: StoreError) -> None:
        """Go on without. The sync loop looks after the store as a whole."""
        if str(error) != self._trouble and self._context.store.failure is None:
            log.warning("cannot use the index", topic=self._ownership.topic, reason=str(error))
        self._trouble = str(error)
        self.ask_for_sync()

    async def keep_up(self) -> None:
        """Write the acks of all subscriptions, and tell the broker how far each is; others have their turn between."""
        for portion in self._index.portions():
            self.persist_views(portion)
            await asyncio.sleep(0)
        await self.checkpoint()

    def persist_views(self, subscriptions: Collection[str] | None = None) -> None:
        """Write the acks of all subscriptions, or of some."""
        try:
            self._index.persist_views(subscriptions)
            if self._synced != self._index.harvested_position or not self._context.store.is_synced:
                self.ask_for_sync()
        except StoreError as error:  # the broker has the acks too
            self.cannot_store(error)

    def remove_view(self, name: str) -> None:
        """Of a subscription that is gone."""
        try:
            self._index.remove_view(name)
            self.ask_for_sync()
        except StoreError as error:  # maintenance finds it again
            self.cannot_store(error)

    async def checkpoint(self) -> None:
        """Tell the broker's cursor how far the disk is, and how far each subscription."""
        if not self._may_tell:
            return
        for number, (name, subscription) in enumerate(list(self._subscriptions.items()), 1):
            if number % self._context.limits.topics.checkpoint_slice == 0:
                await asyncio.sleep(0)
            if self._subscriptions.get(name) is subscription and (known := subscription.checkpoint()) is not None:
                view, position = known
                self._book.take(subscription.name, Checkpoint.of(position, view.history, view.acks))
        if self._synced is None or not self._may_tell:  # any more
            return
        keep = (self._synced, self._book.properties)
        if self.kept is not None:
            # Only what the broker has been told before: an index that it cannot confirm is not believed.
            self._identify()
        if keep != self.kept and self._synced.entry >= 0:
            with contextlib.suppress(BrokerError):
                self._ownership.keep(*keep)
                self.kept = keep

    @property
    def _may_tell(self) -> bool:
        return self._synced is not None and all(view.covered for view in self._index.views().values())

    @property
    def all_is_kept(self) -> bool:
        """Whether the broker's cursor says all that was read."""
        if self.kept is None:
            return not self._index.entries
        # Whoever deletes the topic meanwhile and makes it anew is to find another one.
        return self.kept[0] == self._index.harvested_position and self._index.identity == self._book.identity

    def _identify(self) -> None:
        try:
            self._index.identify(self._book.identity)
        except StoreError as error:
            self.cannot_store(error)
