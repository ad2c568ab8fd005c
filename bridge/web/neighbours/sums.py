"""What several workers say, as one: pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from bridge import answers
from bridge.answers.values import Severity

_ROLES: Final = ("owner", "idle", "passed-through", "opening", "standby")
"""Whose word on a topic counts, the first of these."""
_SUMS: Final = ("topics", "owned", "entries", "storageSize", "memoryEntries", "memorySize", "pending")


def rows_as_one(rows: Iterable[answers.TopicRow]) -> list[answers.TopicRow]:
    """One row for each topic partition: of who owns it, where several workers know of it."""
    best: dict[str, answers.TopicRow] = {}
    for row in rows:
        before = best.get(row["topic"])
        if before is None or _ROLES.index(row["role"]) < _ROLES.index(before["role"]):
            best[row["topic"]] = row
    return list(best.values())


def overview_as_one(
    own: answers.Overview, others: Sequence[answers.Overview], silent: Mapping[str, str]
) -> answers.Overview:
    """Sums; warnings of all; ready as long as the first is. `silent`: who says nothing, and why."""
    together: dict[str, Any] = dict(own)
    for name in (*_SUMS, "clientConnections"):
        together[name] = sum(each[name] for each in (own, *others))
    bounds = own["dueWithin"]
    together["dueWithin"] = {bound: sum(each["dueWithin"].get(bound, 0) for each in (own, *others)) for bound in bounds}
    together["storageFailure"] = next(filter(None, (each["storageFailure"] for each in (own, *others))), None)
    buckets = (each["latenessBuckets"] for each in (own, *others))
    together["latenessBuckets"] = [sum(counts) for counts in zip(*buckets, strict=True)]
    warnings: list[answers.OperatorWarning] = [warning for each in (own, *others) for warning in each["warnings"]]
    warnings += [_silence(web_url, trouble) for web_url, trouble in silent.items()]
    unlike = {json.dumps(each, sort_keys=True): each for each in warnings}  # of the disk all of them say the same
    together["warnings"] = sorted(unlike.values(), key=lambda each: each["severity"] != Severity.critical)
    return together  # type: ignore[return-value]


def acts_as_one(lists: Sequence[Sequence[answers.Action]]) -> list[answers.Action]:
    """Newest first."""
    return sorted((each for acts in lists for each in acts), key=lambda each: each["time"], reverse=True)


def _silence(web_url: str, trouble: str) -> answers.OperatorWarning:
    return {
        "severity": Severity.critical,
        "code": "worker-silent",
        "text": f"the worker at {web_url} does not answer, what it serves is not shown: {trouble}",
        "topic": None,
        "subscription": None,
    }


def metrics_as_one(texts: Sequence[str | None]) -> bytes:
    """Scrapes of several workers, by their numbers, None of a silent one: each sample with the label `worker`.

    Not added up: a counter has to fall to 0 and go on from there when its worker is started again, and a sum would not.
    """
    families: dict[str, tuple[list[str], list[str]]] = {}
    for number, text in enumerate(texts):
        said, samples = "", []
        for line in [] if text is None else text.splitlines():
            if line.startswith("# HELP "):
                said = line
            elif line.startswith("#"):
                samples = families.setdefault(line.split(" ", 3)[2], ([said, line], []))[1]
            else:
                name, _, rest = line.partition("{")
                samples.append(f'{name}{{worker="{number}",{rest}')
    lines = (line for said, samples in families.values() for line in (*said, *samples))
    return "".join(f"{line}\n" for line in lines).encode()
