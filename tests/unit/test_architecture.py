"""The arrows of the design: who may import whom. Rooms are folders; docs/architecture.md says what is in each."""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path

import pytest

from tests import named

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("bridge", "tracker", "spark_jobs")

FLOORS = (
    ("bridge.cli",),
    ("bridge.showcase", "bridge.workers"),
    ("bridge.app",),
    ("bridge.core",),
    ("bridge.web.server",),
    ("bridge.web.pages", "bridge.web.metrics"),
    ("bridge.web.rest", "bridge.web.front_door"),
    ("bridge.web.neighbours",),
    ("bridge.web.access",),
    ("bridge.web.request",),
    ("bridge.members",),
    ("bridge.topics",),
    ("bridge.operate",),
    ("bridge.refill", "bridge.dispatch"),
    ("bridge.intake", "bridge.gateway"),
    ("bridge.config",),
    ("bridge.broker",),
    ("bridge.answers", "bridge.net", "bridge.notation", "bridge.embedded", "bridge.logs", "bridge.ledgers"),
    ("bridge.protocol", "bridge.limits", "bridge.clock", "bridge.extras"),
)
"""Top first: a room knows the floors below its own, and nobody else on its floor."""
LOOSE = {"__init__", "__main__", "app", "clock", "config", "core", "extras", "limits", "logs"}
"""What may lie in `bridge/` outside of the rooms: composition and constants."""
FILES_MAX = 17


def modules(package: str) -> Iterator[Path]:
    yield from sorted((ROOT / package).rglob("*.py"))


def module_of(file: Path) -> str:
    """Its name for imports; of a package that of its folder."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


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


def floor_of(name: str) -> tuple[int, str] | None:
    """The floor and room of a module; None for the packages' own doors."""
    rooms = [(number, room) for number, floor in enumerate(FLOORS) for room in floor if is_in(name, room)]
    return max(rooms, key=lambda found: len(found[1]), default=None)


@cache
def arrows() -> dict[str, frozenset[str]]:
    """Which of our modules imports which, type-checking imports included."""
    known = {module_of(file): file for package in PACKAGES for file in modules(package)}
    found = {}
    for name, file in known.items():
        # `from package import module` is an import of the module.
        targets = {each if each in known else each.rpartition(".")[0] for each in imports_of(file)}
        found[name] = frozenset((targets & known.keys()) - {name})
    return found


def circles(graph: Mapping[str, Set[str]]) -> list[str]:
    """Modules that can be reached from themselves."""
    reached = {name: set(targets) for name, targets in graph.items()}
    while True:
        before = sum(map(len, reached.values()))
        for name, targets in reached.items():
            reached[name] = targets.union(*(reached[target] for target in targets))
        if sum(map(len, reached.values())) == before:
            return sorted(name for name, targets in reached.items() if name in targets)


def test_no_arrow_leads_upward() -> None:
    wrong = []
    for name, targets in arrows().items():
        own = floor_of(name)
        for target in targets:
            other = floor_of(target)
            if own is not None and other is not None and own != other and other[0] <= own[0]:
                wrong.append(f"{name} imports {target}")
    assert not wrong


def test_every_module_has_its_room() -> None:
    loose = {file.stem for file in (ROOT / "bridge").glob("*.py")}
    assert loose == LOOSE
    doors = {"bridge", "bridge.__main__", "bridge.web"}
    assert [name for name in arrows() if is_in(name, "bridge") and floor_of(name) is None] == sorted(doors)


def test_no_room_is_crowded() -> None:
    folders = {file.parent for package in PACKAGES for file in modules(package)}
    crowded = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in folders}
    assert not {folder: count for folder, count in crowded.items() if count > FILES_MAX}


def test_there_is_no_circle_of_imports() -> None:
    assert not circles(arrows())


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("tracker", ("bridge", "spark_jobs", "tests", "asyncio", "socket", "aiohttp", "time", "datetime")),
        ("bridge/protocol", ("asyncio", "tracker", "socket", "spark_jobs")),
        ("bridge/notation", ("asyncio", "time", "socket", "random", "spark_jobs")),
        ("bridge/answers", ("asyncio", "time", "aiohttp", "tracker", "spark_jobs")),
        ("bridge", ("tests", "benchmarks", "tools")),
        ("bridge/embedded", ("tracker",)),
        ("bridge/net", ("tracker", "bridge.protocol")),
    ],
)
def test_what_a_layer_must_not_know(package: str, forbidden: tuple[str, ...]) -> None:
    assert not refused(package, *forbidden)


def test_the_dispatcher_is_pure() -> None:
    assert not {"asyncio", "time", "socket", "structlog"} & {
        name.split(".")[0] for name in imports_of(ROOT / "bridge" / "dispatch" / "dispatcher.py")
    }


