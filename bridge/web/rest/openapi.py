"""The OpenAPI description of REST: every route with its parameters and answers.

The reference is generated from it, and the tests hold it against the routes and against what the service answers.
"""

from __future__ import annotations

import asyncio
import re
from functools import cache
from typing import Any, NamedTuple

from aiohttp import web

from bridge.limits import Limits
from bridge.web.request.parameters import ROOT, TOPIC
from bridge.web.rest.overview import VERSION
from bridge.web.rest.pending_routes import ENTRY, PENDING, SUBSCRIPTION
from bridge.web.rest.schemas import reference, schemas

PATH = "/openapi.json"

routes = web.RouteTableDef()
LIMITS, REFILL = Limits().operators, Limits().refill
"""What is told of limits: bridges have no others, but for those of tests."""


class Parameter(NamedTuple):
    """A parameter of the query."""

    name: str
    says: str
    kind: str = "string"
    repeated: bool = False


class Operation(NamedTuple):
    """One call. `answer`: one of ANSWERS; `errors`: the statuses beside 401, 403 and, with a topic, 404."""

    method: str
    path: str
    says: str
    answer: str
    query: tuple[Parameter, ...] = ()
    status: int = 200
    errors: tuple[int, ...] = ()
    body: str | None = None


_SUBSCRIPTION_ONLY = Parameter("subscription", "count what this subscription has not acked")
_FROM, _TO = (
    Parameter("from", "the first time: RFC 3339 or epoch ms"),
    Parameter("to", "the time where it ends, exclusive"),
)
_ENGINE = Parameter("engine", "`auto`, `spark` or `in-process`; `auto` by default")
_STEERED = (
    "`cancelled` (acked in the broker, never delivered), `expedited` (delivered as soon as a consumer has permits), "
    "`already-dispatched` (a consumer has it, or may have had it before this bridge took over; left as it is), "
    "`already-acked`, or `unknown` (no delayed entry)"
)

