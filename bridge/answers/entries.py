"""Answers about single entries, and about what operators did to them."""

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from bridge.answers.values import EntryState, Outcome, PositionText, Tier, Time, says
from bridge.limits import OperatorLimits


class Payload(TypedDict, total=False):
    """The beginning of what is in an entry, only where it was asked for."""

    payload: Annotated[str, says("base64")]
    payloadSize: Annotated[int, says("bytes, uncompressed")]
    compression: str
    encrypted: bool


class _Stored(TypedDict):
    position: PositionText
    deliverAt: Time
    publishTime: Time | None
    key: str | None
    properties: dict[str, str]
    producerName: str | None
    messages: Annotated[int, says("more than one in a batch")]
    size: Annotated[int, says("bytes, as the broker stores it")]
    redeliveryCount: int
    tier: Tier
    state: EntryState


class Entry(_Stored, Payload):
    """An entry that is not acked; null where its metadata cannot be read or do not say."""


class Pending(TypedDict):
    """A page of what a subscription has not acked."""

    entries: list[Entry]
    cursor: Annotated[str | None, says("where the next page begins; null on the last one")]


class OneOutcome(TypedDict):
    """What came of one entry."""

    outcome: Outcome


class Outcomes(TypedDict):
    """What came of several entries."""

    outcomes: Annotated[dict[str, int], says("entries, by outcome")]
    entries: Annotated[dict[str, Outcome], says("by position")]


class MessageIds(TypedDict):
    """Entries to steer."""

    messageIds: Annotated[list[PositionText], Field(min_length=1, max_length=OperatorLimits().steering_max)]


class _Numbered(TypedDict):
    id: int


class Act(TypedDict):
    """What an operator does."""

    time: Annotated[str, says("RFC 3339")]
    actor: str
    peer: Annotated[str, says("the address it came from")]
    action: str
    topic: str | None
    subscription: str | None
    positions: Annotated[list[PositionText] | int, says("of many only how many")]
    outcomes: Annotated[dict[str, int], says("entries, by outcome")]


class Action(_Numbered, Act):
    """What an operator did."""
