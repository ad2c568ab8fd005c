"""What a bridge may tell of a topic partition: of one it does not own its role and owner, and nothing it knew before.

One that the bridge let go of because nobody is connected stands as it did. But of a former owner index and counts stay
where they were, for it may own the topic again: shown, they would be taken for what is.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.dispatch.tracked_subscription import TrackedSubscription
from bridge.topics.tracked_topic import TrackedTopic
from tracker import TopicIndex


def index_shown(topic: TrackedTopic) -> TopicIndex | None:
    """Return the index of a topic partition that this bridge owns, or has let go of."""
    return topic.index if topic.is_known else None


def subscriptions_shown(topic: TrackedTopic) -> Mapping[str, TrackedSubscription]:
    """Return the subscriptions of a topic partition that this bridge owns, or has let go of."""
    return topic.subscriptions if topic.is_known else {}
