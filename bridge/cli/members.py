"""`delay-bridge members`: the bridges of a cluster."""

import sys

from bridge import answers
from bridge.cli.asking import ask
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


def members(
    admin_url: AdminUrl = DEFAULT_ADMIN_URL, auth_params: AuthParams = None, output: OutputOption = Output.table
) -> None:
    """List the bridges of the cluster, as one of them knows them, and how much each owns."""
    found: answers.Members = ask(admin_url, "/members", auth_params=auth_params)
    if output is Output.json:
        print_json(found)
        return
    table = plain_table(("bridge", "REST", "topics", "load", ""), numbers=("topics", "load"))
    for member in found["members"]:
        owned, load = member["owned"], member["load"]
        table.add_row(
            member["url"],
            member["webUrl"] or "-",
            "silent" if owned is None else f"{owned:,}",
            "-" if load is None else f"{load:.1f}",
            "draining" if member["draining"] else "",
        )
    print_table(table)
    if found["trouble"] is not None:
        print(f"the other bridges are not known: {found['trouble']}", file=sys.stderr)
