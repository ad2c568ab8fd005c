"""`delay-bridge config`: what the bridge would run with."""

import sys

import typer

from bridge.cli.common import ConfigFile, Output, OutputOption, plain_table, print_json, print_table
from bridge.config import ConfigError, Loaded, load_settings

app = typer.Typer(help="Show or check the configuration.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def show(config: ConfigFile = None, output: OutputOption = Output.table) -> None:
    """Print every setting that `serve` would use, and where it came from; secrets are hidden."""
    loaded = load_settings(config)
    values = loaded.settings.model_dump(mode="json")  # hides what is secret
    if output is Output.json:
        print_json({name: {"value": value, "source": loaded.source(name)} for name, value in values.items()})
        return
    table = plain_table(("setting", "value", "from"))
    for name, value in values.items():
        table.add_row(name, "-" if value is None else str(value), _origin(loaded, name))
    print_table(table)


@app.command()
def check(config: ConfigFile = None) -> None:
    """Check the file and the environment; exit 1 with a line for each problem."""
    try:
        load_settings(config)
    except ConfigError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        raise typer.Exit(1) from None
    print("the configuration is good")


def _origin(loaded: Loaded, name: str) -> str:
    source = loaded.source(name)
    return f"DELAY_BRIDGE_{name.upper()}" if source == "environment" else source
