"""`delay-bridge drain` and `join`: a bridge that owns nothing can be stopped, and nobody notices."""

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bridge import answers
from bridge.cli.asking import ask
from bridge.cli.common import DEFAULT_ADMIN_URL, AdminUrl, AuthParams, CommandFailed, duration_option

_POLL_S = 0.5
_STANDS_S = 15.0
"""A share that has not changed for so long is what the bridge is to have."""
_PATH = "/drain"

Patience = Annotated[int, duration_option("How long to wait for it; it goes on by itself after that.", "5m")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Do not wait for it.")]


def drain(
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    auth_params: AuthParams = None,
    timeout: Patience = 300_000,
    no_wait: NoWait = False,
) -> None:
    """Have the other bridges take over what a bridge owns, so that it can be stopped; exit 1 when it owns some still.

    It goes on until the bridge is started anew, or told to `join`.
    """
    status: answers.Drain = ask(admin_url, _PATH, "PUT", auth_params)
    total = status["left"]
    if not no_wait:
        left = _follow("draining", total, timeout, lambda: _left(admin_url, auth_params), lambda left: left == 0)
        if left:
            raise CommandFailed(f"{left:,} topic partitions of {total:,} are owned still: is there room elsewhere?")
    print(f"{total:,} topic partitions are taken over by others" + (", one after the other" if no_wait else ""))


def join(
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    auth_params: AuthParams = None,
    timeout: Patience = 300_000,
    no_wait: NoWait = False,
) -> None:
    """Have a bridge that was drained take its share again, and wait until it has it."""
    status: answers.Drain = ask(admin_url, _PATH, "DELETE", auth_params)
    if no_wait:
        print("the bridge takes its share again")
        return
    stands = _Standing(status["left"])
    owned = _follow("joining", None, timeout, lambda: _left(admin_url, auth_params), stands.is_reached)
    print(f"the bridge owns {owned:,} topic partitions that clients are connected to")


class _Standing:
    """Whether a number has stood still for long enough."""

    def __init__(self, number: int) -> None:
        self._number, self._since = number, time.monotonic()

    def is_reached(self, number: int) -> bool:
        if number != self._number:
            self._number, self._since = number, time.monotonic()
        return time.monotonic() - self._since > _STANDS_S


def _left(admin_url: str, auth_params: str | None) -> int:
    found: answers.Drain = ask(admin_url, _PATH, auth_params=auth_params)
    return found["left"]


def _follow(says: str, total: int | None, timeout_ms: int, look: Callable[[], int], done: Callable[[int], bool]) -> int:
    """Look until it is done, or the time is over; returns what was seen last."""
    ends = time.monotonic() + timeout_ms / 1000
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[owned]:,} owned"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(file=sys.stderr), transient=True) as progress:
        bar = progress.add_task(says, total=total, owned=total or 0)
        while not done(number := look()) and time.monotonic() < ends:
            progress.update(bar, completed=0 if total is None else max(total - number, 0), owned=number)
            time.sleep(_POLL_S)
    return number
