"""`delay-bridge bench`: the bridge beside the broker's own delay tracker, same work, one run."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bridge.cli.common import CommandFailed, Output, OutputOption, print_json, print_table
from bridge.extras import need
from bridge.showcase.side_by_side import SHOWN, BenchError, Figures, Runs, Wanted, medians, side_by_side, workloads


def bench(
    runs: Annotated[int, typer.Option(min=1, max=100, help="Runs of each workload at each address.")] = 3,
    scale: Annotated[
        float, typer.Option(min=0.001, max=100.0, help="Share of the messages; below 1 for a quick look.")
    ] = 1.0,
    lead: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="Seconds from the start of publishing to the first due time.")
    ] = 15.0,
    only: Annotated[str, typer.Option(help="Workloads whose name contains this.")] = "",
    output: OutputOption = Output.table,
) -> None:
    """Measure the bridge beside the broker's own delay tracker: same broker, client and work, in turn, with ratios.

    Starts a real Pulsar and a bridge in front of it. Delayed messages due at one instant (burst) and over a while
    (spread), and messages without delay. Takes a quarter of an hour as it is. Needs what `demo` needs.
    """
    wanted = Wanted(runs, scale, lead, only)
    if not workloads(wanted):
        known = ", ".join(workloads(Wanted()))
        raise typer.BadParameter(f"no workload has {only!r} in its name, there are {known}")
    need("demo", "bench")
    console = Console(stderr=True, highlight=False)

    def told(name: str, side: str, figures: Figures) -> None:
        shown = ", ".join(f"{figure} {figures[figure]:,.1f}" for figure in SHOWN[name])
        console.print(f"{name}, {side}: {shown}")

    try:
        results = side_by_side(wanted, told)
    except BenchError as error:
        raise CommandFailed(str(error)) from None
    if output is Output.json:
        print_json(results)
    else:
        print_table(report(results))


def report(results: dict[str, Runs]) -> Table:
    """Return medians side by side, and the ratio bridge / broker."""
    table = Table(title="bridge and broker's own tracker, same work in turn, medians")
    for column, justify in (("workload", "left"), ("figure", "left")):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for column in ("broker", "bridge", "bridge / broker"):
        table.add_column(column, justify="right")
    for workload, runs in results.items():
        broker, bridge = medians(runs["broker"]), medians(runs["bridge"])
        for figure in SHOWN[workload]:
            ratio = f"{bridge[figure] / broker[figure]:.3g}" if broker[figure] else "-"
            table.add_row(workload, figure, f"{broker[figure]:,.1f}", f"{bridge[figure]:,.1f}", ratio)
        table.add_section()
    return table
