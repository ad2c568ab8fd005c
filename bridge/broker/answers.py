"""What the broker's admin interface answers, read. Pure. What cannot be read raises an error, of whatever kind.

Whoever answers may be of another version, or a proxy. A list that is missing is not taken for one with nothing in it:
consumers would be turned away, and subscriptions forgotten.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from bridge.broker.candidates import Candidate, Candidates
from tracker import Position

MARK_METADATA = "__delay-bridge"
"""What the gateway adds to a consumer's metadata, to know it again; it takes 30 of the 1,024 bytes allowed."""


_SUBSCRIPTIONS = re.compile(r'"subscriptions"\s*:\s*\{')


@dataclass(frozen=True)
class TopicStats:
    """What `stats` says of a topic partition: bytes of backlog, and by subscription consumer names and bytes.

    `publishers`: how many producers are connected; `marks`: those that the gateway has given consumers.
    """

    backlog_bytes: int
    consumers: dict[str, list[str]]
    backlog_by_subscription: dict[str, int]
    publishers: int = 0
    marks: frozenset[str] = frozenset()


def parse_json(text: str) -> Any:
    """An answer; None for an empty one, which says that there is nothing to say."""
    return json.loads(text, parse_constant=_refuse_constant) if text.strip() else None


def topic_stats_in(body: Any) -> TopicStats:
    """Consumers and backlogs in the answer of `stats`."""
    found = {name: _object(one, name) for name, one in _object_at(body, "subscriptions").items()}
    consumers = {name: _consumers_in(one) for name, one in found.items()}
    return TopicStats(
        int(body.get("backlogSize", 0)),
        {name: [_name_of(each) for each in listed] for name, listed in consumers.items()},
        {name: int(one.get("backlogSize", 0)) for name, one in found.items()},
        len(_list_at(body, "publishers")),
        frozenset(
            str(mark)
            for listed in consumers.values()
            for each in listed
            if (mark := _metadata_of(each).get(MARK_METADATA)) is not None
        ),
    )


def candidates_in(body: Any, subscription: str) -> Candidates:
    """The consumers of a Failover subscription in the answer of `stats`; nobody where it is not listed."""
    found = _object_at(body, "subscriptions").get(subscription)
    if found is None:
        return Candidates(None, [])
    active = _object(found, subscription).get("activeConsumerName")
    return Candidates(str(active) if active else None, [_candidate(each) for each in _consumers_in(found)])


def marks_in(text: str, marks: Collection[str]) -> set[str]:
    """Those of `marks` that stand in the answer of `stats`.

    Marks are such that they occur nowhere else: the answer, a kilobyte for each consumer, need not be parsed.
    """
    answer = text.strip()
    if not (answer.startswith("{") and answer.endswith("}") and _SUBSCRIPTIONS.search(answer)):
        raise ValueError(f"no statistics: {answer[:50]!r}")
    return {mark for mark in marks if f'"{mark}"' in answer}


def position_in(body: Any) -> Position:
    """The position in the answer of `lastMessageId`."""
    return Position(int(body["ledgerId"]), int(body["entryId"]))


def pending_transactions_in(body: Any) -> int | None:
    """How many transactions there are in the answer of `pendingAckStats`; None while they are being read."""
    state = str(body["state"])
    if state not in ("Ready", "None"):
        return None
    return int(body["ongoingTxnSize"])


def is_pending_in(body: Any) -> bool:
    """Whether it is, in the answer of `positionStatsInPendingAck`. Raises ValueError while the broker does not know."""
    state = str(body["state"])
    if state not in ("PendingAck", "MarkDelete", "NotInPendingAck", "InvalidPosition"):
        raise ValueError(f"not known yet: {state[:50]}")
    return state == "PendingAck"


def seconds_in(body: Any) -> int | None:
    """A time in a policy; None without one."""
    return body if isinstance(body, int) and not isinstance(body, bool) and body > 0 else None


def quotas_in(body: Any) -> dict[str, Mapping[str, Any]]:
    """The backlog quotas in a policy by kind, empty without any."""
    if not isinstance(body, Mapping):
        return {}
    return {kind: quota for kind, quota in body.items() if isinstance(quota, Mapping)}


def delays_in(body: Any) -> bool:
    """Whether a policy lets messages be delayed, as it is without one. Raises TypeError where it says neither."""
    if body is None:
        return True
    active = _object(body, "policy").get("active")
    if not isinstance(active, bool):
        raise TypeError(f"neither active nor not: {str(active)[:50]!r}")
    return active


def published_in(body: Any) -> tuple[float, float]:
    """Messages and bytes published in a second, in the answer of `stats`."""
    return float(body["msgRateIn"]), float(body["msgThroughputIn"])


def _candidate(consumer: Mapping[str, Any]) -> Candidate:
    try:
        connected_ms = round(datetime.fromisoformat(consumer["connectedSince"]).timestamp() * 1000)
    except (KeyError, TypeError, ValueError, OverflowError):  # not every broker writes it alike
        connected_ms = None
    stated = {str(key): str(value) for key, value in _metadata_of(consumer).items()}
    role = consumer.get("appId")
    return Candidate(_name_of(consumer), str(role) if role else None, stated, connected_ms)


def _consumers_in(subscription: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [_object(each, "consumer") for each in _list_at(subscription, "consumers")]


def _name_of(consumer: Mapping[str, Any]) -> str:
    return str(consumer["consumerName"] or "")


def _metadata_of(consumer: Mapping[str, Any]) -> Mapping[str, Any]:
    return _object(consumer.get("metadata") or {}, "metadata")


def _object_at(body: Any, name: str) -> Mapping[str, Any]:
    return _object(_object(body, "answer")[name], name)


def _list_at(body: Mapping[str, Any], name: str) -> list[Any]:
    found = body[name]
    if not isinstance(found, list):
        raise TypeError(f"{name} is no list: {str(found)[:50]!r}")
    return found


def _object(found: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise TypeError(f"{name} is no object: {str(found)[:50]!r}")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def is_for_nobody(headers: Mapping[str, str]) -> bool:
    """Whether the headers that go with an entry call it a marker, or part of an aborted transaction."""
    return "X-Pulsar-marker-type" in headers or headers.get("X-Pulsar-txn-aborted") == "true"
