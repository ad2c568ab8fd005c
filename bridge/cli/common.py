"""What several commands share: option types, durations, output, and the error that ends a command."""

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bridge.config import parse_duration_ms


class CommandFailed(Exception):
    """A command could not do what it was asked; the message is for the person at the terminal."""


class Output(StrEnum):
    """How results are printed."""

    table = "table"
    json = "json"


class LogFormat(StrEnum):
    """How logs are written."""

    console = "console"
    json = "json"


def _duration(text: str) -> int:
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Port for clients; 0 chooses a free one.")]
WebPort = Annotated[int | None, typer.Option(min=0, max=65535, help="Port of REST and health; 0 chooses a free one.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file with settings.", envvar="DELAY_BRIDGE_CONFIG")
]
LogFormatOption = Annotated[LogFormat | None, typer.Option(help="How logs are written to stderr.")]
OutputOption = Annotated[Output, typer.Option(help="How the result is printed.")]
AdminUrl = Annotated[str, typer.Option(help="The bridge's REST interface.", envvar="DELAY_BRIDGE_ADMIN_URL")]

DEFAULT_ADMIN_URL = "http://localhost:8081"


def duration_option(text: str, default: str) -> Any:
    """An option of type int (ms) that is typed as `10s`; `text` is its help, `default` how its default is shown."""
    return typer.Option(parser=_duration, metavar="DURATION", help=text, show_default=default)


def print_json(value: Any) -> None:
    """The result for programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(table: Table) -> None:
    """The result for people. Not cut to a width nobody looks at when it goes to a pipe or a file."""
    Console(width=None if sys.stdout.isatty() else 500).print(table)


def plain_table(columns: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """An empty table without frames; `numbers` are the columns aligned to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return table
