"""`delay-bridge rebuild`, `rebuild-status` and `audit`: read a topic again for its index, or to compare both."""

import sys
import time
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from bridge import answers
from bridge.answers.values import Engine
from bridge.cli.asking import ask, topic_path
from bridge.cli.common import (
    DEFAULT_ADMIN_URL,
    AdminUrl,
    AuthParams,
    CommandFailed,
    Output,
    OutputOption,
    plain_table,
    print_json,
    print_table,
)

_POLL_S = 0.5
_ENDED = ("succeeded", "failed", "differs")

EngineOption = Annotated[Engine, typer.Option(help="What reads the topic.")]
Status = TypeVar("Status", answers.RebuildStatus, answers.AuditStatus)
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="A topic, or one partition of a partitioned one.")]


def rebuild(
    topic: Topic,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it to its end; exit 1 when it fails.")] = False,
    engine: EngineOption = Engine.auto,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the one that was started like this.")] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    auth_params: AuthParams = None,
    output: OutputOption = Output.table,
) -> None:
    """Have a topic read again, and what its index lacks stored."""
    path = f"{topic_path(topic)}/rebuild"
    if cancel:
        _print(ask(admin_url, path, "DELETE", auth_params), output)
        return
    status: answers.RebuildStatus = ask(admin_url, f"{path}?engine={engine.value}", "PUT", auth_params)
    if wait:
        status = _follow(admin_url, path, status, auth_params)
    _print(status, output)
    if status["state"] == "failed":
        raise CommandFailed(f"the rebuild failed: {status['error']}")


def rebuild_status(
    topic: Topic,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    auth_params: AuthParams = None,
    output: OutputOption = Output.table,
) -> None:
    """Show the rebuild of a topic's index that is under way, or the last one."""
    _print(ask(admin_url, f"{topic_path(topic)}/rebuild", auth_params=auth_params), output)


def audit(
    topic: Topic,
    engine: EngineOption = Engine.auto,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    auth_params: AuthParams = None,
    output: OutputOption = Output.table,
) -> None:
    """Compare a topic with its index, entry by entry; exit 1 when they differ."""
    path = f"{topic_path(topic)}/audit"
    status: answers.AuditStatus = ask(admin_url, f"{path}?engine={engine.value}", "PUT", auth_params)
    status = _follow(admin_url, path, status, auth_params)
    if output is Output.json:
        print_json(status)
    else:
        table = plain_table(("state", "engine", "compared", "checksum", "missing", "unexpected"), numbers=("compared",))
        listed = [", ".join(positions) or "-" for positions in (status["missing"], status["unexpected"])]
        table.add_row(status["state"], status["engine"], f"{status['compared']:,}", status["checksum"], *listed)
        print_table(table)
        _print_sources(status)
    if status["state"] == "failed":
        raise CommandFailed(f"the audit failed: {status['error']}")
    if status["state"] == "differs":
        raise CommandFailed(f"index and topic differ in {status['differing']} blocks of positions or time partitions")


def _follow(admin_url: str, path: str, status: Status, auth_params: str | None) -> Status:
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f} of {task.total:,.0f}")
    with Progress(*columns, TimeRemainingColumn(), console=Console(file=sys.stderr), transient=True) as progress:
        bar = progress.add_task(status["stage"], total=1)
        while status["state"] not in _ENDED:
            time.sleep(_POLL_S)
            status = ask(admin_url, path, auth_params=auth_params)
            total = max(status["entriesTotal"], status["entriesRead"], 1)
            progress.update(bar, description=status["stage"], total=total, completed=status["entriesRead"])
    return status


def _print(status: answers.RebuildStatus, output: Output) -> None:
    if output is Output.json:
        print_json(status)
        return
    numbers = ("entries", "read", "indexed")
    table = plain_table(("state", "trigger", "engine", "after", "to", *numbers), numbers)
    table.add_row(
        status["state"] if status["state"] in _ENDED else f"{status['state']}: {status['stage']}",
        status["trigger"],
        status["engine"],
        status["after"],
        status["to"],
        f"{status['entriesTotal']:,}",
        f"{status['entriesRead']:,}",
        f"{status['entriesIndexed']:,}",
    )
    print_table(table)
    if proof := status["proof"]:
        print(f"index and topic hold the same {proof['count']:,} entries, checksum {proof['checksum']}")
    _print_sources(status)


def _print_sources(status: answers.RebuildStatus | answers.AuditStatus) -> None:
    if status["sparkError"]:
        print(f"read in the bridge, for the job failed: {status['sparkError']}")
    if status["fromBookies"]:
        print(f"{status['fromBookies']:,} of the entries were read from the bookies")
    if status["notFromBookies"]:
        print(f"read through the broker: {status['notFromBookies']}")