OPERATIONS = (
    Operation(
        "GET",
        f"{ROOT}/overview",
        "The bridge as a whole, what the topics that the caller may see have together, and all warnings. `dueWithin`: "
        "about how many deliveries come due within 60 s, an hour, a day",
        "Overview",
    ),
    Operation(
        "GET",
        f"{ROOT}/members",
        "The bridges of the cluster, as this one saw them last, and how much each owns",
        "Members",
    ),
    Operation(
        "GET",
        f"{ROOT}/owned",
        "The topic partitions that this bridge owns, of those that the caller may see: other bridges ask for it",
        "Owned",
    ),
    Operation(
        "GET",
        f"{ROOT}/drain",
        "Whether the bridge is draining, and how much it owns still; with several workers all of its host",
        "Drain",
    ),
    Operation(
        "PUT",
        f"{ROOT}/drain",
        "Have others take over what the bridge owns, until it is started anew or told to join; 409 where it knows no "
        "others, for `members_topic` is off",
        "Drain",
        status=202,
        errors=(409,),
    ),
    Operation("DELETE", f"{ROOT}/drain", "Have the bridge take a share again", "Drain", status=202, errors=(409,)),
    Operation(
        "GET",
        f"{ROOT}/topics",
        "The tracked topic partitions that the caller may see; the header `X-Total-Count` says how many in all",
        "Topics",
        (
            Parameter("filter", "a part of the name"),
            Parameter("sort", "`topic`, `role`, `entries`, `storageSize`, `pending`, `earliestDeliverAt`, …"),
            Parameter("order", "`asc` or `desc`"),
            Parameter("offset", "leave out the first", "integer"),
            Parameter("limit", f"at most {LIMITS.topics_page_max:,}", "integer"),
        ),
        errors=(400,),
    ),
    Operation(
        "GET",
        f"{ROOT}/actions",
        "The last acts of operators, newest first, on topics that the caller may steer; of more than "
        f"{LIMITS.action_positions_max} positions `positions` is the number",
        "Actions",
        (
            Parameter("limit", f"100, at most {LIMITS.actions_page_max:,}", "integer"),
            Parameter("before", "go on behind this `id`", "integer"),
        ),
        errors=(400,),
    ),
    Operation(
        "GET",
        f"{TOPIC}/ready",
        "Whether a topic partition is served, by this bridge or by another one that it knows of; 503 with the reason "
        "when it is not",
        "Ready",
        errors=(503,),
    ),
    Operation(
        "GET",
        f"{TOPIC}/stats",
        "A topic partition and its subscriptions, null for what only its owner knows; counts since this bridge became "
        "the owner, `lateness` of first deliveries, `latenessCauses` of those more than 100 ms late",
        "Stats",
    ),
    Operation(
        "GET",
        f"{TOPIC}/partitions",
        "The time partitions: tier `memory` where the near term reaches, else `disk`; states as in "
        "[concepts](concepts.md)",
        "Partitions",
        (_SUBSCRIPTION_ONLY,),
    ),
    Operation(
        "GET",
        f"{TOPIC}/partitions/chart",
        "The same, added up to bars for a chart; bars without entries are left out",
        "Chart",
        (
            _FROM,
            _TO,
            Parameter("bars", f"so many at most: 300, at most {LIMITS.chart_bars_max:,}", "integer"),
            _SUBSCRIPTION_ONLY,
        ),
        errors=(400, 409),
    ),
    Operation(
        "GET",
        f"{SUBSCRIPTION}/histogram",
        "What comes due when; buckets without entries are left out. A bound within a time partition costs reading it",
        "Histogram",
        (Parameter("step", "a duration, at least `1s`; the width of a time partition by default"), _FROM, _TO),
        errors=(400, 409, 503),
    ),
    Operation(
        "GET",
        f"{SUBSCRIPTION}/books",
        "What was published, and where it is for a subscription; with `positions` every entry of the index is looked "
        f"at, of at most {LIMITS.books_scan_max:,}, and the first {LIMITS.books_positions_max:,} positions that are in "
        "no place, or in several, are listed. `unknown` says why, where the books cannot be closed at the moment",
        "Books",
        (Parameter("positions", "`true`: look at every entry"),),
        errors=(400, 409),
    ),
    Operation(
        "GET",
        PENDING,
        f"Search in due order. One call looks at {LIMITS.search_scan:,} entries: a page may be empty although more "
        "follow, go on with `cursor` until it is null. `state`: `pending`, `expedited` (to be delivered now), `ready` "
        "(waits for permits), `in-flight` (a consumer has it)",
        "Pending",
        (
            Parameter("dueFrom", "due then or later: RFC 3339 or epoch ms"),
            Parameter("dueTo", "due before"),
            Parameter("key", "the message key, as it is in the metadata"),
            Parameter("property", "`NAME=VALUE`, may be repeated", repeated=True),
            Parameter("messageId", "`ledger:entry`"),
            Parameter("limit", f"100, at most {LIMITS.search_page_max:,}", "integer"),
            Parameter("cursor", "where the page before ended"),
            Parameter("payload", f"`true`: with the payload in base64, the first {LIMITS.payload_peek_bytes:,} bytes"),
        ),
        errors=(400, 409, 503),
    ),
    Operation("DELETE", ENTRY, f"Cancel one entry: {_STEERED}", "OneOutcome", errors=(400, 409, 503)),
    Operation(
        "POST", f"{ENTRY}/deliver-now", "Deliver one entry now; outcomes as above", "OneOutcome", errors=(400, 409, 503)
    ),
    Operation(
        "POST",
        f"{SUBSCRIPTION}/cancel",
        f"Cancel up to {LIMITS.steering_max:,} entries; outcomes counted, and one by one",
        "Outcomes",
        errors=(400, 409, 503),
        body="MessageIds",
    ),
    Operation(
        "POST",
        f"{SUBSCRIPTION}/deliver-now",
        f"Deliver up to {LIMITS.steering_max:,} entries now",
        "Outcomes",
        errors=(400, 409, 503),
        body="MessageIds",
    ),
    Operation(
        "PUT",
        f"{TOPIC}/rebuild",
        "Read again whatever a subscription may need; 409 while that or an audit is under way",
        "RebuildStatus",
        (_ENGINE,),
        202,
        (400, 409),
    ),
    Operation(
        "DELETE", f"{TOPIC}/rebuild", "End the rebuild that an operator started", "RebuildStatus", (), 202, (409,)
    ),
    Operation(
        "GET",
        f"{TOPIC}/rebuild",
        "The rebuild under way, or the last one, and those `earlier`. `proof`: what index and topic have "
        "alike, all that is due `from` then on; `sparkError`: why the bridge read what a job was to; 404 without one",
        "Rebuild",
        errors=(409,),
    ),
    Operation(
        "PUT",
        f"{TOPIC}/audit",
        "Compare index and topic, entry by entry, above what all subscriptions have",
        "AuditStatus",
        (_ENGINE,),
        202,
        (400, 409),
    ),
    Operation(
        "GET",
        f"{TOPIC}/audit",
        "The audit under way, or the last one. What is due before `comparedFrom` is compared as far as the index has "
        f"its time partition; `missing` and `unexpected` list at most {REFILL.audit_listed_max:,} positions of the "
        f"first {REFILL.audit_blocks_max} places that differ; 404 without one",
        "AuditStatus",
        errors=(409,),
    ),
)


