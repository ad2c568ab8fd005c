"""What the pages say of the code holds: modules to run and to import are there."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.named import ROOT, defined_in, stale
from tests.unit.test_cli_reference import PAGES

DECISIONS = ROOT / "docs" / "decisions"
LONGEST_DECISION = 60
OURS = ("bridge", "tracker", "spark_jobs", "benchmarks", "tools", "tests")


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_are_where_the_pages_say(page: Path) -> None:
    text = page.read_text()
    ours = [name for name in re.findall(r"python -m ([\w.]+)", text) if name.split(".")[0] in OURS]
    assert not [name for name in ours if not is_module(name)]
    for module, names in re.findall(r"^from ([\w.]+) import (.+)$", text, re.MULTILINE):
        if module.split(".")[0] in OURS:
            assert {name.strip() for name in names.split(",")} <= defined_in(ROOT / f"{module.replace('.', '/')}.py")


# -- decisions


def decisions() -> dict[str, Path]:
    """By number."""
    return {str(int(file.name[:4])): file for file in sorted(DECISIONS.glob("[0-9]*.md"))}


def index_row(number: str, file: Path) -> str:
    text = file.read_text()
    title = re.match(rf"# {number}\. (.+)", text)
    assert title is not None, f"{file.name} does not begin with its number and title"
    by = re.search(r"^Superseded by (\d+)\.$", text, re.MULTILINE)
    return f"| {number} | [{title[1]}]({file.name}) | {'in force' if by is None else f'superseded by {by[1]}'} |"


def test_the_index_of_decisions_is_what_they_say() -> None:
    rows = re.findall(r"^\| \d+ \| .*$", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    assert rows == [index_row(number, file) for number, file in decisions().items()]


@pytest.mark.parametrize("number", decisions())
def test_a_decision_is_a_short_page(number: str) -> None:
    text = decisions()[number].read_text()
    assert "**Decision.**" in text
    assert len(text.splitlines()) <= LONGEST_DECISION
    for kind, other in (("Supersedes", "Superseded by"), ("Superseded by", "Supersedes")):
        for named in re.findall(rf"^{kind} (\d+)\.$", text, re.MULTILINE):
            assert f"\n{other} {number}.\n" in decisions()[named].read_text()


# -- for those who carry on


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "docs/releasing.md"])
def test_what_is_named_is_there(name: str) -> None:
    assert not stale((ROOT / name).read_text())


def test_contributing_lists_every_target() -> None:
    listed = set(re.findall(r"`make ([\w-]+)`", (ROOT / "CONTRIBUTING.md").read_text()))
    explained = set(re.findall(r"^([\w-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert listed == explained


def test_contributing_lists_every_folder_of_tests() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    listed = re.findall(r"^\| `(tests/\w+)/` \|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(config["testpaths"])


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for name in ("docker-compose.yml", "deploy/kubernetes/delay-bridge.yaml"):
        assert set(re.findall(r"image: pulsar-delay-bridge:(\S+)", (ROOT / name).read_text())) == {version}
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert [each.split()[0] for each in headings[1:2]] in ([], [version])
