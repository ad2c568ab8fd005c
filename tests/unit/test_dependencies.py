"""What the declared dependencies promise; `make lowest` tries the lowest versions."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version)[:3])


def bounds() -> dict[str, tuple[int, ...]]:
    """The lowest version of each, by name."""
    found = [re.match(r"([\w.-]+)>=([\d.]+)", each) for each in DECLARED]
    return {each[1]: numbers(each[2]) for each in found if each is not None}


def test_each_dependency_has_a_lower_bound() -> None:
    assert len(bounds()) == len(DECLARED)


def test_protobuf_is_not_older_than_what_generated_the_protocol() -> None:
    """It refuses to load modules that a newer compiler made."""
    generated = (ROOT / "bridge" / "protocol" / "pulsar_pb2.py").read_text()
    made_by = re.search(r"# Protobuf Python Version: ([\d.]+)", generated)
    assert made_by is not None
    assert bounds()["protobuf"] >= numbers(made_by[1])


@pytest.mark.parametrize("name", sorted(bounds()))
def test_what_is_locked_is_within_the_bounds(name: str) -> None:
    assert numbers(importlib.metadata.version(name)) >= bounds()[name]
