"""What REST answers, as JSON schemas: part of the OpenAPI description, and held against every answer in the tests."""

from typing import Any

Schema = dict[str, Any]

INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
STRING: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
TIME: Schema = {"type": "integer", "description": "epoch milliseconds"}
POSITION: Schema = {"type": "string", "pattern": r"^-?\d+:-?\d+$"}


def or_null(schema: Schema) -> Schema:
    """The same, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def one_of(*values: str) -> Schema:
    """One of some words."""
    return {"type": "string", "enum": list(values)}


def list_of(schema: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": schema}


def map_of(schema: Schema) -> Schema:
    """An object whose names are data."""
    return {"type": "object", "additionalProperties": schema}


def record(**fields: Schema) -> Schema:
    """An object with just these fields, all of them there."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def reference(name: str) -> Schema:
    """One of SCHEMAS."""
    return {"$ref": f"#/components/schemas/{name}"}


def _merged(*records: Schema) -> Schema:
    return record(**{name: schema for each in records for name, schema in each["properties"].items()})


LATENESS = record(count=INTEGER, p50Ms=INTEGER, p99Ms=INTEGER, p999Ms=INTEGER, maxMs=INTEGER)
WARNING = record(
    severity=one_of("warning", "critical"),
    code=STRING,
    topic=or_null(STRING),
    subscription=or_null(STRING),
    text=STRING,
)
FORECAST = record(peakPerSecond=NUMBER, peakAt=TIME, shownPerSecond=NUMBER, catchUpSeconds=or_null(NUMBER))
CONSUMER = record(
    consumerName=STRING,
    address=STRING,
    priorityLevel=INTEGER,
    availablePermits=INTEGER,
    unackedMessages=INTEGER,
    blockedOnUnackedMessages=BOOLEAN,
    delivered=INTEGER,
)
SUBSCRIPTION = record(
    type=one_of("Shared"),
    dispatching=BOOLEAN,
    pending=or_null(INTEGER),
    pendingSettled=BOOLEAN,
    markDeletePosition=or_null(POSITION),
    ackHoles=or_null(INTEGER),
    ready=INTEGER,
    inFlight=INTEGER,
    toRedeliver=INTEGER,
    delivered=INTEGER,
    acked=INTEGER,
    cancelled=INTEGER,
    expedited=INTEGER,
    redelivered=INTEGER,
    duplicates=map_of(INTEGER),
    early=INTEGER,
    acksRepaired=INTEGER,
    lateness=LATENESS,
    latenessCauses=map_of(INTEGER),
    shownPerSecond=NUMBER,
    forecast=or_null(FORECAST),
    consumers=list_of(CONSUMER),
)
TOPIC = record(
    topic=STRING,
    role=one_of("owner", "standby", "opening", "passed-through", "idle"),
    reason=or_null(STRING),
    owner=or_null(STRING),
    ownerWebUrl=or_null(STRING),
    harvestedPosition=or_null(POSITION),
    entries=or_null(INTEGER),
    storageSize=or_null(INTEGER),
    memoryEntries=or_null(INTEGER),
    memorySize=or_null(INTEGER),
    pending=or_null(INTEGER),
    earliestDeliverAt=or_null(TIME),
    latenessP99Ms=or_null(INTEGER),
    early=or_null(INTEGER),
    rebuild=or_null(one_of("queued", "running", "succeeded", "failed")),
)
STATS = _merged(
    TOPIC,
    record(
        timePartitions=or_null(INTEGER),
        latestDeliverAt=or_null(TIME),
        damagedPartitions=or_null(INTEGER),
        warnings=list_of(WARNING),
        subscriptions=map_of(SUBSCRIPTION),
    ),
)
SCHEMAS: dict[str, Schema] = {
    "Error": record(reason=STRING),
    "Overview": record(
        cluster=STRING,
        version=STRING,
        ready=BOOLEAN,
        notReadyReason=or_null(STRING),
        storageFailure=or_null(STRING),
        startedAt=TIME,
        clockOffsetMs=or_null(INTEGER),
        topics=INTEGER,
        owned=INTEGER,
        entries=INTEGER,
        storageSize=INTEGER,
        memoryEntries=INTEGER,
        memorySize=INTEGER,
        pending=INTEGER,
        dueWithin=map_of(INTEGER),
        lateness=LATENESS,
        warnings=list_of(WARNING),
        clientConnections=INTEGER,
        diskFree=INTEGER,
        diskTotal=INTEGER,
    ),
    "Topics": list_of(_merged(TOPIC, record(warnings=INTEGER))),
    "Stats": STATS,
    "Ready": record(topic=STRING, role=STRING, owner=or_null(STRING)),
    "Partitions": record(
        widthMs=or_null(INTEGER),
        partitions=list_of(
            record(
                start=TIME,
                end=TIME,
                entries=INTEGER,
                bytes=INTEGER,
                tier=one_of("memory", "disk"),
                state=STRING,
                pending=map_of(INTEGER),
            )
        ),
    ),
    "Chart": record(
        widthMs=INTEGER,
        **{"from": or_null(TIME)},
        to=or_null(TIME),
        barMs=INTEGER,
        bars=list_of(
            record(
                start=TIME,
                entries=INTEGER,
                bytes=INTEGER,
                memoryEntries=INTEGER,
                memoryBytes=INTEGER,
                diskEntries=INTEGER,
                diskBytes=INTEGER,
                pending=or_null(INTEGER),
            )
        ),
    ),
    "Histogram": record(stepMs=INTEGER, buckets=list_of(record(start=TIME, count=INTEGER))),
    "Entry": record(
        position=POSITION,
        deliverAt=TIME,
        publishTime=or_null(TIME),
        key=or_null(STRING),
        properties=map_of(STRING),
        producerName=or_null(STRING),
        messages=INTEGER,
        size=INTEGER,
        redeliveryCount=INTEGER,
        tier=one_of("memory", "disk"),
        state=one_of("pending", "expedited", "ready", "in-flight"),
    ),
    "Pending": record(entries=list_of(reference("Entry")), cursor=or_null(STRING)),
    "Outcome": one_of("cancelled", "expedited", "already-dispatched", "already-acked", "unknown"),
    "OneOutcome": record(outcome=reference("Outcome")),
    "Outcomes": record(outcomes=map_of(INTEGER), entries=map_of(reference("Outcome"))),
    "MessageIds": record(messageIds={**list_of(POSITION), "minItems": 1, "maxItems": 1_000}),
    "RebuildStatus": record(
        id=STRING,
        state=one_of("queued", "running", "succeeded", "failed"),
        stage=STRING,
        trigger=one_of("operator", "ownership", "seek"),
        engine=one_of("auto", "spark", "in-process"),
        after=POSITION,
        to=POSITION,
        entriesTotal=INTEGER,
        entriesRead=INTEGER,
        entriesIndexed=INTEGER,
        etaMs=or_null(INTEGER),
        startedAt=TIME,
        finishedAt=or_null(TIME),
        error=or_null(STRING),
        proof=or_null(record(count=INTEGER, checksum=STRING, **{"from": TIME})),
        sparkError=or_null(STRING),
    ),
    "AuditStatus": record(
        state=one_of("running", "succeeded", "differs", "failed"),
        stage=STRING,
        engine=one_of("auto", "spark", "in-process"),
        entriesTotal=INTEGER,
        entriesRead=INTEGER,
        compared=INTEGER,
        comparedFrom=TIME,
        checksum=STRING,
        differing=INTEGER,
        missing=list_of(POSITION),
        unexpected=list_of(POSITION),
        startedAt=TIME,
        finishedAt=or_null(TIME),
        error=or_null(STRING),
        sparkError=or_null(STRING),
    ),
    "Actions": list_of(
        record(
            id=INTEGER,
            time=STRING,
            actor=STRING,
            peer=STRING,
            action=STRING,
            topic=or_null(STRING),
            subscription=or_null(STRING),
            positions={"anyOf": [list_of(POSITION), INTEGER]},
            outcomes=map_of(INTEGER),
        )
    ),
}
# Only with `payload=true`.
SCHEMAS["Entry"]["properties"] |= {
    "payload": STRING,
    "payloadSize": INTEGER,
    "compression": STRING,
    "encrypted": BOOLEAN,
}
SCHEMAS["Rebuild"] = record(**SCHEMAS["RebuildStatus"]["properties"], earlier=list_of(reference("RebuildStatus")))
