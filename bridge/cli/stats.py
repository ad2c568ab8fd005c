"""`delay-bridge stats` and `partitions`: one topic partition, its subscriptions, and where its entries are."""

from collections.abc import Mapping
from typing import Annotated, Literal, get_args
from urllib.parse import quote

import typer

from bridge import answers
from bridge.cli.asking import ask, topic_path
from bridge.cli.common import (
    DEFAULT_ADMIN_URL,
    AdminUrl,
    AuthParams,
    Output,
    OutputOption,
    plain_table,
    print_json,
    print_table,
)
from bridge.notation.times import format_time

Topic = Annotated[str, typer.Argument(help="A topic or one partition of it; short names are completed.")]
_Count = Literal["pending", "ready", "inFlight", "delivered", "acked", "cancelled", "redelivered", "early"]
_COUNTS: tuple[_Count, ...] = get_args(_Count)


def stats(
    topic: Topic,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    auth_params: AuthParams = None,
    output: OutputOption = Output.table,
) -> None:
    """Show a topic partition and its subscriptions: what is pending, how late deliveries are and why."""
    found: answers.Stats = ask(admin_url, f"{topic_path(topic)}/stats", auth_params=auth_params)
    if output is Output.json:
        print_json(found)
        return
    earliest, latest = found["earliestDeliverAt"], found["latestDeliverAt"]
    print(f"{found['topic']}: {found['role']}, owner {found['owner'] or 'not known'}")
    if found["entries"] is not None:  # of a topic that another bridge owns nothing is known here
        print(
            f"{found['entries']:,} entries, {found['storageSize']:,} bytes in {found['timePartitions']:,} time "
            f"partitions; {found['memoryEntries']:,} entries, {found['memorySize']:,} bytes in memory"
        )
        if earliest is not None and latest is not None:
            print(f"due from {format_time(earliest)} to {format_time(latest)}")
        _print_subscriptions(found["subscriptions"])
    for each in found["warnings"]:
        print(f"{each['severity']}: {each['text']}")


def _print_subscriptions(subscriptions: Mapping[str, answers.Subscription]) -> None:
    columns = ("subscription", *_COUNTS, "P50 ms", "P99 ms", "max ms", "consumers")
    table = plain_table(columns, numbers=columns[1:])
    for name, each in sorted(subscriptions.items()):
        lateness = each["lateness"]
        table.add_row(
            name,
            *("-" if each[count] is None else f"{each[count]:,}" for count in _COUNTS),
            *(f"{ms:,}" for ms in (lateness["p50Ms"], lateness["p99Ms"], lateness["maxMs"])),
            str(len(each["consumers"])),
        )
    print_table(table)
    for name, each in sorted(subscriptions.items()):
        if late := {cause: count for cause, count in each["latenessCauses"].items() if count}:
            listed = ", ".join(f"{count:,} by {cause}" for cause, count in late.items())
            print(f"{name}: more than 100 ms late: {listed}")


def partitions(
    topic: Topic,
    subscription: Annotated[
        str | None, typer.Option("--subscription", "-s", help="Show what this one has not acked.")
    ] = None,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    auth_params: AuthParams = None,
    output: OutputOption = Output.table,
) -> None:
    """List a topic's time partitions: how many entries, how many bytes, in memory or on disk."""
    query = "" if subscription is None else f"?subscription={quote(subscription, '')}"
    found: answers.Partitions = ask(admin_url, f"{topic_path(topic)}/partitions{query}", auth_params=auth_params)
    if output is Output.json:
        print_json(found)
        return
    names = sorted({name for each in found["partitions"] for name in each["pending"]})
    columns = ("from", "entries", "bytes", "tier", "state", *(f"pending {name}" for name in names))
    table = plain_table(columns, numbers=("entries", "bytes", *columns[5:]))
    for each in found["partitions"]:
        pending = (f"{each['pending'].get(name, 0):,}" for name in names)
        row = (f"{each['entries']:,}", f"{each['bytes']:,}", each["tier"], each["state"])
        table.add_row(format_time(each["start"]), *row, *pending)
    print_table(table)
