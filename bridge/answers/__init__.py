"""What REST answers: which fields, of which types, in which units. In one place.

The types say it to mypy where answers are built, shown and, by the command, read; `bridge/web/rest/schemas.py` makes
JSON schemas of them, and OpenAPI and the reference follow. They are `TypedDict`s, and not pydantic's models, because an
answer is wanted as it goes over the wire: pages are rendered from it, lists sorted by its fields, the command gets it
as JSON. Nothing has to be converted or checked on the way, so a list of 500 topic partitions with two subscriptions
each costs what plain dicts cost; built as models and dumped it took a third longer, as pydantic's dataclasses or by
`model_construct` twice as long. What models check at run time, mypy does before.
"""

from bridge.answers.entries import Act, Action, Entry, MessageIds, OneOutcome, Outcomes, Payload, Pending
from bridge.answers.rebuilds import AuditStatus, Proof, Rebuild, RebuildStatus
from bridge.answers.topics import (
    Bar,
    Bucket,
    Chart,
    Consumer,
    Error,
    Forecast,
    Histogram,
    Lateness,
    OperatorWarning,
    Overview,
    Partitions,
    Ready,
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
    "Bucket",
    "Chart",
    "Consumer",
    "Entry",
    "Error",
    "Forecast",
    "Histogram",
    "Lateness",
    "MessageIds",
    "OneOutcome",
    "OperatorWarning",
    "Outcomes",
    "Overview",
    "Partitions",
    "Payload",
    "Pending",
    "Proof",
    "Ready",
    "Rebuild",
    "RebuildStatus",
    "Stats",
    "Subscription",
    "TimePartition",
    "TopicRow",
    "TopicSummary",
]
