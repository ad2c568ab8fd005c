"""`delay-bridge books`: what was published, and where it is for a subscription."""

from typing import Annotated
from urllib.parse import quote

import typer

from bridge import answers
from bridge.answers.values import Place
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

_PLACES: tuple[tuple[Place, str], ...] = (
    ("acked", "acked"),
    ("cancelled", "cancelled"),
    ("expired", "expired, skipped or cleared at the broker"),
    ("inFlight", "in flight"),
    ("toRedeliver", "to be delivered again"),
    ("ready", "ready, without permits or held"),
    ("inTransactions", "in open transactions"),
    ("pending", "pending in the index"),
    ("unread", "immediate, to come"),
    ("withheld", "withheld by the broker"),
    ("toFill", "being read again"),
)


def books(
    topic: Annotated[str, typer.Argument(help="A topic or one partition of it; short names are completed.")],
    subscription: Annotated[str, typer.Argument(help="A tracked subscription.")],
    positions: Annotated[
        bool, typer.Option("--positions", help="Look at every entry, and list those in no place or in several.")
    ] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    auth_params: AuthParams = None,
    output: OutputOption = Output.table,
) -> None:
    """Tell what was published and where it is for a subscription; exit 1 unless each entry is in one place."""
    query = "?positions=true" if positions else ""
    path = f"{topic_path(topic)}/subscription/{quote(subscription, '')}/books{query}"
    found: answers.Books = ask(admin_url, path, auth_params=auth_params)
    if output is Output.json:
        print_json(found)
    else:
        _print(found)
    if found["unknown"] is not None:
        raise CommandFailed(f"the books of {subscription} cannot be closed now: {found['unknown']}")
    if found["difference"] or found["differenceByCounters"] or found["missing"] or found["twice"]:
        raise CommandFailed(f"the books of {subscription} do not close")


def _print(found: answers.Books) -> None:
    places = found["places"]
    if places is None:
        return
    table = plain_table((f"up to {found['upTo']}", "entries"), numbers=("entries",))
    table.add_row("published", f"{places['published']:,}")
    for field, says in _PLACES:
        table.add_row(says, f"{places[field]:,}")
    table.add_row("difference", f"{found['difference']:,}")
    print_table(table)
    if found["differenceByCounters"]:
        print(f"by the counters alone the difference is {found['differenceByCounters']:,}")
    for says, listed in (("in no place", found["missing"]), ("in several places", found["twice"])):
        if listed:
            print(f"{says}: {' '.join(listed)}")
