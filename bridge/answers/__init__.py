"""What REST answers: which fields, of which types, in which units. In one place.

The types say it to mypy where answers are built, shown and, by the command, read; `bridge/web/rest/schemas.py` makes
JSON schemas of them, and OpenAPI and the reference follow. They are `TypedDict`s because an answer is wanted as it goes
over the wire: pages are rendered from it, lists sorted by its fields, the command gets it as JSON. Nothing is converted
or checked on the way, so they cost what plain dicts cost. Statistics of 500 topic partitions with two subscriptions
each, built and dumped, take a third longer as pydantic's models, and twice as long by `model_construct` or as its
dataclasses. The standard library's, dumped by pydantic, take a third less, but would have to be dumped for pages too.
What models check at run time, mypy does before.
"""

from bridge.answers.entries import Act, Action, Entry, MessageIds, OneOutcome, Outcomes, Payload, Pending
from bridge.answers.rebuilds import AuditStatus, Proof, Rebuild, RebuildStatus
from bridge.answers.topics import (
    Bar,
    Books,
    Bucket,
    Chart,
    Consumer,
    Drain,
    Error,
    Forecast,
    Histogram,
    Lateness,
    Member,
    Members,
    OperatorWarning,
    Overview,
    Owned,
    OwnedTopic,
    Partitions,
    Places,
    Ready,
    Snapshot,
    Stats,
    Subscription,
    TimePartition,
    TopicRow,
    TopicSummary,
)

__all__ = [
    "Act",
    "Action",
    "AuditStatus",
    "Bar",
    "Books",
    "Bucket",
    "Chart",
    "Consumer",
    "Drain",
    "Entry",
    "Error",
    "Forecast",
    "Histogram",
    "Lateness",
    "Member",
    "Members",
    "MessageIds",
    "OneOutcome",
    "OperatorWarning",
    "Outcomes",
    "Overview",
    "Owned",
    "OwnedTopic",
    "Partitions",
    "Payload",
    "Pending",
    "Places",
    "Proof",
    "Ready",
    "Rebuild",
    "RebuildStatus",
    "Snapshot",
    "Stats",
    "Subscription",
    "TimePartition",
    "TopicRow",
    "TopicSummary",
]
