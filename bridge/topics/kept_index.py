"""The index of a topic partition as this bridge keeps it, from one time as owner or standby to the next."""

import structlog

from bridge.ledgers.cursor_history import UNKNOWN, identity_of, is_of_another
from bridge.ledgers.internal_stats import LedgerState
from bridge.protocol.names import HIDDEN_SUBSCRIPTION
from bridge.topics.context import BridgeContext
from tracker import TopicIndex

log = structlog.get_logger(__name__)


class KeptIndex:
    """Opened when it is first of use."""

    def __init__(self, topic: str, context: BridgeContext) -> None:
        """Nothing is opened."""
        self.index: TopicIndex | None = None
        self._topic = topic
        self._context = context

    def forget(self) -> None:
        """Believe nothing that is in memory: what is stored is opened anew."""
        self.index = None

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
        if index.harvested_position is None:
            # Nothing is known here: new traffic first, what older entries are needed is read behind it.
            index.start_at(state.last_confirmed_entry)
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
