"""Answers about the bridge as a whole, topic partitions, their subscriptions and time partitions."""

from typing import Annotated, Literal

from typing_extensions import TypedDict

from bridge.answers.values import (
    Bytes,
    Entries,
    Messages,
    Milliseconds,
    PerSecond,
    PositionText,
    RebuildState,
    Role,
    Severity,
    Tier,
    Time,
    says,
)


class Error(TypedDict):
    """Why a call was refused, or not done."""

    reason: str


class Lateness(TypedDict):
    """How late first deliveries were; percentiles, each the upper bound of its bucket."""

    count: Annotated[int, says("first deliveries")]
    p50Ms: Milliseconds
    p99Ms: Milliseconds
    p999Ms: Milliseconds
    maxMs: Milliseconds


class OperatorWarning(TypedDict):
    """What an operator should know; null where it concerns no single topic partition or subscription."""

    severity: Severity
    code: Annotated[str, says("stable, for programs and runbooks")]
    topic: str | None
    subscription: str | None
    text: str


class Forecast(TypedDict):
    """The highest rate of deliveries ahead, and how far behind consumers would be."""

    peakPerSecond: PerSecond
    peakAt: Time
    shownPerSecond: PerSecond
    catchUpSeconds: Annotated[float | None, says("seconds; null while its consumers have shown nothing")]


class Consumer(TypedDict):
    """A consumer that is connected through this bridge."""

    consumerName: str
    address: str
    priorityLevel: int
    availablePermits: Messages
    unackedMessages: Messages
    blockedOnUnackedMessages: bool
    delivered: Messages


class Places(TypedDict):
    """Where the entries of a topic partition are for a subscription; each is in one place. `published` is what the
    topic still keeps, up to where the index has read it.
    """

    published: Entries
    acked: Annotated[int, says("entries acked by consumers, here or before this bridge became the owner")]
    cancelled: Annotated[int, says("entries that operators cancelled since then")]
    expired: Annotated[
        int,
        says("entries that the broker's cursor was moved past since then, unacked: expired, skipped or cleared there"),
    ]
    inFlight: Annotated[int, says("entries that a consumer has")]
    toRedeliver: Annotated[int, says("entries to be delivered again")]
    ready: Annotated[int, says("entries that wait for permits, or that an operator holds")]
    inTransactions: Annotated[int, says("entries acked in transactions that have not ended")]
    pending: Annotated[int, says("delayed entries that wait in the index")]
    unread: Annotated[int, says("immediate entries that are to come")]
    withheld: Annotated[int, says("entries that the broker gives to nobody: markers, aborted transactions")]
    toFill: Annotated[int, says("entries of which the index does not know, being read again")]


class Books(TypedDict):
    """The books of a subscription: published, and where it is."""

    asOf: Time
    upTo: PositionText | None
    unknown: Annotated[str | None, says("why nothing can be said at the moment; null when it can")]
    places: Places | None
    difference: Annotated[int | None, says("entries published that are in no place: 0 when the books close")]
    differenceByCounters: Annotated[int | None, says("the same by counters; null where every entry was looked at")]
    missing: Annotated[list[PositionText] | None, says("in no place; null where positions were not looked at")]
    twice: Annotated[list[PositionText] | None, says("in more than one place")]


class Subscription(TypedDict):
    """A tracked subscription; counts since this bridge became the owner."""

    type: Annotated[
        Literal["Shared", "Key_Shared", "Exclusive", "Failover"], says("as the last consumer that came asked for")
    ]
    dispatching: Annotated[bool, says("false while its cursor is being moved or read")]
    pending: Annotated[int | None, says("entries not acked, handed out or not")]
    pendingSettled: Annotated[bool, says("while false, `pending` may be too high")]
    markDeletePosition: PositionText | None
    ackHoles: Annotated[int | None, says("stretches of acked entries above the mark-delete position")]
    ready: Annotated[int, says("entries that are due and wait for permits")]
    inFlight: Annotated[int, says("entries handed out and not acked")]
    toRedeliver: Annotated[int, says("entries to be delivered again")]
    delivered: Messages
    acked: Entries
    cancelled: Entries
    expedited: Annotated[int, says("entries delivered before they were due: operators wanted it, or delays are off")]
    redelivered: Messages
    duplicates: Annotated[dict[str, int], says("messages delivered again, by reason")]
    books: Annotated[Books | None, says("as of the last look, every 30 s; null before it")]
    early: Annotated[int, says("delayed entries sent before they were due: stays 0")]
    acksRepaired: Annotated[int, says("acks that the broker had forgotten, given to it again")]
    lateness: Lateness
    latenessCauses: Annotated[dict[str, int], says("first deliveries more than 100 ms late, by cause")]
    shownPerSecond: Annotated[float, says("entries acked a second, at the highest rate seen")]
    forecast: Forecast | None
    consumers: list[Consumer]


class TopicSummary(TypedDict):
    """A tracked topic partition; null is what only its owner knows."""

    topic: str
    role: Role
    reason: Annotated[str | None, says("why it is not served; null while it is, here or elsewhere")]
    owner: Annotated[str | None, says("the service URL of the bridge that owns it")]
    ownerWebUrl: Annotated[str | None, says("REST of the owner, while that is another bridge")]
    harvestedPosition: Annotated[
        PositionText | None, says("what was published up to there has been read into the index")
    ]
    standbyPosition: Annotated[
        PositionText | None,
        says("of a standby that is ready to take over: what was published up to there is in its index"),
    ]
    entries: Annotated[int | None, says("entries in the index")]
    storageSize: Annotated[int | None, says("bytes, before compression")]
    memoryEntries: Annotated[int | None, says("entries of the near term, held in memory")]
    memorySize: Annotated[int | None, says("bytes")]
    pending: Annotated[int | None, says("entries not acked, all subscriptions added up")]
    earliestDeliverAt: Annotated[Time | None, says("epoch milliseconds; of what nobody was given yet")]
    latenessP99Ms: Annotated[int | None, says("milliseconds; of the latest subscription")]
    early: Annotated[int | None, says("delayed entries sent before they were due: stays 0")]
    rebuild: Annotated[RebuildState | None, says("how the last rebuild stands")]


