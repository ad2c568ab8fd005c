"""What a request to the broker's HTTP interface is about, by its method and path. Pure.

Source of the paths: the broker's `TopicLookup`, `PersistentTopics`, `Namespaces` and `SchemasResource`, of v1 and v2.
"""

import re
from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import unquote

METHODS: Final = ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS")
"""Those that the broker's resources know; TRACE would show a caller's headers to whoever can have a page send it."""
_READS: Final = ("GET", "HEAD")
_DOMAINS: Final = ("persistent", "non-persistent")
_OWN: Final = ("admin", "v2", "delayed")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
_NOT_IN_A_TARGET = re.compile(r"[^\x21-\x7e]|%(?![0-9A-Fa-f]{2})")


class Kind(StrEnum):
    """What becomes of the answer; all but `other` are what clients ask for by themselves, or are filled in."""

    lookup = "lookup"
    client = "client"
    subscriptions = "subscriptions"
    stats = "stats"
    partitioned_stats = "partitioned-stats"
    other = "other"


class Call(NamedTuple):
    """One request. `topic`: the full name, for the kinds that are about one."""

    kind: Kind
    topic: str = ""


class NotAsked(Exception):
    """The broker is not asked; `status` is the answer, the message says why."""

    def __init__(self, message: str, status: int = 400) -> None:
        """`message` says what is wrong with the request."""
        super().__init__(message)
        self.status = status


def call_of(method: str, raw_path: str) -> Call:
    """What a request is about; `raw_path` is as it was sent, escaped. Raises NotAsked.

    Names may hold anything, slashes among it, escaped. What servers take for another path than the one written is
    refused: parts that are dots alone, also behind escaped slashes or with `;parameters`, empty ones, and control
    characters.
    """
    if method not in METHODS:
        raise NotAsked(f"no method of the broker's: {method[:20]}", 405)
    if _NOT_IN_A_TARGET.search(raw_path):
        raise NotAsked("the path is not escaped as paths are")
    raw_parts = raw_path.split("/")[1:]
    parts = [unquote(each, errors="replace") for each in raw_parts]
    for number, part in enumerate(parts):
        if any(each.partition(";")[0] in (".", "..") for each in part.split("/")):
            raise NotAsked("a part of the path is dots alone")
        if _CONTROLS.search(part):
            raise NotAsked("the path holds control characters")
        if not part and number < len(parts) - 1:
            raise NotAsked("a part of the path is empty")
    if tuple(parts[:3]) == _OWN:
        raise NotAsked(f"there is no {raw_path[:200]}", 404)
    if parts and not parts[-1]:
        parts.pop()
    return _told(parts) if method in _READS else Call(Kind.other)


def _told(parts: list[str]) -> Call:
    match parts:
        case ["lookup", "v2", "topic", domain, tenant, namespace, name] if domain in _DOMAINS:
            return Call(Kind.lookup, f"{domain}://{tenant}/{namespace}/{name}")
        case ["lookup", "v2", "destination", domain, tenant, cluster, namespace, name] if domain in _DOMAINS:
            return Call(Kind.lookup, f"{domain}://{tenant}/{cluster}/{namespace}/{name}")
        case ["admin", "v2", "namespaces", _, _, "topics"] | ["admin", "namespaces", _, _, _, "destinations"]:
            return Call(Kind.client)
        case ["admin", "v2", "schemas", _, _, _, "schema", *rest] if len(rest) <= 1:
            return Call(Kind.client)
        case ["admin", "v2", domain, tenant, namespace, name, what] if domain in _DOMAINS:
            return _of_topic(f"{domain}://{tenant}/{namespace}/{name}", what)
        case ["admin", domain, tenant, cluster, namespace, name, what] if domain in _DOMAINS:
            return _of_topic(f"{domain}://{tenant}/{cluster}/{namespace}/{name}", what)
    return Call(Kind.other)


def _of_topic(topic: str, what: str) -> Call:
    if what == "partitions":
        return Call(Kind.client, topic)
    if topic.startswith("persistent:") and what in (Kind.subscriptions, Kind.stats, Kind.partitioned_stats):
        return Call(Kind(what), topic)
    return Call(Kind.other)


def is_for_clients(call: Call) -> bool:
    """Whether clients ask for it by themselves when their service URL is an http one."""
    return call.kind in (Kind.lookup, Kind.client)
