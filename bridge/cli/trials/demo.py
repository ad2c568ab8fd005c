"""`delay-bridge demo`: what the demo shows while it runs, and its result."""

import importlib.metadata
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from bridge.cli.common import CommandFailed, count_option, duration_option, plain_table, print_table
from bridge.embedded import EmbeddedPulsar
from bridge.embedded.distribution import version_to_run
from bridge.extras import need
from bridge.showcase.demo import DemoError, Tally, running_bridge

_LINE_EVERY_S = 2.0
_PERCENTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


def demo(
    messages: Annotated[int, count_option("How many messages.")] = 10_000,
    min_delay: Annotated[int, duration_option("The shortest delay, e.g. 500ms or 3s.", "3s")] = 3_000,
    max_delay: Annotated[int, duration_option("The longest delay.", "10s")] = 10_000,
) -> None:
    """Start a real Pulsar and the bridge, publish delayed messages by the official client, and measure their delivery.

    Each message gets a random delay. They are consumed by an ordinary Shared subscription whose service URL names the
    bridge. Exit 1 if any message came early, twice or never. Needs the extra `demo` and Java 17 or newer; Pulsar is
    fetched once into the user's cache directory (245 MB). Leaves nothing else behind.
    """
    if min_delay > max_delay:
        raise typer.BadParameter(f"--min-delay is longer than --max-delay: {min_delay} ms > {max_delay} ms")
    need("demo", "demo")
    from bridge.showcase.exchange import run_demo  # with the official client, which is there by now

    # Ended by a scheduler or by Ctrl-C: either way what was started is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(stderr=True, highlight=False)
    broker = EmbeddedPulsar()
    try:
        with _step(console, f"Pulsar {version_to_run()}"):
            broker.start()
        with tempfile.TemporaryDirectory(prefix="delay-bridge-demo-") as folder, _bridge(console, broker) as url:
            console.print(f"publishing {messages:,} messages, each delayed by {min_delay:,} to {max_delay:,} ms")
            with _progress(console, messages) as show:
                tally = run_demo(url, messages, (min_delay, max_delay), show, Path(folder) / "client.log")
        _print_result(tally)
    except DemoError as error:
        raise CommandFailed(str(error)) from None
    finally:
        broker.stop()
    if not tally.good:
        raise typer.Exit(1)


@contextmanager
def _bridge(console: Console, broker: EmbeddedPulsar) -> Iterator[str]:
    with ExitStack() as stack:
        with _step(console, "the bridge"):
            url = stack.enter_context(running_bridge(broker.service_url, broker.web_url))
        yield url


@contextmanager
def _step(console: Console, what: str) -> Iterator[None]:
    """Say what takes a while, and how long it took."""
    console.print(f"starting {what} ...")
    started = time.monotonic()
    yield
    console.print(f"{what} is up after {time.monotonic() - started:.1f} s")


@contextmanager
def _progress(console: Console, messages: int) -> Iterator[Callable[[Tally], None]]:
    """What shows a tally: a bar at a terminal, else a line now and then."""
    if not console.is_terminal:
        yield _line_writer(console)
        return
    columns = (BarColumn(), TextColumn("{task.description}"))
    # Few redraws: this process is also the one that measures.
    with Progress(*columns, console=console, auto_refresh=False) as bar:
        task = bar.add_task("", total=messages)

        def draw(tally: Tally) -> None:
            bar.update(task, completed=tally.delivered, description=_words(tally), refresh=True)

        yield draw


def _line_writer(console: Console) -> Callable[[Tally], None]:
    last, next_at = "", 0.0

    def write(tally: Tally) -> None:
        nonlocal last, next_at
        words, now = _words(tally), time.monotonic()
        complete = tally.delivered == tally.messages
        if words != last and (complete or now >= next_at):
            console.print(words)
            last, next_at = words, now + _LINE_EVERY_S

    return write


def _words(tally: Tally) -> str:
    return f"published {tally.published:,}  pending {max(tally.lost, 0):,}  delivered {tally.delivered:,}"


def _print_result(tally: Tally) -> None:
    table = plain_table(("lateness at the client", ""), numbers=("",))
    for name, share in _PERCENTILES.items():
        table.add_row(name, f"{tally.percentile_ms(share):,.1f} ms")
    table.add_section()
    for name, count in (("early", tally.early), ("lost", tally.lost), ("duplicates", tally.duplicates)):
        table.add_row(name, f"{count:,}")
    if tally.refused:
        table.add_row("refused when published", f"{tally.refused:,}")
    print_table(table)
    client = importlib.metadata.version("pulsar-client")
    print(
        f"\n{tally.delivered:,} of {tally.messages:,} messages delivered.\n"
        f"Lateness is the time at which the official Python client (pulsar-client {client}) handed a message over,\n"
        "minus its deliver_at (the clock at publishing plus the delay): network and client library included."
    )
