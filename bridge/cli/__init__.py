"""The command `delay-bridge`: results on stdout, logs on stderr; exit 0 done, 1 failed, 2 usage."""

import importlib.metadata
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from bridge.cli import books, config, drain, members, pending, rebuild, serve, stats, topics
from bridge.cli.common import CommandFailed
from bridge.cli.trials import bench, demo, plan, standalone
from bridge.config import ConfigError
from bridge.embedded import EmbeddedError
from bridge.extras import ExtraMissing
from bridge.net.listening import StartError
from tracker import StoreError

_EXPECTED = (CommandFailed, ConfigError, StartError, StoreError, EmbeddedError, ExtraMissing)
"""What can go wrong without anything being wrong with the program: one line, no stack trace."""

app = typer.Typer(
    help="Delayed messages on time for Apache Pulsar: takes over their dispatch, for unmodified clients.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo.demo)
app.command()(standalone.standalone)
app.command()(serve.serve)
app.command()(topics.topics)
app.command()(members.members)
app.command()(drain.drain)
app.command()(drain.join)
app.command()(stats.stats)
app.command()(stats.partitions)
app.command()(books.books)
app.command()(pending.pending)
app.command()(pending.cancel)
app.command()(pending.deliver_now)
app.command()(rebuild.rebuild)
app.command()(rebuild.rebuild_status)
app.command()(rebuild.audit)
app.command()(bench.bench)
app.command()(plan.plan)
app.add_typer(config.app, name="config")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ends with SystemExit."""
    try:
        app(args=arguments, prog_name="delay-bridge")
    except _EXPECTED as error:
        print(f"delay-bridge: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        print(importlib.metadata.version("pulsar-delay-bridge"))
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Holds the options that stand before the command."""
