"""Limits of the bridge that differ from those it has by default, by name alone: no two groups have one of the same."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

from bridge.limits import Limits


def changed(**values: Any) -> Limits:
    """Raises KeyError for a name that no limit has, ValueError for values that do not fit each other."""
    limits = Limits()
    of_group: dict[str, dict[str, Any]] = {}
    own: dict[str, Any] = {}
    for name, value in values.items():
        group = _group_of()[name]
        value = tuple(value) if isinstance(value, list) else value
        (own if group is None else of_group.setdefault(group, {}))[name] = value
    return replace(
        limits, **own, **{group: replace(getattr(limits, group), **some) for group, some in of_group.items()}
    )


def _group_of() -> dict[str, str | None]:
    limits, found = Limits(), dict[str, str | None]()
    for each in fields(Limits):
        group = getattr(limits, each.name)
        names = [one.name for one in fields(group)] if is_dataclass(group) else [each.name]
        for name in names:
            assert name not in found, name
            found[name] = each.name if is_dataclass(group) else None
    return found
