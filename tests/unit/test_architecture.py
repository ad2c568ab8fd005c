"""The arrows of the design: who may import whom."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def modules(package: str) -> Iterator[Path]:
    yield from sorted((ROOT / package).rglob("*.py"))


def imports_of(file: Path) -> set[str]:
    """Every module a file imports, wherever in it, relative names made absolute."""
    found: set[str] = set()
    package = ".".join(file.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, *filter(None, [base])])
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def is_in(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def refused(package: str, *forbidden: str) -> list[str]:
    return [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in modules(package)
        for name in sorted(imports_of(file))
        if is_in(name, *forbidden)
    ]


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("tracker", ("bridge", "spark_jobs", "tests", "asyncio", "socket", "aiohttp", "time", "datetime")),
        ("bridge/protocol", ("asyncio", "tracker", "socket", "bridge.gateway", "bridge.broker", "spark_jobs")),
        ("bridge", ("tests", "benchmarks", "tools")),
        ("bridge/gateway", ("bridge.web", "bridge.cli", "bridge.app", "bridge.topics", "bridge.tracked_topic")),
        ("bridge/broker", ("bridge.gateway", "bridge.web", "bridge.cli", "bridge.app")),
        ("bridge/embedded", ("tracker", "bridge.gateway", "bridge.broker", "bridge.web", "bridge.app")),
    ],
)
def test_what_a_layer_must_not_know(package: str, forbidden: tuple[str, ...]) -> None:
    assert not refused(package, *forbidden)


def test_the_dispatcher_is_pure() -> None:
    assert not {"asyncio", "time", "socket", "structlog"} & {
        name.split(".")[0] for name in imports_of(ROOT / "bridge" / "dispatcher.py")
    }


def test_spark_jobs_know_the_tracker_and_the_protocol_only() -> None:
    strangers = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in modules("spark_jobs")
        for name in sorted(imports_of(file))
        if is_in(name, "bridge") and not is_in(name, "bridge.protocol")
    ]
    assert not strangers


def test_the_rules_see_imports() -> None:
    """A test of the test: imports in functions and relative ones count."""
    assert is_in("bridge.limits", "bridge")
    assert not is_in("bridges", "bridge")
    assert any(is_in(name, "tracker") for name in imports_of(ROOT / "bridge" / "tracked_topic.py"))
