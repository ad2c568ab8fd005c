"""`delay-bridge plan`: what a load takes."""

import dataclasses
from typing import Annotated, Any

import typer

from bridge.cli.common import Output, OutputOption, plain_table, print_json, print_table, reading
from bridge.notation.quantities import parse_count, parse_size
from bridge.operate.capacity import Capacity, Load, capacity

_count, _size = reading(parse_count), reading(parse_size)


def plan(
    pending: Annotated[Any, typer.Option(parser=_count, metavar="COUNT", help="Messages pending at most: 10M, 2G.")],
    rate: Annotated[Any, typer.Option(parser=_count, metavar="COUNT", help="Messages published a second: 50K, 1M.")],
    subscriptions: Annotated[int, typer.Option(min=1, max=10_000, help="That get every message.")] = 1,
    size: Annotated[
        Any, typer.Option(parser=_size, metavar="SIZE", help="Of a message: payload, key and properties.")
    ] = "1000",
    standbys: Annotated[int, typer.Option(min=0, max=10, help="Bridges that stand by for each topic partition.")] = 1,
    disk: Annotated[Any, typer.Option(parser=_size, metavar="SIZE", help="Disk that one bridge has.")] = None,
    memory: Annotated[Any, typer.Option(parser=_size, metavar="SIZE", help="Memory that one bridge has.")] = None,
    output: OutputOption = Output.table,
) -> None:
    """Tell what a load takes: bridges, topic partitions, disk, memory, network, and what limits first.

    By what was measured on one machine: what yours does, `delay-bridge bench` tells.
    """
    load = Load(
        pending=pending,
        rate=rate,
        subscriptions=subscriptions,
        message_bytes=size,
        standbys=standbys,
        disk_bytes=disk,
        memory_bytes=memory,
    )
    try:
        found = capacity(load)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--memory") from None
    if output is Output.json:
        print_json({"load": dataclasses.asdict(load), **found._asdict()})
    else:
        _print(load, found)


def _print(load: Load, found: Capacity) -> None:
    table = plain_table(("", "takes", "limited by"), numbers=("takes",))
    table.add_row("bridges, one core each", f"{found.bridges:,}", _by(found.limited_by, found.needs))
    partitions = _by(found.partitions_limited_by, found.partition_needs)
    table.add_row("topic partitions", f"{found.partitions:,}", partitions)
    table.add_row("cores busy in all", f"{found.cores:,.2f}", "")
    table.add_row("disk of a bridge", _bytes(found.disk), f"{_bytes(found.disk_total)} in all")
    table.add_row("memory of a bridge", _bytes(found.memory), "")
    table.add_row("read from brokers", f"{_bytes(found.read_per_s)}/s", f"{found.broker_reads_per_s:,.0f} entries/s")
    table.add_row("sent to consumers", f"{_bytes(found.sent_per_s)}/s", "")
    table.add_row("kept by brokers", _bytes(found.stored_by_broker), "for each replica")
    table.add_row("an index read anew", _seconds(found.read_anew_s), "without standby and snapshot")
    print_table(table)


def _by(limit: str, needs: dict[str, int]) -> str:
    others = ", ".join(f"{name} {count:,}" for name, count in needs.items() if name != limit)
    return f"{limit} ({others})" if others else limit


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000:
            return f"{number:,.0f} {unit}" if unit == "B" or number >= 100 else f"{number:,.1f} {unit}"
        number /= 1000
    return f"{number:,.1f} PB"


def _seconds(number: float) -> str:
    return f"{number:,.1f} s" if number < 120 else f"{number / 60:,.0f} min"
