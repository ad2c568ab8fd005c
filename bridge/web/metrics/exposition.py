"""Prometheus' text format, version 0.0.4, written line by line.

The official library keeps every sample as objects first: with 500 topics that takes ten times as long, and holds the
event loop all the while (`docs/decisions/0013-metrics-as-text.md`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LABELS = "\0"
"""Where labels go in a template; no label holds it."""


class Family(NamedTuple):
    """One metric as it is declared; `name` is without the prefix, `bounds` those of a histogram but for the last."""

    name: str
    kind: str
    says: str
    labels: tuple[str, ...]
    bounds: tuple[str, ...] = ()


class Exposition:
    """Samples of declared families; `text` has them by family, in the order of declaration."""

    def __init__(self, prefix: str, families: Iterable[Family]) -> None:
        """`prefix`: of all names."""
        self._prefix = prefix
        self._families = tuple(families)
        self._samples: dict[str, tuple[str, list[str]]] = {
            family.name: (f"{prefix}{family.name}{{", []) for family in self._families
        }
        self._histograms = {
            family.name: _histogram_template(prefix + family.name, family.bounds)
            for family in self._families
            if family.bounds
        }

    def add(self, name: str, labels: str, value: float) -> None:
        """Add a sample; `labels` as `labels_text` gives them."""
        start, lines = self._samples[name]
        lines.append(f"{start}{labels}}} {value}\n")

    def add_histogram(self, name: str, labels: str, counts: Sequence[int], total: float) -> None:
        """Add one histogram: the counts up to each bound of its family, and last of all."""
        # One template instead of a line at a time: there are more of these than of all else.
        template = self._histograms[name].replace(_LABELS, labels.replace("%", "%%"))
        self._samples[name][1].append(template % (*counts, counts[-1], total))

    def text(self) -> bytes:
        """Everything, families without samples left out."""
        parts = []
        for name, kind, says, _, _ in self._families:
            if lines := self._samples[name][1]:
                parts.append(f"# HELP {self._prefix}{name} {says}\n# TYPE {self._prefix}{name} {kind}\n")
                parts += lines
        return "".join(parts).encode()


def _histogram_template(name: str, bounds: Iterable[str]) -> str:
    lines = [f'{name}_bucket{{{_LABELS},le="{bound}"}} %d\n' for bound in (*bounds, "+Inf")]
    return "".join([*lines, f"{name}_count{{{_LABELS}}} %d\n", f"{name}_sum{{{_LABELS}}} %s\n"])


def labels_text(labels: dict[str, str]) -> str:
    """Return labels as they stand between the braces, with what must be escaped escaped."""
    return ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())


def escaped(value: str) -> str:
    """Return a label's value as it stands between quotes."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