@routes.get(PATH)
async def openapi(request: web.Request) -> web.Response:
    """Answer with the description."""
    return web.json_response(await asyncio.to_thread(description))


@cache
def description() -> dict[str, Any]:
    """Return the whole document. It is made once, in some 30 ms: beside the event loop."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    bearer = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pulsar delay bridge", "version": VERSION},
        "security": [{}, {"bearer": []}],
        "paths": paths,
        "components": {"schemas": schemas(), "securitySchemes": {"bearer": bearer}},
    }


def _operation(operation: Operation) -> dict[str, Any]:
    named = re.findall(r"{(\w+)}", operation.path)
    errors = {401, 403, *operation.errors, *((404,) if "topic" in named else ())}
    answers: dict[str, Any] = {
        str(operation.status): {"description": "done", "content": _json(operation.answer)},
        **{str(status): {"description": web_reason(status), "content": _json("Error")} for status in sorted(errors)},
    }
    if "topic" in named:
        answers["307"] = {
            "description": "the topic is another bridge's",
            "headers": {"Location": {"schema": {"type": "string"}}},
        }
    found: dict[str, Any] = {
        "operationId": f"{operation.method.lower()}{''.join(part.capitalize() for part in _words(operation.path))}",
        "summary": operation.says.split(";")[0].split(". ")[0],
        "description": operation.says,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in named),
            *map(_parameter, operation.query),
        ],
        "responses": answers,
    }
    if operation.body is not None:
        found["requestBody"] = {"required": True, "content": _json(operation.body)}
    return found


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": parameter.kind}
    if parameter.repeated:
        schema = {"type": "array", "items": schema}
    return {"name": parameter.name, "in": "query", "description": parameter.says, "schema": schema}


def _json(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": reference(schema)}}


def _words(path: str) -> list[str]:
    return re.findall(r"[a-z]+", re.sub(r"{[^}]*}", "", path.removeprefix(ROOT).replace("persistent", "topic")))


def web_reason(status: int) -> str:
    """Return what an error status means here."""
    return {
        400: "a value is wrong, the reason names it",
        401: "nobody is known by that token",
        403: "the caller may not",
        404: "there is no such thing here",
        409: "not now, or not here",
        503: "not done, or nobody knows: ask again",
    }[status]
