"""The index of a topic partition as this bridge keeps it, from one time as owner or standby to the next."""

import structlog

from bridge.ledgers.cursor_history import UNKNOWN, identity_of, is_of_another
from bridge.ledgers.internal_stats import LedgerState
from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from bridge.refill.snapshots.restoring import Found, Restore, find
from bridge.topics.context import BridgeContext
from tracker import TopicIndex
from tracker.snapshots.restore import is_of_snapshot

log = structlog.get_logger(__name__)


class KeptIndex:
    """Opened when it is first of use."""

    def __init__(self, topic: str, context: BridgeContext) -> None:
        """Nothing is opened."""
        self.index: TopicIndex | None = None
        self.restore: Restore | None = None
        """What is to be loaded into the index that was `usable` last."""
        self._found: Found | None = None
        self._topic = topic
        self._context = context

    def forget(self) -> None:
        """Believe nothing that is in memory: what is stored is opened anew."""
        self.index = None

    async def look_for_snapshot(self, told_identity: int, state: LedgerState) -> None:
        """Have what `usable` may begin with, if it would begin with nothing, or far behind. Raises StoreError."""
        self._found = None
        if self._context.snapshots is None:
            return
        index = self._opened()
        known = index.harvested_position
        lacks = known is None or is_of_another(index, told_identity, state.last_confirmed_entry)
        if lacks or self._is_far_behind(index, state) or self._unfinished(index):
            self._found = await find(self._context.snapshots, self._topic, told_identity)
            if self._found is not None and self._found.snapshot.upto > state.last_confirmed_entry:
                log.warning("the snapshot goes beyond the topic, it is not used", topic=self._topic)
                self._found = None

    def usable(self, told_identity: int, state: LedgerState) -> TopicIndex:
        """What can go on from where it is, in a topic of this state and name; else an empty one. Raises StoreError."""
        index = self._opened()
        if is_of_another(index, told_identity, state.last_confirmed_entry):
            log.warning(
                "the index is of another topic of this name, dropping it",
                topic=self._topic,
                harvested_position=str(index.harvested_position),
                last_confirmed_entry=str(state.last_confirmed_entry),
            )
            index = self._begun_anew()
        self.restore = self._gone_on_with(index)
        if self._is_behind_snapshot(index, state):
            index = self._begun_anew()
        if index.harvested_position is None:
            # Nothing is known here: new traffic first, what older entries are needed is read behind it.
            index.start_at(state.last_confirmed_entry)
            self.restore = self._begun_with_snapshot(index, told_identity)
        elif self._is_far_behind(index, state):
            # Known until some time ago: the same, and what came since is read behind new traffic too.
            index.skip_to(state.last_confirmed_entry)
        return index

    def to_follow_with(self, state: LedgerState) -> TopicIndex:
        """The same while another bridge owns the topic, and has named it. Raises StoreError."""
        index = self._opened()
        if index.identity == UNKNOWN and index.harvested_position is not None:
            # Of a time as owner that was over before the topic was named: it may have been another of its name.
            self._begun_anew()
        return self.usable(identity_of(state.cursors[HIDDEN_SUBSCRIPTION].properties), state)

    def _unfinished(self, index: TopicIndex) -> list[str]:
        return [load for load in index.bulk.unfinished() if is_of_snapshot(load)]

    def _gone_on_with(self, index: TopicIndex) -> Restore | None:
        """A snapshot that was being loaded when this bridge, or its time as standby, ended."""
        going_on = None
        for load in self._unfinished(index):
            if self._found is not None and self._found.snapshot.load.id == load:
                going_on = self._restore(index, self._found)
            else:
                index.bulk.abandon(load)  # its files are gone, or there is a newer one: the rest is read
        return going_on

    def _is_behind_snapshot(self, index: TopicIndex, state: LedgerState) -> bool:
        """Whether to read what the index lacks would take longer than to load the snapshot."""
        if self._found is None or self.restore is not None or index.harvested_position is None:
            return False
        snapshot = self._found.snapshot
        lacks = state.entries_between(index.harvested_position, snapshot.upto)
        if lacks <= max(self._context.limits.intake.catch_up_entries, snapshot.entries // 10):
            return False
        log.info("the index is of long ago, a snapshot takes its place", topic=self._topic, lacks=lacks)
        return True

    def _begun_with_snapshot(self, index: TopicIndex, told_identity: int) -> Restore | None:
        if self._found is None:
            return None
        index.identify(told_identity)
        index.restore.give_views(self._found.views)
        return self._restore(index, self._found)

    def _restore(self, index: TopicIndex, found: Found) -> Restore:
        assert self._context.snapshots is not None
        return Restore(self._topic, index, self._context.snapshots, found)

    def _is_far_behind(self, index: TopicIndex, state: LedgerState) -> bool:
        assert index.harvested_position is not None
        behind = state.entries_between(index.harvested_position, state.last_confirmed_entry)
        return behind > self._context.limits.intake.catch_up_entries

    def _begun_anew(self) -> TopicIndex:
        self.index = None
        self._context.store.drop_topic(self._topic)
        return self._opened()

    def _opened(self) -> TopicIndex:
        if self.index is None:
            context = self._context
            self.index = TopicIndex(
                context.store,
                self._topic,
                partition_width_ms=context.partition_width_ms,
                near_term_bytes=context.near_term_bytes,
                limits=context.limits.index,
            )
        return self.index
