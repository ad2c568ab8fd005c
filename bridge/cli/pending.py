"""`delay-bridge pending`, `cancel` and `deliver-now`: single entries, found and steered."""

import base64
from collections.abc import Iterator
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from bridge import answers
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
from bridge.cli.stats import Topic
from bridge.notation.message_ids import MessageId
from bridge.notation.times import format_time
from tracker import Position

Subscription = Annotated[str, typer.Option("--subscription", "-s", help="The subscription.", show_default=False)]
OneSubscription = Annotated[str | None, typer.Option("--subscription", "-s", help="The subscription.")]
AllSubscriptions = Annotated[bool, typer.Option("--all-subscriptions", help="For each there is.")]
MessageIds = Annotated[
    list[str], typer.Option("--message-id", metavar="ID", help="L:E, or as a client prints it; may be repeated.")
]
_PAGE = 1_000
_SHOWN_BYTES = 60


def pending(
    topic: Topic,
    subscription: Subscription,
    due_from: Annotated[str | None, typer.Option(metavar="TIME", help="Due then or later.")] = None,
    due_to: Annotated[str | None, typer.Option(metavar="TIME", help="Due before.")] = None,
    key: Annotated[str | None, typer.Option(help="With this message key.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="With this property; repeatable.")
    ] = None,
    message_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Only this one: L:E, or as a client prints it.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="Stop after so many.")] = 100,
    payload: Annotated[bool, typer.Option("--payload", help="Show what is in them.")] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    auth_params: AuthParams = None,
    output: OutputOption = Output.table,
) -> None:
    """List what is not delivered and acked yet, in due order. Times: RFC 3339 or epoch milliseconds."""
    wanted = {"dueFrom": due_from, "dueTo": due_to, "key": key, "messageId": message_id}
    query: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    query["property"] = properties or []
    query["payload"] = str(payload).lower()
    path = f"{_path(topic, subscription)}/pending"
    entries = list(_search(admin_url, auth_params, path, query, limit))
    if output is Output.json:
        print_json(entries)
        return
    columns = ("message id", "due", "published", "key", "properties", "bytes", "tier", "state")
    table = plain_table((*columns, "payload") if payload else columns, numbers=("bytes",))
    for each in entries:
        table.add_row(*_row(each), *([_peek(each)] if payload else []))
    print_table(table)


def cancel(
    topic: Topic,
    message_id: MessageIds,
    subscription: OneSubscription = None,
    all_subscriptions: AllSubscriptions = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    auth_params: AuthParams = None,
    output: OutputOption = Output.table,
) -> None:
    """Ack messages that were not delivered yet: they never will be. Exit 1 unless all are gone now."""
    names = _names(topic, subscription, all_subscriptions, admin_url, auth_params)
    _steer("cancel", topic, names, message_id, ("cancelled", "already-acked"), (admin_url, auth_params), output)


def deliver_now(
    topic: Topic,
    message_id: MessageIds,
    subscription: OneSubscription = None,
    all_subscriptions: AllSubscriptions = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    auth_params: AuthParams = None,
    output: OutputOption = Output.table,
) -> None:
    """Deliver messages now, whenever they are due. Exit 1 unless all are on their way or were already."""
    names = _names(topic, subscription, all_subscriptions, admin_url, auth_params)
    fine = ("expedited", "already-dispatched", "already-acked")
    _steer("deliver-now", topic, names, message_id, fine, (admin_url, auth_params), output)


def _names(topic: str, subscription: str | None, every: bool, admin_url: str, auth_params: str | None) -> list[str]:
    if every == (subscription is not None):
        raise typer.BadParameter("give either --subscription or --all-subscriptions")
    if subscription is not None:
        return [subscription]
    found: answers.Stats = ask(admin_url, f"{topic_path(topic)}/stats", auth_params=auth_params)
    if not found["subscriptions"]:
        raise CommandFailed(f"{found['topic']} has no tracked subscription")
    return sorted(found["subscriptions"])


def _steer(
    act: str,
    topic: str,
    names: list[str],
    message_ids: list[str],
    fine: tuple[str, ...],
    where: tuple[str, str | None],
    output: Output,
) -> None:
    listed = {text: str(_position(text)) for text in message_ids}
    admin_url, auth_params = where
    rows = []
    for name in names:
        path = f"{_path(topic, name)}/{act}"
        body: answers.MessageIds = {"messageIds": list(listed)}
        answer: answers.Outcomes = ask(admin_url, path, "POST", auth_params, body)
        rows += [
            {"subscription": name, "messageId": each, "outcome": answer["entries"][each]}
            for each in dict.fromkeys(listed.values())
        ]
    if output is Output.json:
        print_json(rows)
    else:
        table = plain_table(("subscription", "message id", "outcome"))
        for row in rows:
            table.add_row(*row.values())
        print_table(table)
    if left := [row for row in rows if row["outcome"] not in fine]:
        raise CommandFailed(f"{len(left)} of {len(rows)} not done: {left[0]['messageId']} {left[0]['outcome']}")


def _search(
    admin_url: str, auth_params: str | None, path: str, query: dict[str, Any], limit: int
) -> Iterator[answers.Entry]:
    """Page on until there are enough, or nothing is left: a page may be empty although more follow."""
    left = limit
    while left:
        query["limit"] = min(left, _PAGE)
        page: answers.Pending = ask(admin_url, f"{path}?{urlencode(query, doseq=True)}", auth_params=auth_params)
        yield from page["entries"]
        left -= len(page["entries"])
        if page["cursor"] is None:
            return
        query["cursor"] = page["cursor"]


def _path(topic: str, subscription: str) -> str:
    return f"{topic_path(topic)}/subscription/{quote(subscription, '')}"


def _position(text: str) -> Position:
    try:
        return MessageId.parse(text).position
    except ValueError as error:
        raise CommandFailed(str(error)) from None


def _row(entry: answers.Entry) -> list[str]:
    published = entry["publishTime"]
    return [
        entry["position"],
        format_time(entry["deliverAt"]),
        "-" if published is None else format_time(published),
        entry["key"] or "-",
        ", ".join(f"{name}={value}" for name, value in entry["properties"].items()) or "-",
        f"{entry['size']:,}",
        entry["tier"],
        entry["state"],
    ]


def _peek(entry: answers.Entry) -> str:
    """The beginning of a payload: as text if it is one, else in hexadecimal."""
    if entry["encrypted"]:
        return "(encrypted)"
    if entry["compression"] != "NONE":
        return f"({entry['compression']})"
    data = base64.b64decode(entry["payload"])
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.isprintable() or not text:
        text = data[: _SHOWN_BYTES // 2].hex()
    return text[:_SHOWN_BYTES] + ("…" if len(text) > _SHOWN_BYTES else "")
