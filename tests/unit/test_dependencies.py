"""What the declared dependencies promise, those of the extras too; `make lowest` tries the lowest versions."""

import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bridge import extras
from tools.installed_size import LEFT_OUT

ROOT = Path(__file__).parent.parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
ITSELF = f"{PROJECT['name']}["
"""An extra may name another one."""
DECLARED = PROJECT["dependencies"] + [each for some in EXTRAS.values() for each in some if not each.startswith(ITSELF)]
LOCKS = ("requirements.lock", "requirements-all.lock", "requirements-dev.lock")


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


def name_of(requirement: str) -> str:
    return re.split(r"[<>=!~; ]", requirement, maxsplit=1)[0]


def locked(lock: str) -> set[str]:
    return set(re.findall(r"^([\w.-]+)==\S+ ", (ROOT / lock).read_text(), re.MULTILINE))


def test_the_plain_lock_has_what_serve_needs_and_nothing_of_the_extras() -> None:
    assert {name_of(each) for each in PROJECT["dependencies"]} <= locked("requirements.lock")
    assert not LEFT_OUT & locked("requirements.lock")


def test_the_other_locks_have_all_extras() -> None:
    plain, complete, dev = map(locked, LOCKS)
    assert plain | {name_of(each) for each in DECLARED} <= complete <= dev
    assert {"pytest", "ruff"} <= dev - complete


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_hashes_and_no_addresses(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert not re.findall(r"^--", text, re.MULTILINE), "options for one machine"
    blocks = re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]
    assert len(blocks) >= len(locked(lock)) > 30
    assert not [each for each in blocks if "--hash=sha256:" not in each]


def test_each_extra_is_looked_for_by_what_it_brings() -> None:
    assert EXTRAS.keys() == extras.MODULES.keys()
    for name, some in EXTRAS.items():
        brought = {name_of(each) for each in some if not each.startswith(ITSELF)}
        assert brought == set(extras.MODULES[name].values())
    assert PROJECT["name"] == extras.PACKAGE
    others = [each for each in EXTRAS["demo"] if each.startswith(ITSELF)]
    assert others == [f"{extras.PACKAGE}[spark]"], "the demo fetches Pulsar by PySpark"