class OwnedTopic(TypedDict):
    """A topic partition that this bridge owns."""

    topic: str
    load: Annotated[
        float,
        says("how much work: 1, and 1 for each 1,000 messages a second and each 1,000,000 entries; 0: nobody is there"),
    ]


class Owned(TypedDict):
    """What this bridge owns, of what the caller may see."""

    draining: Annotated[bool, says("whether it is to own nothing, and others take over what it has")]
    nowMs: Annotated[int, says("its clock, in epoch ms")]
    topics: list[OwnedTopic]


class Drain(TypedDict):
    """Whether this bridge, with the other workers of its host, is to own nothing."""

    draining: bool
    left: Annotated[int, says("topic partitions with clients that it owns still")]


class Member(TypedDict):
    """A bridge of the cluster."""

    url: Annotated[str, says("what it is known by, and where it serves clients")]
    webUrl: str | None
    draining: Annotated[bool, says("whether others take over what it owns")]
    owned: Annotated[int | None, says("topic partitions that it owns; null where it did not say so")]
    load: Annotated[float | None, says("how much work they are together, see `load` of one")]
    clockOffsetMs: Annotated[
        int | None,
        says("milliseconds that its clock is ahead of this one's by, at least; null where it did not say"),
    ]


class Members(TypedDict):
    """The bridges of the cluster, as this one knows them."""

    members: list[Member]
    trouble: Annotated[str | None, says("why the others are not known; null while they are")]


class TopicRow(TopicSummary):
    """One row of the list of topic partitions."""

    warnings: Annotated[int, says("how many")]


class Snapshot(TypedDict):
    """The newest snapshot of an index, in the folder that all bridges reach."""

    madeAt: Annotated[Time | None, says("epoch milliseconds; null while there is none")]
    entries: Annotated[int, says("entries in it; acked ones that are yet to be left out count too")]
    size: Bytes
    written: Annotated[int, says("bytes of it that the one before did not have")]
    error: Annotated[str | None, says("why the last attempt came to nothing; null when it did not")]


class Stats(TopicSummary):
    """A tracked topic partition with its subscriptions."""

    timePartitions: int | None
    latestDeliverAt: Time | None
    damagedPartitions: Annotated[int | None, says("time partitions that are read again from the broker")]
    snapshot: Annotated[Snapshot | None, says("null where this bridge takes none")]
    warnings: list[OperatorWarning]
    subscriptions: dict[str, Subscription]


class Overview(TypedDict):
    """The bridge as a whole, and what the topics that the caller may see have together."""

    cluster: str
    version: str
    ready: bool
    notReadyReason: str | None
    storageFailure: Annotated[str | None, says("why nothing can be stored; null while it can")]
    startedAt: Time
    clockOffsetMs: Annotated[int | None, says("milliseconds that the broker's clock is ahead by, at least")]
    topics: Annotated[int, says("tracked topic partitions")]
    owned: Annotated[int, says("those that this bridge owns")]
    entries: Entries
    storageSize: Annotated[int, says("bytes, before compression")]
    memoryEntries: Entries
    memorySize: Bytes
    pending: Annotated[int, says("entries not acked, all subscriptions added up")]
    dueWithin: Annotated[dict[str, int], says("about how many deliveries come due within so many seconds")]
    lateness: Lateness
    latenessBuckets: Annotated[list[int], says("first deliveries, by the buckets that the percentiles are read from")]
    warnings: Annotated[list[OperatorWarning], says("critical ones first")]
    clientConnections: int
    diskFree: Bytes
    diskTotal: Bytes


class Ready(TypedDict):
    """A topic partition that is served."""

    topic: str
    role: str
    owner: str | None


class TimePartition(TypedDict):
    """One slice of due time, from `start` to before `end`."""

    start: Time
    end: Time
    entries: Entries
    bytes: Annotated[int, says("bytes, before compression")]
    tier: Tier
    state: str
    pending: Annotated[dict[str, int], says("entries not acked, by subscription")]


class Partitions(TypedDict):
    """The time partitions of a topic partition."""

    widthMs: Annotated[int | None, says("milliseconds; null without an index here")]
    partitions: list[TimePartition]


class Bar(TypedDict):
    """Neighbouring time partitions, added up."""

    start: Time
    entries: Entries
    bytes: Annotated[int, says("bytes, before compression")]
    memoryEntries: Entries
    memoryBytes: Bytes
    diskEntries: Entries
    diskBytes: Bytes
    pending: Annotated[int | None, says("entries not acked by the subscription asked for")]


# `from` is a word of Python's.
Chart = TypedDict(
    "Chart",
    {
        "widthMs": Annotated[int, says("milliseconds that a time partition spans")],
        "from": Time | None,
        "to": Time | None,
        "barMs": Annotated[int, says("milliseconds that a bar spans")],
        "bars": list[Bar],
    },
)


class Bucket(TypedDict):
    """What comes due from `start` on, for one step."""

    start: Time
    count: Entries


class Histogram(TypedDict):
    """What comes due when, for one subscription."""

    stepMs: Milliseconds
    buckets: list[Bucket]
