"""Answers about rebuilds and audits of a topic partition's index."""

from typing import Annotated

from typing_extensions import TypedDict

from bridge.answers.values import AuditState, Engine, Entries, PositionText, RebuildState, Time, Trigger, says

# `from` is a word of Python's.
Proof = TypedDict("Proof", {"count": Entries, "checksum": str, "from": Time})


class RebuildStatus(TypedDict):
    """One rebuild of the positions behind `after` up to `to`."""

    id: str
    state: RebuildState
    stage: str
    trigger: Trigger
    engine: Engine
    after: PositionText
    to: PositionText
    entriesTotal: Annotated[int, says("0 while it is not known")]
    entriesRead: Entries
    entriesIndexed: Entries
    etaMs: Annotated[int | None, says("milliseconds that reading will take at its rate so far")]
    startedAt: Time
    finishedAt: Time | None
    error: str | None
    proof: Annotated[Proof | None, says("what index and topic have alike: all that is due `from` then on")]
    sparkError: Annotated[str | None, says("why the bridge read what a job was to")]
    fromBookies: Annotated[int, says("entries read from the bookies")]
    notFromBookies: Annotated[str | None, says("why others were read through the broker")]


class Rebuild(RebuildStatus):
    """The newest rebuild, and those before it."""

    earlier: Annotated[list[RebuildStatus], says("newest first")]


class AuditStatus(TypedDict):
    """One comparison of index and topic."""

    state: AuditState
    stage: str
    engine: Engine
    entriesTotal: Annotated[int, says("0 while it is not known")]
    entriesRead: Entries
    compared: Entries
    comparedFrom: Annotated[int, says("epoch milliseconds; what is due before only as far as the index has it")]
    checksum: str
    differing: Annotated[int, says("blocks of positions and time partitions that differ")]
    missing: Annotated[list[PositionText], says("in the topic, not in the index; the first ones")]
    unexpected: Annotated[list[PositionText], says("in the index, not in the topic; the first ones")]
    startedAt: Time
    finishedAt: Time | None
    error: str | None
    sparkError: Annotated[str | None, says("why the bridge read what a job was to")]
    fromBookies: Annotated[int, says("entries read from the bookies")]
    notFromBookies: Annotated[str | None, says("why others were read through the broker")]
