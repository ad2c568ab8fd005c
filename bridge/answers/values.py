"""What the fields of answers are made of: numbers with their units, positions, and words that programs compare."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field


def says(text: str) -> Any:
    """Describe a field."""
    return Field(description=text)


Time = Annotated[int, says("epoch milliseconds")]
Milliseconds = Annotated[int, says("milliseconds")]
Bytes = Annotated[int, says("bytes")]
PerSecond = Annotated[float, says("entries a second")]
Entries = Annotated[int, says("entries")]
Messages = Annotated[int, says("messages")]
PositionText = Annotated[str, Field(pattern=r"^-?\d+:-?\d+$")]
"""A position as `ledger:entry`."""

Role = Literal["owner", "standby", "opening", "passed-through", "idle"]
Tier = Literal["memory", "disk"]
EntryState = Literal["pending", "expedited", "ready", "in-flight"]
RebuildState = Literal["queued", "running", "succeeded", "failed"]
AuditState = Literal["running", "succeeded", "differs", "failed"]


class Severity(StrEnum):
    """How bad it is."""

    warning = "warning"
    critical = "critical"


class Outcome(StrEnum):
    """What came of it. `already-dispatched`: a consumer has it, or may have had it; it is left as it is."""

    cancelled = "cancelled"
    expedited = "expedited"
    dispatched = "already-dispatched"
    acked = "already-acked"
    unknown = "unknown"


class Trigger(StrEnum):
    """Why an index is rebuilt."""

    operator = "operator"
    ownership = "ownership"
    seek = "seek"


class Engine(StrEnum):
    """What reads the topic again."""

    auto = "auto"
    spark = "spark"
    in_process = "in-process"


Place = Literal[
    "acked",
    "cancelled",
    "expired",
    "inFlight",
    "toRedeliver",
    "ready",
    "inTransactions",
    "pending",
    "unread",
    "withheld",
    "toFill",
]
"""Where an entry is for a subscription, by the books: fields of their answer."""
