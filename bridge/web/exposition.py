"""Prometheus' text format, version 0.0.4, written line by line.

The official library keeps every sample as objects first: with 500 topics that takes ten times as long, and holds the
event loop all the while (`docs/decisions/0013-metrics-as-text.md`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Value = int | float | bool


class Family(NamedTuple):
    """One metric as it is declared; `name` is without the prefix."""

    name: str
    kind: str
    says: str
    labels: tuple[str, ...]


class Exposition:
    """Samples of declared families; `text` has them by family, in the order of declaration."""

    def __init__(self, prefix: str, families: Iterable[Family]) -> None:
        """`prefix`: of all names."""
        self._prefix = prefix
        self._families = tuple(families)
        self._lines: dict[str, list[str]] = {family.name: [] for family in self._families}

    def add(self, name: str, labels: str, value: Value) -> None:
        """Add a sample; `labels` as `labels_text` gives them."""
        self._lines[name].append(f"{self._prefix}{name}{{{labels}}} {_number(value)}\n")

    def add_histogram(self, name: str, labels: str, buckets: Iterable[tuple[str, int]], total: float) -> None:
        """Add one histogram: buckets with their upper bound and the count up to it, the last one `+Inf`."""
        start = f"{self._prefix}{name}"
        count = 0
        lines = self._lines[name]
        for bound, count in buckets:
            lines.append(f'{start}_bucket{{{labels},le="{bound}"}} {count}\n')
        lines.append(f"{start}_count{{{labels}}} {count}\n")
        lines.append(f"{start}_sum{{{labels}}} {_number(total)}\n")

    def text(self) -> bytes:
        """Everything, families without samples left out."""
        parts = []
        for name, kind, says, _ in self._families:
            if lines := self._lines[name]:
                parts.append(f"# HELP {self._prefix}{name} {says}\n# TYPE {self._prefix}{name} {kind}\n")
                parts += lines
        return "".join(parts).encode()


def labels_text(labels: dict[str, str]) -> str:
    """Return labels as they stand between the braces, with what must be escaped escaped."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: Value) -> str:
    return str(int(value)) if isinstance(value, int) else repr(value)
