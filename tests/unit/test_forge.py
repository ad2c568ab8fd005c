"""What a public forge reads: workflows, forms, hooks. Whole, with the least permissions, and what they call exists."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.named import ROOT, targets

FORGE = ROOT / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
FORMS = sorted(file for file in (FORGE / "ISSUE_TEMPLATE").glob("*.yml") if file.stem != "config")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()

Job = dict[str, Any]


def read(file: Path) -> dict[Any, Any]:
    found = yaml.safe_load(file.read_text())
    assert isinstance(found, dict)
    return found


def jobs() -> list[tuple[str, Job]]:
    return [(f"{file.stem}-{name}", job) for file in WORKFLOWS for name, job in read(file)["jobs"].items()]


def action_of(step: Job) -> str:
    """Without its version."""
    return str(step.get("uses", "")).partition("@")[0]


each_job = pytest.mark.parametrize("job", [pytest.param(job, id=name) for name, job in jobs()])


# -- workflows


def test_there_are_those_that_were_meant() -> None:
    assert {name for name, _ in jobs()} == {
        *("ci-lint", "ci-fast", "ci-test"),
        *("nightly-simulation", "nightly-mutants", "nightly-coverage"),
    }


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_starts_and_may_only_read(file: Path) -> None:
    workflow = read(file)
    starts = workflow[True]  # what YAML makes of `on`
    assert set(starts) <= {"push", "pull_request", "schedule", "workflow_dispatch"}, "others run with more rights"
    assert workflow["permissions"] == {"contents": "read"}
    assert not re.search(r"\bsecrets\.", file.read_text())


@each_job
def test_a_job_is_bounded_and_pinned(job: Job) -> None:
    assert re.fullmatch(r"ubuntu-\d\d\.04", job["runs-on"])
    assert 0 < job["timeout-minutes"] <= 360
    assert "permissions" not in job
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert used
    assert not [action for action in used if not re.fullmatch(r"actions/[\w-]+@v\d+\.\d+\.\d+", action)]
    (checkout,) = [step for step in job["steps"] if action_of(step) == "actions/checkout"]
    assert checkout["with"] == {"persist-credentials": False}


@each_job
def test_a_job_calls_targets_that_exist(job: Job) -> None:
    commands = [step["run"] for step in job["steps"] if "run" in step]
    called = [re.fullmatch(r'make ([\w-]+)( [A-Z]+="\$[A-Z]+")*', command) for command in commands]
    assert called
    assert all(called), f"logic belongs into the Makefile, not into {commands}"
    assert {found[1] for found in called if found} <= targets()
    assert not [command for command in commands if "${{" in command], "values come in by the environment"


@each_job
def test_what_a_job_reads_of_the_checkout_is_there(job: Job) -> None:
    for step in job["steps"]:
        given = step.get("with", {})
        named = [*re.findall(r"hashFiles\('([^']+)'\)", str(given)), given.get("cache-dependency-path")]
        assert all((ROOT / name).is_file() for name in named if name)
        if action_of(step) == "actions/upload-artifact":
            assert f"REPORTS := {given['path'].rstrip('/')}\n" in MAKEFILE
            assert step["if"] == "${{ !cancelled() }}", "of a run that failed above all"


def test_everything_is_tried_on_each_python_with_java_and_a_browser() -> None:
    job = dict(jobs())["ci-test"]
    declared = [re.fullmatch(r".*Python :: (3\.\d+)", each) for each in PROJECT["project"]["classifiers"]]
    assert job["strategy"]["matrix"]["python"] == [found[1] for found in declared if found]
    assert job["strategy"]["fail-fast"] is False
    (java,) = [step for step in job["steps"] if action_of(step) == "actions/setup-java"]
    assert java["with"]["java-version"] == "17"
    (test,) = [step for step in job["steps"] if "run" in step]
    assert (test["run"], test["env"]) == ("make test", {"DELAY_BRIDGE_BROWSER": "required"})


@pytest.mark.parametrize("target", ["test", "fast-tests"])
def test_names_of_failing_tests_are_kept(target: str) -> None:
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert recipe is not None
    assert "--junitxml=$(REPORTS)/" in recipe[1]
    assert "build/" in (ROOT / ".gitignore").read_text().split()


# -- forms


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.stem)
def test_a_form_is_whole(file: Path) -> None:
    form = read(file)
    assert form["name"]
    assert form["description"]
    asked = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in asked} <= {"textarea", "input", "dropdown", "checkboxes"}
    names = [field["id"] for field in asked]
    assert len(names) == len(set(names))
    assert all(field["attributes"]["label"] for field in asked)
    assert any(field.get("validations", {}).get("required") for field in asked)


def test_pull_requests_are_asked_for_what_contributing_asks_for() -> None:
    template = (FORGE / "pull_request_template.md").read_text()
    assert set(re.findall(r"`make ([\w-]+)`", template)) <= targets()
    assert "- [ ] " in template


# -- hooks


def test_hooks_run_the_tools_of_the_lock() -> None:
    (source,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert source["repo"] == "local"
    wanted = " ".join(PROJECT["dependency-groups"]["dev"])
    tools = set()
    for hook in source["hooks"]:
        assert hook["language"] == "system"
        tool = re.match(r"\.venv/bin/(\w+)", hook["entry"])
        assert tool is not None
        assert f"{tool[1]}>=" in wanted
        tools.add(tool[1])
    assert tools == {"ruff", "mypy"}
