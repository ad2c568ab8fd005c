"""`delay-bridge topics`: what a running bridge tracks."""

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
from bridge.notation.times import format_time


def topics(
    admin_url: AdminUrl = DEFAULT_ADMIN_URL, auth_params: AuthParams = None, output: OutputOption = Output.table
) -> None:
    """List the topic partitions that a running bridge tracks."""
    found: list[answers.TopicRow] = ask(admin_url, "/topics", auth_params=auth_params)
    if output is Output.json:
        print_json(found)
        return
    columns = ("topic", "role", "owner", "entries", "bytes", "pending", "next due", "P99 ms", "warnings")
    table = plain_table(columns, numbers=("entries", "bytes", "pending", "P99 ms", "warnings"))
    for topic in sorted(found, key=lambda each: each["topic"]):
        table.add_row(
            topic["topic"],
            topic["role"],
            topic["owner"] or "-",
            _count(topic["entries"]),
            _count(topic["storageSize"]),
            _count(topic["pending"]),
            "-" if topic["earliestDeliverAt"] is None else format_time(topic["earliestDeliverAt"]),
            _count(topic["latenessP99Ms"]),
            str(topic["warnings"]),
        )
    print_table(table)


def _count(value: int | None) -> str:
    """Of a topic that another bridge owns nothing is known here."""
    return "-" if value is None else f"{value:,}"