def test_spark_jobs_know_only_what_is_pure() -> None:
    strangers = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in modules("spark_jobs")
        for name in sorted(imports_of(file))
        if is_in(name, "bridge")
        and not is_in(name, "bridge.protocol", "bridge.ledgers", "bridge.notation", "bridge.extras")
    ]
    assert not strangers


def test_commands_are_built_in_one_place() -> None:
    builders = {
        str(file.relative_to(ROOT))
        for package in PACKAGES
        for file in modules(package)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "BaseCommand"
    }
    assert builders == {"bridge/protocol/commands.py"}


# -- docs/architecture.md


def folder_of(room: str) -> str:
    """As the page names it."""
    path = room.replace(".", "/")
    return f"{path}.py" if (ROOT / f"{path}.py").is_file() else f"{path}/"


def test_the_page_names_nothing_that_is_gone() -> None:
    assert not named.stale(PAGE.read_text())


def test_the_page_has_every_room_on_its_floor() -> None:
    rows = re.findall(r"^\| (\d+) \| `(bridge/\S+)` \| \S", PAGE.read_text(), re.MULTILINE)
    assert rows == [(str(number), folder_of(room)) for number, floor in enumerate(FLOORS, 1) for room in floor]
    corners = re.findall(r"^\|[^|]*\| `((?:tracker|spark_jobs)/\w+/)` \| \S", PAGE.read_text(), re.MULTILINE)
    folders = {file.parent.relative_to(ROOT) for package in PACKAGES[1:] for file in modules(package)}
    assert sorted(corners) == sorted(f"{folder}/" for folder in folders if len(folder.parts) > 1)


def test_every_invariant_has_its_decision_and_its_test() -> None:
    rows = re.findall(r"^\| (\d) \| \*\*(.+)$", PAGE.read_text(), re.MULTILINE)
    assert [number for number, _ in rows] == list("123456789")
    for _, row in rows:
        assert re.search(r"\]\(decisions/\d{4}-", row), row
        assert re.search(r"`tests/\w+/test_\w+\.py`", row), row


def test_the_look_at_pages_finds_what_is_wrong() -> None:
    """A test of the test."""
    page = "- `bridge/app.py` `Bridge.start` `Bridge.gone`\n- `Bridge.start`\n"
    page += "\n`make lint` `bridge/gone.py` `make gone`\n"
    wrong = ["Bridge.gone is in none", "Bridge.start is in none", "bridge/gone.py is not there", "make gone: no such"]
    assert all(found.startswith(words) for found, words in zip(named.stale(page), wrong, strict=True))


def patched_constants(source: str) -> Iterator[str]:
    """Names in capitals that are set from outside of where they are: `setattr(…, "NAME", …)`, `module.NAME = …`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "setattr":
            told = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
            yield from (name for name in (str(each).rpartition(".")[2] for each in told) if name.isupper())
            if isinstance(node.args[0], ast.Name) and "limits" in node.args[0].id:
                yield node.args[0].id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr.isupper():
            yield node.attr


def test_no_constant_is_patched() -> None:
    """What may be larger or smaller is passed, see `bridge.limits`; another version's format is another matter."""
    folders = [*PACKAGES, "tests", "benchmarks", "tools"]
    found = {name for folder in folders for file in modules(folder) for name in patched_constants(file.read_text())}
    assert found == {"DATA_FORMAT"}


def test_limits_are_no_constants() -> None:
    for name in ("bridge/limits.py", "tracker/limits.py"):
        body = ast.parse((ROOT / name).read_text()).body
        assert not [node for node in body if isinstance(node, ast.Assign | ast.AnnAssign)], name


def test_the_look_at_patches_finds_them() -> None:
    """A test of the test."""
    assert [*patched_constants('patch.setattr(limits, "HELD_MAX", 1)')] == ["HELD_MAX", "limits"]
    assert [*patched_constants("setattr(bridge_limits, name, 1)")] == ["bridge_limits"]
    assert [*patched_constants('patch.setattr("bridge.limits.HELD_MAX", 1)')] == ["HELD_MAX"]
    assert [*patched_constants("limits.A_MAX, limits.B_MAX = 1, 2")] == ["A_MAX", "B_MAX"]
    assert not [*patched_constants('patch.setattr(loop, "time", clock)\nself.limits = DispatchLimits(max_timer_ms=1)')]


def test_every_folder_of_tests_is_run() -> None:
    folders = {str(file.parent.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")}
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    assert folders <= set(config["testpaths"])


def test_the_rules_see_imports() -> None:
    """A test of the test: imports in functions and relative ones count, and circles are found."""
    assert is_in("bridge.limits", "bridge")
    assert not is_in("bridges", "bridge")
    assert any(is_in(name, "tracker") for name in imports_of(ROOT / "bridge" / "topics" / "tracked_topic.py"))
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]
