"""What several commands share: option types, durations, output, and the error that ends a command."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table

from bridge.notation.numbers import whole_number
from bridge.notation.quantities import parse_duration_ms

TEXT_COLUMN_LEAST = 24
"""Columns of text are folded to no less: times and positions fit."""


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


def reading(parse: Callable[[str], int]) -> Callable[[str], int]:
    """A parser of an option's values, whose ValueError is told as it is: the library's own words do not name them."""

    def read(text: str) -> int:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return read


def _whole_number(what: str, low: int, high: int) -> Callable[[str], int]:
    # Defaults come here as well, as they are.
    return reading(lambda value: whole_number(str(value), low, high, what))


def duration_option(text: str, default: str) -> Any:
    """An option of type int (ms) that is typed as `10s`; `text` is its help, `default` how its default is shown."""
    return typer.Option(
        parser=reading(parse_duration_ms), metavar="DURATION", help=f"{text}  [default: {default}]", show_default=False
    )


def port_option(text: str) -> Any:
    """An option that is a TCP port."""
    return typer.Option(parser=_whole_number("port", 0, 65_535), metavar="PORT", help=text)


def count_option(text: str) -> Any:
    """An option that is a number of messages."""
    return typer.Option(parser=_whole_number("number of messages", 1, 10_000_000), metavar="N", help=text)


ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML file with settings.", envvar="DELAY_BRIDGE_CONFIG")
]
LogFormatOption = Annotated[LogFormat | None, typer.Option(help="How logs are written to stderr.")]
OutputOption = Annotated[Output, typer.Option(help="How the result is printed.")]
AdminUrl = Annotated[
    str, typer.Option(metavar="URL", help="The bridge's REST interface.", envvar="DELAY_BRIDGE_ADMIN_URL")
]
AuthParams = Annotated[
    str | None,
    typer.Option(
        metavar="AUTH",
        help="Who asks: token:TOKEN or file:PATH; better in the environment than here, where others may see it.",
        envvar="DELAY_BRIDGE_AUTH_PARAMS",
    ),
]

DEFAULT_ADMIN_URL = "http://localhost:8081"


def token_from(auth_params: str | None) -> str | None:
    """The token that `--auth-params` names, None without one. Raises CommandFailed, which does not name a token."""
    if not auth_params:
        return None
    kind, _, value = auth_params.partition(":")
    if kind == "file":
        path = value.removeprefix("//")
        try:
            value = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandFailed(f"cannot read the token file {path}: {error}") from None
    elif kind != "token":
        raise CommandFailed("--auth-params: expected token:TOKEN or file:PATH")
    token = value.strip()
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise CommandFailed("--auth-params: what is given there is no token")
    return token


def print_json(value: Any) -> None:
    """The result for programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(table: Table) -> None:
    """The result for people. Not cut to a width nobody looks at when it goes to a pipe or a file.

    No number is broken: rows that do not fit a terminal are printed as blocks, a value to a line.
    """
    console = Console(width=None if sys.stdout.isatty() else 500)
    if sum(_least_width(column) + 2 for column in table.columns) - 2 <= console.width:
        console.print(table)
    else:
        _print_blocks(table, console)


def _least_width(column: Column) -> int:
    widest = max(cell_len(str(text)) for text in (column.header, *column.cells))
    return widest if column.no_wrap else min(widest, TEXT_COLUMN_LEAST)


def _print_blocks(table: Table, console: Console) -> None:
    first, *rest = table.columns
    names = max(cell_len(str(column.header)) for column in table.columns)
    for title, *values in zip(*(list(column.cells) for column in table.columns), strict=True):
        console.print(f"{first.header!s:<{names}}  {title}", style="bold", markup=False, highlight=False)
        for column, value in zip(rest, values, strict=True):
            console.print(f"{column.header!s:<{names}}  {value}", markup=False, highlight=False)
        console.print()


def plain_table(columns: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    """An empty table without frames; `numbers` are the columns aligned to the right, which are not broken."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        is_number = column in numbers
        table.add_column(column, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    return table
