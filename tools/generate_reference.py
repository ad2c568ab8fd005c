"""Writes the generated parts of `docs/reference.md`: every command's help, setting, call of REST and metric.

Run it after changing one of them: `python -m tools.generate_reference`. The test `test_cli_reference.py`
compares, so that the page cannot drift from the program.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from typer.testing import CliRunner

from bridge.cli import app
from bridge.config import ENV_PREFIX, Settings
from bridge.web.metrics.scrape import FAMILIES
from bridge.web.rest.openapi import OPERATIONS
from bridge.web.rest.schemas import schemas

REFERENCE = Path(__file__).parent.parent / "docs" / "reference.md"
_WIDTH = 110
_PART = "<!-- generated: {name} -->\n{text}\n<!-- end of {name} -->"
_DEPENDS = {
    "data_dir": "the user's data directory",
    "advertised_address": "see there",
    "access": "`off` for this machine only",
}
"""Defaults that are not the same on every machine."""


def generate(page: str) -> str:
    """The page with its generated parts as they have to be."""
    for name, text in (
        ("commands", _commands()),
        ("settings", _settings()),
        ("calls", _calls()),
        ("metrics", _metrics()),
    ):
        pattern = re.compile(_PART.format(name=re.escape(name), text=".*?"), re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"the page has no part named {name}")
        new = _PART.format(name=name, text=text)
        page = pattern.sub(lambda _, new=new: new, page)  # type: ignore[misc]
    return page


def command_names(command: Any = None, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command that does something, e.g. `("config", "show")`."""
    command = command or typer.main.get_command(app)
    subcommands = getattr(command, "commands", None)
    if subcommands is None:
        yield prefix
        return
    for name, subcommand in subcommands.items():
        yield from command_names(subcommand, (*prefix, name))


def _commands() -> str:
    parts = []
    for name in command_names():
        result = CliRunner().invoke(app, [*name, "--help"], prog_name="delay-bridge", terminal_width=_WIDTH)
        assert result.exit_code == 0, result.output
        lines = [line.rstrip() for line in result.output.strip().splitlines()]
        parts.append(f"### delay-bridge {' '.join(name)}\n\n```text\n" + "\n".join(lines) + "\n```\n")
    return "\n".join(parts)


def _settings() -> str:
    rows = ["| in the file | in the environment | default | what it is |", "| --- | --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        default = "has to be set" if field.is_required() else "none" if field.default is None else f"`{field.default}`"
        default = _DEPENDS.get(name, default)
        rows.append(f"| `{name}` | `{ENV_PREFIX}{name.upper()}` | {default} | {field.description} |")
    return "\n".join(rows)


def _calls() -> str:
    rows = ["| call | answer | |", "| --- | --- | --- |"]
    for operation in OPERATIONS:
        parameters = "; ".join(f"`{each.name}`: {each.says}" for each in operation.query)
        says = operation.says + (f". Parameters: {parameters}" if parameters else "")
        if operation.body is not None:
            says += f". Body: `{_fields(schemas()[operation.body])}`"
        answer = f"{operation.status} " if operation.status != 200 else ""
        rows.append(
            f"| `{operation.method} {operation.path}` | {answer}`{_fields(schemas()[operation.answer])}` | {says} |"
        )
    return "\n".join(rows)


def _fields(schema: dict[str, Any]) -> str:
    """What an answer looks like, in short: names, nested ones in brackets."""
    schema = next((each for each in schema.get("anyOf", ()) if each != {"type": "null"}), schema)
    if "$ref" in schema:
        schema = schemas()[schema["$ref"].rpartition("/")[2]]
    if schema.get("type") == "array":
        return f"[{_fields(schema['items'])}]"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"{{name: {_fields(schema['additionalProperties']) or 'value'}}}"
    names = []
    for name, field in schema.get("properties", {}).items():
        nested = _fields(field)
        names.append(name + (nested if nested[:1] in ("{", "[") else f"{{{nested}}}" if nested else ""))
    return " ".join(names)


def _metrics() -> str:
    rows = ["| metric | kind | labels | what it is |", "| --- | --- | --- | --- |"]
    for family in FAMILIES:
        labels = " ".join(label for label in family.labels if label not in ("cluster", "namespace", "topic"))
        where = "" if "topic" in family.labels else "only `cluster`"
        rows.append(f"| `{family.name}` | {family.kind} | {f'`{labels}`' if labels else where} | {family.says} |")
    return "\n".join(rows)


if __name__ == "__main__":
    REFERENCE.write_text(generate(REFERENCE.read_text()))
